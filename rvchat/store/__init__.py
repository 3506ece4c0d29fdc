"""Conversations on disk: SQLite, migrations, search, export, import. Knows no model and no screen."""
