"""The terminal, where file descriptors 1 and 2 are not the terminal: they are on the log, so that no library can
draw over the screen."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Any

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver


def terminal_driver(terminal: TextIOWrapper) -> type[Driver]:
    """A driver class for Textual that draws on `terminal` and reads keys from standard input."""

    class TerminalDriver(LinuxDriver):
        def __init__(
            self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
        ) -> None:
            super().__init__(app, debug=debug, mouse=mouse, size=size)
            self._file = terminal

        def _get_terminal_size(self) -> tuple[int, int]:
            return terminal_size(terminal)

    return TerminalDriver


def terminal_size(terminal: TextIOWrapper) -> tuple[int, int]:
    """Columns and rows. COLUMNS and LINES are not asked: a window that is resized does not change them."""
    try:
        columns, rows = os.get_terminal_size(terminal.fileno())
    except OSError:
        return 80, 24
    return columns or 80, rows or 24


def open_terminal(descriptor: int | None = None) -> TextIOWrapper:
    """The terminal as a text file: what `descriptor` is open on, or what standard error was when Python started."""
    source = descriptor if descriptor is not None else sys.__stderr__.fileno() if sys.__stderr__ else 2
    return os.fdopen(os.dup(source), "w", encoding="utf-8", errors="replace", newline="")
