"""Conversations on disk: SQLite, migrations, search, export, import. Knows no model and no screen."""

from rvchat.store.rows import Summary
from rvchat.store.search import Hit, Snippet
from rvchat.store.store import Store

__all__ = ["Hit", "Snippet", "Store", "Summary"]
