"""What was written and not sent when the application was left."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rvchat.config import private_folder

_NAME = "draft.txt"


def keep(folder: Path, text: str) -> None:
    """Keeps `text` for the next start. A disk that refuses is no reason not to leave."""
    if text.strip():
        with (
            contextlib.suppress(OSError),
            open(
                os.open(private_folder(folder) / _NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                "w",
                encoding="utf-8",
            ) as file,
        ):
            file.write(text)


def take(folder: Path) -> str:
    """What was kept, which is then no longer kept; empty where nothing was."""
    path = folder / _NAME
    try:
        text = path.read_text(encoding="utf-8")
        path.unlink()
    except (OSError, UnicodeDecodeError):
        return ""
    return text
