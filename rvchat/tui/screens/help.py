"""Keys and commands, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from rvchat.tui.commands import Command
from rvchat.tui.keys import Line
from rvchat.tui.screens.dialogs import Dialog
from rvchat.tui.widgets.hanging import hanging

PALETTE = Line("Ctrl+P", "Find a command, a conversation, a model or a theme by its name")

WRITTEN = (
    Line("/", "Lists the commands"),
    Line("@", "Names a text file that goes along: @notes.md"),
    Line("Ctrl+A Ctrl+E", "To the start, to the end of the line"),
    Line("Ctrl+W Ctrl+U Ctrl+K", "Delete a word, to the start, to the end of the line"),
    Line("Shift+arrows", "Mark; Ctrl+C copies, Ctrl+X cuts, Ctrl+V puts in"),
)
"""What the input understands besides its own keys."""

SHOWN = (
    Line("12.5 tok/s", "Tokens a second of the last answer; a token is a word or a part of one"),
    Line("first token", "How long it took until the answer began"),
    Line("▰▱▱▱ 3.2k/32k", "Tokens of the conversation, of those that the model can see at once"),
)
"""What the status line says."""


class Section(Static):
    """The lines under one heading."""

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__("", markup=False)
        self._lines = lines
        self._names = False

    def on_resize(self) -> None:
        self.show(names=self._names)

    def show(self, *, names: bool) -> None:
        """With `names`, each with that by which the settings can change it."""
        self._names = names
        about = [(line, f"{line.does}  ({line.name})" if names and line.name else line.does) for line in self._lines]
        width = self.content_size.width
        indent = min(max((len(line.typed) for line in self._lines), default=0) + 2, max(width // 2, 1))
        self.update(Content("\n").join(hanging(line.typed, words, indent, width) for line, words in about))


class HelpScreen(Dialog[None]):
    """`sections`: headings and the lines under them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss(None)", "Close", id="help.close"),
        Binding("n", "names", "Names of the keys", id="help.names"),
    ]

    def __init__(self, sections: Sequence[tuple[str, Sequence[Line]]]) -> None:
        super().__init__()
        self._sections = sections
        self._with_names = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box help") as box:
            box.border_subtitle = "Esc closes · n shows the names of the keys for config.toml"
            for heading, lines in self._sections:
                yield Static(heading, classes="question", markup=False)
                yield Section(lines)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_names(self) -> None:
        """Shows by what names config.toml can give other keys to what they do."""
        self._with_names = not self._with_names
        for section in self.query(Section):
            section.show(names=self._with_names)


def commands_of(commands: Iterable[Command]) -> list[Line]:
    return [Line(f"/{command.name}", command.help) for command in sorted(commands, key=lambda c: c.name)]
