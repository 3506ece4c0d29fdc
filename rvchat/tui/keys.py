"""Keys as they are named on a keyboard, with what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

_NAMES = {
    "escape": "Esc",
    "delete": "Del",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "slash": "/",
    "underscore": "_",
}


@dataclass(frozen=True, slots=True)
class Line:
    """What is typed or pressed, what it does, and the name by which the settings can change it."""

    typed: str
    does: str
    name: str = ""


def keys_of(bindings: Iterable[BindingType], keymap: Mapping[str, str]) -> list[Line]:
    """Keys as they are named on a keyboard, and what they do, with what the user's settings have changed."""
    lines: list[Line] = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.description:
            keys = keymap.get(binding.id or "", binding.key).split(",")
            typed = " ".join(named(key.strip()) for key in keys)
            lines.append(Line(typed, binding.description, binding.id or ""))
    return lines


def key_of(bindings: Iterable[BindingType], name: str, keymap: Mapping[str, str]) -> str:
    """The first key of the binding `name`, as it is named on a keyboard; empty where the user has taken it away."""
    return next((line.typed.split() or [""])[0] for line in keys_of(bindings, keymap) if line.name == name)


def named(key: str) -> str:
    """ "ctrl+n" as "Ctrl+N", "up" as "Up", "c" as "c"."""
    parts = key.split("+")
    return "+".join(
        _NAMES.get(part) or (part if key == part and len(part) == 1 else part.capitalize()) for part in parts
    )
