"""Where everything goes that is not for the user's eyes: what jax and XLA write, warnings, and our own log.

C++ code writes to file descriptors 1 and 2 whatever Python thinks of them. So these two are put on the log file before
jax is imported, and what rvchat itself shows goes to copies of the real ones, which `sys.stdout` and `sys.stderr` then
stand for. A program started meanwhile inherits the log; `Screen.lent` gives it the real ones.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rvchat.config import private_folder

NAME = "rvchat.log"
KEPT = 3
ROTATE_AT = 1_000_000


@dataclass(frozen=True, slots=True)
class Screen:
    """The real standard output and error, as file descriptors, and the log's file (None where it cannot be written)."""

    out: int
    err: int
    log: Path | None

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Descriptors 1 and 2 are the real ones again meanwhile: for a program that is to use the screen."""
        kept = os.dup(1), os.dup(2)
        try:
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            yield
        finally:
            for target, log in zip((1, 2), kept, strict=True):
                os.dup2(log, target)
                os.close(log)


def divert(folder: Path) -> Screen:
    """Puts descriptors 1 and 2 on `folder`/rvchat.log, and `sys.stdout` and `sys.stderr` on the real ones.

    A log of more than a megabyte is set aside first; three of those are kept. Where the folder cannot be written, what
    would be logged is dropped: a log is no reason not to start.
    """
    path: Path | None = private_folder_or_none(folder)
    descriptor = -1
    if path is not None:
        path = path / NAME
        with contextlib.suppress(OSError):
            _rotate(path)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            path = None
    if path is None:
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    screen = Screen(os.dup(1), os.dup(2), path)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = sys.__stdout__ = _writer(screen.out, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _writer(screen.err, sys.stderr)  # type: ignore[misc]
    _log_to(2)
    return screen


def private_folder_or_none(folder: Path) -> Path | None:
    try:
        return private_folder(folder)
    except OSError:
        return None


def _writer(descriptor: int, like: TextIO) -> io.TextIOWrapper:
    """A text file on `descriptor`, encoded as `like` was; a character it cannot encode is escaped, not an error."""
    raw = os.fdopen(descriptor, "wb", closefd=False)
    encoding = getattr(like, "encoding", None) or "utf-8"
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=os.isatty(descriptor))


def _log_to(descriptor: int) -> None:
    """Python's log, warnings and fatal tracebacks to `descriptor`, which C code writes to as well."""
    stream = io.TextIOWrapper(
        os.fdopen(descriptor, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    faulthandler.enable(file=descriptor)


def _rotate(path: Path) -> None:
    if path.stat().st_size < ROTATE_AT:
        return
    for number in range(KEPT, 0, -1):
        source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if source.exists():
            source.replace(path.with_name(f"{path.name}.{number}"))
