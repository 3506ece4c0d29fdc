"""Copying: the system's clipboard first, then the terminal's, and a file wherever it cannot be known that it worked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rvchat.config import private_folder

_WAIT_S = 3.0
_LONGEST_SEQUENCE = 70_000  # bytes; terminals drop longer ones without a word

_TOOLS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # what must be set, the command, the name of what it reaches
    ("WAYLAND_DISPLAY", ("wl-copy",), "the clipboard"),
    ("DISPLAY", ("xclip", "-selection", "clipboard"), "the clipboard"),
    ("DISPLAY", ("xsel", "--clipboard", "--input"), "the clipboard"),
    ("TMUX", ("tmux", "load-buffer", "-w", "-"), "tmux's buffer"),
)


def copy(text: str, *, terminal: Callable[[str], None], folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Copies `text` and returns what can be said of that. `terminal` sends it to the terminal's clipboard, of which no
    answer comes: so it is then kept in `folder` as well, and for a text that terminals would drop, there alone."""
    for place in _system(environ):
        if _run(place[0], text):
            return f"Copied to {place[1]}."
    short = len(text.encode()) * 4 // 3 < _LONGEST_SEQUENCE
    if short:
        terminal(text)
    try:
        path = _kept(text, folder)
    except OSError as error:
        return (
            f"Sent to the terminal's clipboard; whether it took it cannot be known ({error.strerror})."
            if short
            else f"Could not copy: no clipboard program, and {folder} cannot be written: {error.strerror}."
        )
    return (
        f"Sent to the terminal's clipboard; also in {path}."
        if short
        else f"Too long for the terminal: it is in {path}."
    )


def _system(environ: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    if sys.platform == "darwin":
        return [(("pbcopy",), "the clipboard")]
    return [(command, name) for needs, command, name in _TOOLS if environ.get(needs) and shutil.which(command[0])]


def _run(command: tuple[str, ...], text: str) -> bool:
    # The programs stay behind to serve the clipboard, so their output must not be waited for.
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(command, input=text.encode(), stdout=quiet, stderr=quiet, timeout=_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _kept(text: str, folder: Path) -> Path:
    path = private_folder(folder) / "copied.txt"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path
