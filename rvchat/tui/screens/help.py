"""Keys and commands, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from rvchat.tui.commands import Command


@dataclass(frozen=True, slots=True)
class Line:
    """What is typed or pressed, what it does, and the name by which the settings can change it."""

    typed: str
    does: str
    name: str = ""


class HelpScreen(ModalScreen[None]):
    """`sections`: headings and the lines under them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss(None)", "Close", id="help.close"),
    ]

    def __init__(self, sections: Sequence[tuple[str, Sequence[Line]]]) -> None:
        super().__init__(classes="dialog")
        self._sections = sections

    def compose(self) -> ComposeResult:
        width = min(max((len(line.typed) for _, lines in self._sections for line in lines), default=0), 30)
        with VerticalScroll(classes="box help"):
            for heading, lines in self._sections:
                yield Static(heading, classes="question", markup=False)
                for line in lines:
                    name = f"  {line.name}" if line.name else ""
                    parts = ((line.typed.ljust(width), "$text-accent"), f"  {line.does}", (name, "$text-disabled"))
                    yield Static(Content.assemble(*parts), markup=False)
                yield Static("", markup=False)
            yield Static("config.toml can give other keys to what has a name behind it.", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


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


_NAMES = {"ctrl": "Ctrl", "shift": "Shift", "alt": "Alt", "pageup": "PgUp", "pagedown": "PgDn", "slash": "/"}


def named(key: str) -> str:
    """ "ctrl+n" as "Ctrl+N", "up" as "Up", "c" as "c"."""
    parts = key.split("+")
    return "+".join(
        _NAMES.get(part) or (part if key == part and len(part) == 1 else part.capitalize()) for part in parts
    )
