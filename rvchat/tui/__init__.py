"""The terminal application. It shows what the session does and passes on what the user wants; it imports no jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rvchat.config import Paths

if TYPE_CHECKING:
    from rvchat.session.model import OpenModel


@dataclass(frozen=True, slots=True)
class Options:
    """How the application is started.

    `model` is loaded once the screen is drawn; None when there is none to load, and `missing` then says why and what to
    do. `conversation` is opened, else a new one is begun. `terminal` is a file descriptor of the real terminal, for
    where 1 and 2 have been put on the log; None draws on standard error.
    """

    paths: Paths
    open_model: OpenModel
    model: str | None = None
    missing: str = ""
    conversation: str | None = None
    terminal: int | None = None


def run(options: Options) -> int:
    """Shows the application until the user leaves it; returns the exit code."""
    from rvchat.tui import crash  # Textual is imported when it is needed
    from rvchat.tui.app import RvchatApp
    from rvchat.tui.driver import open_terminal, terminal_driver

    with open_terminal(options.terminal) as terminal:
        app = RvchatApp(options, driver_class=terminal_driver(terminal))
        try:
            app.run()
        finally:
            app.close()
        for line in app.last_words:
            print(line, file=terminal)
        if app.failed:
            print(crash.words(app.report, kept=app.kept), file=terminal)
            return 1
        return app.return_code or 0
