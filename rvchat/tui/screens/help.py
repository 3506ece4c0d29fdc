"""Keys and commands, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from rvchat.tui.commands import Command


class HelpScreen(ModalScreen[None]):
    """`sections`: a heading and its lines, each what is typed or pressed and what it does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss(None)", "Close", id="help.close"),
    ]

    def __init__(self, sections: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        super().__init__(classes="dialog")
        self._sections = sections

    def compose(self) -> ComposeResult:
        width = min(max((len(key) for _, lines in self._sections for key, _ in lines), default=0), 24)
        with VerticalScroll(classes="box help"):
            for heading, lines in self._sections:
                yield Static(heading, classes="question", markup=False)
                for key, about in lines:
                    yield Static(Content.styled(key.ljust(width), "$text-accent") + f"  {about}", markup=False)
                yield Static("", markup=False)
            yield Static("Keys can be changed in config.toml, by the names in dim.", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def keys_of(bindings: Iterable[BindingType], keymap: dict[str, str]) -> list[tuple[str, str]]:
    """Keys as they are named on a keyboard, and what they do, with what the user's settings have changed."""
    lines: list[tuple[str, str]] = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.description:
            keys = keymap.get(binding.id or "", binding.key).split(",")
            lines.append((" ".join(named(key.strip()) for key in keys), f"{binding.description}  ({binding.id})"))
    return lines


def commands_of(commands: Iterable[Command]) -> list[tuple[str, str]]:
    return [(f"/{command.name}", command.help) for command in sorted(commands, key=lambda c: c.name)]


_NAMES = {"ctrl": "Ctrl", "shift": "Shift", "alt": "Alt", "pageup": "PgUp", "pagedown": "PgDn", "slash": "/"}


def named(key: str) -> str:
    """ "ctrl+n" as "Ctrl+N", "up" as "Up"."""
    return "+".join(
        _NAMES.get(
            part, part.upper() if len(part) == 1 and "+" in key else part.capitalize() if len(part) > 1 else part
        )
        for part in key.split("+")
    )
