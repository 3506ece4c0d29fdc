"""When the application itself has an error: what happened goes to a file, and the user is told where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
import traceback
from pathlib import Path

from rvchat.config import private_folder


def report(error: BaseException | None, folder: Path) -> str | None:
    """Writes why the application ended, with no word of any conversation; returns the file's path, None where it could
    not be written."""
    lines = [
        f"rvchat {_version('rvchat')}, textual {_version('textual')}, Python {platform.python_version()}",
        f"{platform.platform()}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        "",
        *(traceback.format_exception(error) if error is not None else ["No exception is known.\n"]),
    ]
    try:
        path = private_folder(folder) / time.strftime("crash-%Y%m%d-%H%M%S.txt")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(lines[:3]) + "".join(lines[3:]))
    except OSError:
        return None
    return str(path)


def words(path: str | None) -> str:
    """What the user is told."""
    where = f"What happened is in {path}" if path is not None else "What happened could not be written to a file"
    return f"rvchat ended because of an error of its own. The conversation is kept. {where}."


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"
