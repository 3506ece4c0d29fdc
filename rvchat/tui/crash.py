"""When the application itself has an error: what happened goes to a file, and the user is told where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rvchat.config import private_folder

if TYPE_CHECKING:
    from rvchat.session import Session
    from rvchat.store import Store


def report(error: BaseException | None, folder: Path) -> str | None:
    """Writes why the application ended, with no word of any conversation; returns the file's path, None where it could
    not be written."""
    lines = [
        f"rvchat {_version('rvchat')}, textual {_version('textual')}, Python {platform.python_version()}",
        f"{platform.platform()}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        "",
        *(_told(error) if error is not None else ["No exception is known.\n"]),
    ]
    try:
        path = private_folder(folder) / time.strftime("crash-%Y%m%d-%H%M%S.txt")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(lines[:3]) + "".join(lines[3:]))
    except OSError:
        return None
    return str(path)


def words(path: str | None, *, kept: bool) -> str:
    """What the user is told. `kept`: whether a disk has all that was said."""
    where = f"What happened is in {path}" if path is not None else "What happened could not be written to a file"
    conversation = "The conversation is kept." if kept else "Not all of the conversation could be kept."
    return f"rvchat ended because of an error of its own. {conversation} {where}."


def is_kept(session: Session, store: Store) -> bool:
    """Whether a disk has all that was said."""
    return not session.unsaved and (store.path is not None or not session.conversation.messages)


def _told(error: BaseException) -> Iterator[str]:
    """The error and what it came from, the first first. What an error says may have the user's words, a path or a
    text; the lines of code that it came through have not."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    for number, each in enumerate(reversed(chain)):
        if number:
            yield "\nFrom that came:\n\n"
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(each.__traceback__)
        yield f"{type(each).__qualname__}{_said(each)}\n"


def _said(error: BaseException) -> str:
    """What an error says where that is made of names in the code, or by the system."""
    if isinstance(error, OSError):
        return f": {os.strerror(error.errno)}" if error.errno is not None else ""
    return f": {error}" if type(error) in (AttributeError, ImportError, IndexError, NameError) else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"
