"""Keys and commands, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from rvchat.tui.commands import Command
from rvchat.tui.screens.dialogs import Dialog
from rvchat.tui.widgets.hanging import hanging


@dataclass(frozen=True, slots=True)
class Line:
    """What is typed or pressed, what it does, and the name by which the settings can change it."""

    typed: str
    does: str
    name: str = ""


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


def keys_of(bindings: Iterable[BindingType], keymap: dict[str, str]) -> list[Line]:
    """Keys as they are named on a keyboard, and what they do, with what the user's settings have changed."""
    lines: list[Line] = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.description:
            keys = keymap.get(binding.id or "", binding.key).split(",")
            typed = " ".join(named(key.strip()) for key in keys)
            lines.append(Line(typed, binding.description, binding.id or ""))
    return lines


def key_of(bindings: Iterable[BindingType], name: str, keymap: dict[str, str]) -> str:
    """The first key of the binding `name`, as it is named on a keyboard."""
    return next(line.typed.split()[0] for line in keys_of(bindings, keymap) if line.name == name)


def commands_of(commands: Iterable[Command]) -> list[Line]:
    return [Line(f"/{command.name}", command.help) for command in sorted(commands, key=lambda c: c.name)]


_NAMES = {
    "escape": "Esc",
    "delete": "Del",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "slash": "/",
    "underscore": "_",
}


def named(key: str) -> str:
    """ "ctrl+n" as "Ctrl+N", "up" as "Up", "c" as "c"."""
    parts = key.split("+")
    return "+".join(
        _NAMES.get(part) or (part if key == part and len(part) == 1 else part.capitalize()) for part in parts
    )
