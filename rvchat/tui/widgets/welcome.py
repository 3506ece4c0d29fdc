"""What an empty conversation shows: what this is, and what to do next."""

from __future__ import annotations

import re

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from rvchat.tui.models.offer import Offer
from rvchat.tui.state import State, label
from rvchat.tui.widgets.hanging import hanging

_KEYS = (
    ("Enter", "sends; Ctrl+J begins a new line"),
    ("Esc", "stops an answer or the loading of a model"),
    ("Ctrl+R", "makes another answer, Alt+Left shows the one before"),
    ("Shift+Up", "goes to the messages: copy, edit, retry, go on"),
    ("Ctrl+B", "shows the conversations, Ctrl+F searches them"),
    ("/", "lists commands; F1 helps, Ctrl+P finds, Ctrl+Q leaves"),
)
_CLICKS = {
    "Ctrl+B": "screen.sidebar",
    "Ctrl+F": "screen.search",
    "Ctrl+L": "app.next_model",
    "Ctrl+O": "app.models",
    "Ctrl+P": "app.command_palette",
    "Ctrl+Q": "app.quit",
    "F1": "app.help",
    "/model": "app.models",
}
_NAMED = re.compile("|".join(rf"{re.escape(name)}(?![\w/])" for name in _CLICKS))


def _clickable(content: Content) -> Content:
    """`content`, in which what is named can be clicked as well."""
    for found in _NAMED.finditer(content.plain):
        content = content.stylize(Style.from_meta({"@click": _CLICKS[found[0]]}), *found.span())
    return content


class Welcome(VerticalScroll, can_focus=False):
    """`first` explains everything once, to someone who has never been here."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._first = False
        self._state = State()
        self._missing = ""
        self._offer: Offer | None = None

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    def show(self, *, first: bool | None = None, state: State | None = None, missing: str | None = None) -> None:
        """Changes what it is about. `missing`: why there is no model and what to do, empty where there is one."""
        self._first = self._first if first is None else first
        self._state = self._state if state is None else state
        self._missing = self._missing if missing is None else missing
        if self.is_mounted and self.display:
            self.query_one(Static).update(self.content())

    def offer(self, offer: Offer | None) -> None:
        """Shows what may be done about models next."""
        self._offer = offer
        self.show()

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def content(self) -> Content:
        parts = [Content.styled("rvchat", "bold $text-primary"), *self._next_steps()]
        if self._first:
            parts.append(
                Content(
                    "A chat with a model that runs here, in this terminal. Nothing you write leaves this machine; "
                    "conversations are kept in its data folder."
                )
            )
        lines = [hanging(key, about, 10, self.content_size.width) for key, about in _KEYS]
        if not self._first:
            lines = lines[-1:]
        elif self._offer is not None:  # which takes its room
            lines = [*lines[:2], lines[-1]]
        parts.append(Content("\n").join(lines))
        return _clickable(Content("\n\n").join(parts))

    def _next_steps(self) -> list[Content]:
        if self._offer is None:
            return [self._next_step()]
        heading, *lines = self._offer.words
        offer = Content.styled(heading, "bold $text-accent") + Content("".join(f"\n{line}" for line in lines))
        without = self._state.model is None and not self._state.loading and self._state.activity != "starting"
        return [offer] if without else [offer, Content("Meanwhile: ") + self._next_step()]

    def _next_step(self) -> Content:
        state = self._state
        if state.model is not None:
            words = f"{label(state.model.name, 40)} is ready. Write something below."
            if not state.model.chats:
                words += " It is a pretrained model: it continues a transcript rather than answering."
            return Content(words)
        if state.loading or state.activity == "starting":
            return Content(
                "The model is being loaded. You can write meanwhile; it is answered as soon as that is done."
            )
        if self._missing:
            return Content.styled(self._missing, "$text-warning") + " /model names one from here."
        return Content.styled("There is no model.", "$text-warning") + " /model shows what is on this machine."
