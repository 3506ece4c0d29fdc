"""The terminal, where file descriptors 1 and 2 are not the terminal: they are on the log, so that no library can
draw over the screen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver


class TerminalFile(TextIOWrapper):
    """What is drawn. Once the terminal has gone (its window was closed, the connection was lost) nothing is drawn any
    more, and `on_lost` is called: an error would end the thread that writes, and then the program waits for it."""

    lost = False
    on_lost: Callable[[], object] | None = None

    def write(self, text: str) -> int:
        return self._unless_lost(lambda: super(TerminalFile, self).write(text)) or 0

    def flush(self) -> None:
        self._unless_lost(super().flush)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was still to be drawn has nobody to see it
            super().close()

    def _unless_lost(self, act: Callable[[], int | None]) -> int | None:
        if not self.lost:
            try:
                return act()
            except OSError:
                self.lost = True
                if self.on_lost is not None:
                    self.on_lost()
        return None


def terminal_driver(terminal: TerminalFile) -> type[Driver]:
    """A driver class for Textual that draws on `terminal` and reads keys from standard input. Without the terminal the
    application quits."""

    class TerminalDriver(LinuxDriver):
        def __init__(
            self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
        ) -> None:
            super().__init__(app, debug=debug, mouse=mouse, size=size)
            self._file = terminal
            terminal.on_lost = lambda: asyncio.run_coroutine_threadsafe(app.run_action("quit"), self._loop)

        def _sigcont_application(self, *_: Any) -> None:
            # Textual starts its threads once more, also when they were never stopped, and would wait for the first ones
            # at the end. The signal comes without a stop when the terminal goes.
            if self._auto_restart and not self._must_signal_resume:
                self.suspend_application_mode()
            super()._sigcont_application()

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


def open_terminal(descriptor: int | None = None) -> TerminalFile:
    """The terminal as a text file: what `descriptor` is open on, or what standard error was when Python started."""
    source = descriptor if descriptor is not None else sys.__stderr__.fileno() if sys.__stderr__ else 2
    file = FileIO(os.dup(source), "w")
    return TerminalFile(BufferedWriter(file), encoding="utf-8", errors="replace", newline="")
