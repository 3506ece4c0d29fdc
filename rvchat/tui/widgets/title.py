"""The line above the conversation: its title, and for the mouse what keys do everywhere."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from rvchat.tui.widgets.buttons import button, fitting

_ACTS = (("new", "screen.new"), ("help", "app.help"), ("models", "app.models"), ("settings", "app.settings"))
_LEAST = 20  # cells for the title before there are buttons beside it


class TitleLine(Static):
    """The title with a mark before it that shows and hides the conversations, and buttons at the right as far as there
    is room for them."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._title = ""

    def show(self, title: str) -> None:
        self._title = title
        self.update(self.line(self.content_size.width))

    def on_resize(self) -> None:
        self.show(self._title)

    def line(self, width: int) -> Content:
        """The line for `width` cells."""
        acts = fitting([button(words, action) for words, action in _ACTS], width - _LEAST, " · ")
        room = width - acts.cell_length - (1 if acts.plain else 0)
        start = button("≡", "screen.sidebar") + " " + Content.styled(self._title, "bold")
        start = start.truncate(max(room, 1), ellipsis=True, pad=True)
        return start + " " + acts if acts.plain else start
