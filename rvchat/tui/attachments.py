"""Text files that go along with a message."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rvchat.config import expanded
from rvchat.errors import BadInputError
from rvchat.store.printable import printable, text_of

LARGEST = 4_000_000
"""Bytes of a file that can be attached; more is no message any more."""

_MENTION = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|(\S+))')
_MOST_ENTRIES = 2000
_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Attached:
    """A file's text. `size` is in bytes on disk."""

    path: Path
    text: str
    size: int

    def as_message(self) -> str:
        """How the model sees it: its name, and its text in a fence that nothing inside can end."""
        longest = max((len(run) for run in re.findall(r"`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        newline = "" if self.text.endswith("\n") or not self.text else "\n"
        return f"\n\n{self.path.name}:\n\n{fence}{self.path.suffix[1:]}\n{self.text}{newline}{fence}\n\n"


def attach(path: Path) -> Attached:
    """Reads a text file. Raises BadInputError for what is none: a folder, a binary file, one that is too large."""
    try:
        if path.is_dir():
            raise BadInputError(f"{path} is a folder", "Attach the files one by one.")
        size = path.stat().st_size
        if size > LARGEST:
            raise BadInputError(f"{path} has {size_of(size)}", f"Files of up to {size_of(LARGEST)} can be attached.")
        raw = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise BadInputError(f"{path} is not a text file", "Only text in UTF-8 can be attached.")
    return Attached(path, printable(text), size)


def with_mentioned(text: str, expand: Callable[[str], str] = str, *, but: str = "") -> str:
    """`text` with the files that it mentions put in, and `expand` done to the rest of it alone. What `but` mentions is
    left as it is. Raises BadInputError where a file cannot be put in."""
    known = {match[0] for match in _MENTION.finditer(but)}
    parts: list[str] = []
    at = 0
    for start, end, path in mentions(text):
        if text[start:end] not in known:
            parts += [expand(text[at:start]), attach(path).as_message()]
            at = end
    return "".join([*parts, expand(text[at:])])


def size_of(count: int) -> str:
    """Bytes in words: "812 B", "3.2 kB", "1.4 MB", "22.6 GB"."""
    if count < 1000:
        return f"{count} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6)):
        if count < 999_950 * scale / 1e3:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e9:.1f} GB"


def mentions(text: str) -> Iterator[tuple[int, int, Path]]:
    """Where `text` names a file that exists, as @path or @"path with spaces": start, end, and the path."""
    for match in _MENTION.finditer(text):
        path = expanded(match[1] or match[2])
        if os.path.isfile(path):  # Path.is_file raises for what is too long or may not be looked at
            yield match.start(), match.end(), path


def completions(beginning: str) -> list[tuple[str, bool]]:
    """Paths that go on from `beginning`, folders first, and whether each is a folder (which then ends in a slash).
    None whose name is no text: on Linux it may be any bytes."""
    folder, _, name = beginning.rpartition("/")
    base = expanded(f"{folder}/" if folder or beginning.startswith("/") else ".")
    found: list[tuple[str, bool]] = []
    try:
        with os.scandir(base) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                hidden = entry.name.startswith(".") and not name.startswith(".")
                if (
                    entry.name.casefold().startswith(name.casefold())
                    and not hidden
                    and text_of(entry.name) == entry.name
                ):
                    is_folder = entry.is_dir()
                    prefix = f"{folder}/" if folder or beginning.startswith("/") else ""
                    found.append((f"{prefix}{entry.name}{'/' if is_folder else ''}", is_folder))
    except (OSError, ValueError):  # ValueError: no path can be that
        return []
    return sorted(found, key=lambda e: (not e[1], e[0].casefold()))[:_MOST_SHOWN]
