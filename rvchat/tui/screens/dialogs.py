"""Small questions in the middle of the screen, which a click beside them ends as Esc does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from rvchat.tui.widgets.buttons import keyed
from rvchat.tui.widgets.list_of import ListOf, Row

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """What stands in a box; a click outside of it cancels."""

    def __init__(self) -> None:
        super().__init__(classes="dialog")

    def on_click(self, event: events.Click) -> None:
        if not self.query_one(".box").region.contains_point(event.screen_offset):
            self.dismiss(None)


class AskLine(Dialog[str | None]):
    """Asks for one line of text; None when the user thinks better of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel")]

    def __init__(self, question: str, value: str = "", *, may_be_empty: bool = False) -> None:
        super().__init__()
        self._question, self._value, self._may_be_empty = question, value, may_be_empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(self._question, classes="question", markup=False)
            yield Input(self._value)
            take = keyed("Enter", "takes it", "screen.take")
            leave = keyed("Esc", "leaves it as it is", "screen.dismiss(None)")
            yield Static(take + " · " + leave, classes="hint", markup=False)

    @on(Input.Submitted)
    def action_take(self) -> None:
        value = self.query_one(Input).value.strip()
        if value or self._may_be_empty:
            self.dismiss(value)


class Pick(Dialog[str | None]):
    """Lets the user choose one of `rows`; None when the user thinks better of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel")]

    def __init__(self, question: str, rows: Sequence[Row], *, highlight: str = "") -> None:
        super().__init__()
        self._question, self._rows, self._highlight = question, rows, highlight

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(self._question, classes="question", markup=False)
            yield ListOf()
            yield Static(keyed("Esc", "leaves it as it is", "screen.dismiss(None)"), classes="hint", markup=False)

    def on_mount(self) -> None:
        entries = self.query_one(ListOf)
        entries.styles.height = min(sum(row.height for row in self._rows), 14)
        entries.show(self._rows)
        if self._highlight:
            entries.highlight(self._highlight)
        entries.focus()

    @on(ListOf.Chosen)
    def chosen(self, event: ListOf.Chosen) -> None:
        self.dismiss(event.key)
