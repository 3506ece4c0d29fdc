"""The models on this machine: what there is, what fits, and loading one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from rvchat.tui.attachments import size_of
from rvchat.tui.installed import Installed
from rvchat.tui.state import label
from rvchat.tui.widgets.list_of import ListOf, Row


class ModelScreen(ModalScreen[str | None]):
    """Lets the user choose a model to load: returns its name or path, None for none. `loaded` is there now."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close", id="dialog.cancel")]

    def __init__(self, models: Sequence[Installed], *, loaded: str | None, free: int | None) -> None:
        super().__init__(classes="dialog")
        self._models, self._loaded, self._free = models, loaded, free

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static("Models on this machine", classes="question", markup=False)
            yield ListOf()
            memory = f"{size_of(self._free)} of memory is free. " if self._free is not None else ""
            yield Static(f"{memory}Enter loads; Esc during loading ends it.", classes="hint", markup=False)
            yield Input(placeholder="or the path of a folder or a .gguf file", id="path")

    def on_mount(self) -> None:
        rows = [self._row(model) for model in self._models] or [Row("None yet: name one below")]
        entries = self.query_one(ListOf)
        entries.styles.height = min(sum(row.height for row in rows), 12)
        entries.show(rows)
        if self._loaded is not None:
            entries.highlight(self._loaded)
        (entries if self._models else self.query_one(Input)).focus()

    def _row(self, model: Installed) -> Row:
        fits = {True: "fits", False: "needs more memory than is free", None: ""}[model.fits(self._free)]
        facts = [fact for fact in (size_of(model.size) if model.size is not None else "", fits, model.about) if fact]
        current = model.name == self._loaded
        mark = "●" if current else " "
        return Row(label(model.name, 60), model.name, second=" · ".join(facts), mark=mark, current=current)

    @on(ListOf.Chosen)
    def chosen(self, event: ListOf.Chosen) -> None:
        self.dismiss(event.key)

    @on(Input.Submitted)
    def named(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())
