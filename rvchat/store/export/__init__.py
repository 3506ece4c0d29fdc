"""Conversations as files for other programs and for reading.

`json` and `openwebui` hold every branch; the others hold the active one. All but `json`, which loses nothing, leave
control characters out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import cast

from rvchat.errors import BadInputError
from rvchat.types import Conversation

FORMATS = ("json", "md", "html", "txt", "openwebui", "jsonl")

_MODULES = {
    "json": "own",
    "md": "markdown",
    "html": "html",
    "txt": "text",
    "openwebui": "openwebui",
    "jsonl": "openai",
}


def export(conversations: Iterable[Conversation], format: str) -> Iterator[str]:
    """The file's text, in pieces, so that a whole history is never in memory. BadInputError: no such format."""
    if format not in _MODULES:
        raise BadInputError(f"There is no export format {format}", f"Choose one of {', '.join(FORMATS)}")
    # Loaded when asked for: highlighting alone takes longer to import than a history takes to list.
    module = import_module(f"rvchat.store.export.{_MODULES[format]}")
    write = cast(Callable[[Iterable[Conversation]], Iterator[str]], module.write)
    return write(conversations)
