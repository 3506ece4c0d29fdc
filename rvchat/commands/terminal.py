"""Lines for people on standard error, answers on standard output."""

from __future__ import annotations

import json
import sys

from rvchat.store.printable import printable
from rvchat.store.values import terminal_safe
from rvchat.types import (
    Event,
    Loading,
    Notice,
    Prefill,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCalled,
)


def say(text: str) -> None:
    """A line on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def write(text: str) -> None:
    """A piece of an answer on standard output, seen at once."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def print_json(value: object, indent: int | None = None) -> None:
    """A value as JSON on standard output, with nothing in it that a terminal obeys."""
    print(terminal_safe(json.dumps(value, ensure_ascii=False, indent=indent)), flush=True)


class StatusLine:
    """What happens now, on one line of a terminal that is written over. Nothing where standard error is a file."""

    def __init__(self) -> None:
        self._shown = 0
        self._on = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._on:
            line = printable(text)[:70]
            sys.stderr.write("\r" + line.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(line)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0

    def loading(self, event: Loading) -> None:
        part = "" if event.fraction is None else f" {event.fraction:.0%}"
        self.show(f"Loading: {event.stage}{part}")

    def prefill(self, event: Prefill) -> None:
        if event.done < event.total:
            self.show(f"Reading: {event.done} of {event.total} tokens")


class Shown:
    """One answer on the way to the terminal."""

    def __init__(self, quiet: bool, status: StatusLine) -> None:
        self._quiet = quiet
        self._status = status
        self._wrote = False
        self._thinking = False

    def happened(self, event: Event) -> None:
        match event:
            case Prefill():
                self._status.prefill(event)
            case ReasoningDelta():
                self._think(event.text)
            case TextDelta():
                self._answer(event.text)
            case ToolCalled():
                self._remark(f"The model asks for {called(event.call)}; rvchat runs no tools.")
            case Notice():
                self._remark(event.text)

    def ended(self) -> None:
        """The end of the last line."""
        self._stop_thinking()
        self._status.clear()
        if self._wrote:
            write("\n")

    def _answer(self, text: str) -> None:
        self._stop_thinking()
        self._status.clear()
        if not self._quiet:
            write(text)
            self._wrote = True

    def _think(self, text: str) -> None:
        self._status.clear()
        if not self._quiet:
            sys.stderr.write(printable(text))
            sys.stderr.flush()
            self._thinking = True

    def _stop_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            say("")

    def _remark(self, text: str) -> None:
        self._stop_thinking()
        self._status.clear()
        say(text)


def called(call: ToolCall) -> str:
    """A tool call as one would write it."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments or call.raw})"
