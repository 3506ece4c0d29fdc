"""Conversations from files of other programs, and from rvchat's own.

A file is recognised by what is in it, whatever its name. Nothing that a file names is opened. One conversation that
cannot be read is reported and the others are taken; what is here already is not taken again.
"""

from rvchat.store.imports.files import Found, Skipped, read
from rvchat.store.imports.taking import Report, import_files

__all__ = ["Found", "Report", "Skipped", "import_files", "read"]
