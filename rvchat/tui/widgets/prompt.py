"""Where the user writes."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import split_graphemes
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from rvchat.store.printable import printable


def _letters(text: str) -> list[tuple[int, int]]:
    """Start and end of each letter as a reader counts them: with its accents, with all parts of an emoji."""
    return [(start, end) for start, end, _ in split_graphemes(text)[0]]


class _Whole(Text):
    """A line in which no style, such as the cursor's, parts a letter: its pieces would take more room than it."""

    def stylize(self, style: str | Style, start: int = 0, end: int | None = None) -> None:
        if end is not None and not self.plain.isascii():
            letters = _letters(self.plain)
            end = min((stop for _, stop in letters if stop >= end), default=end)
            start = max((begin for begin, _ in letters if begin <= start), default=start)
        super().stylize(style, start, end)


class Prompt(TextArea):
    """Several lines of text. Enter sends; Shift+Enter where the terminal can tell it, and Ctrl+J, begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="prompt.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", id="prompt.newline"),
    ]

    class Sent(Message):
        """The user wants `text` to be sent."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Write a message. Enter sends, Ctrl+J begins a new line.",
        )

    async def _on_key(self, event: events.Key) -> None:
        """Acts on this widget's own keys here and now. Left to Textual they would go up to the application first, and
        keys typed after them in the same moment would be taken before them."""
        action = next((b.action for b in self._bindings.key_to_bindings.get(event.key, ())), None)
        if action is not None:
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    def get_line(self, line_index: int) -> Text:
        return _Whole(self.document.get_line(line_index), end="", no_wrap=True)

    def get_cursor_left_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        if column == 0:
            return super().get_cursor_left_location()
        return row, max(start for start, _ in _letters(self.document.get_line(row)) if start < column)

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column >= len(line):
            return super().get_cursor_right_location()
        return row, min(end for _, end in _letters(line) if end > column)

    def action_send(self) -> None:
        """Takes the text out at once: what is typed from now on belongs to the next message."""
        if self.text.strip():
            self.post_message(self.Sent(self.take()))

    def give_back(self, text: str) -> None:
        """What could not be sent, before what has been written since."""
        self.text = f"{text}\n{self.text}" if self.text else text
        self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        self.insert("\n", maintain_selection_offset=False)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert(printable(event.text), maintain_selection_offset=False)

    def take(self) -> str:
        """The text, leaving the input empty."""
        text = self.text
        self.clear()
        return text
