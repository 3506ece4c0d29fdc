"""The commands that begin with a slash. The palette lists the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rvchat.tui.attachments import completions
from rvchat.tui.widgets.list_of import Row
from rvchat.tui.widgets.prompt import Suggestions

_NAMING = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]*)|([^\s"]*))\Z')


def _mention(path: str) -> str:
    """How a message names a file; of a folder the beginning, to be gone on with."""
    if not any(letter.isspace() for letter in path):
        return f"@{path}"
    return f'@"{path}' if path.endswith("/") else f'@"{path}"'


@dataclass(frozen=True, slots=True)
class Command:
    """`run` gets what stands behind the name, stripped. `needs` says what that is, empty where nothing is needed;
    `choices` are values it may have; with `lines` it may be several lines."""

    name: str
    help: str
    run: Callable[[str], None]
    needs: str = ""
    choices: Callable[[], list[str]] | None = None
    lines: bool = False


class Commands:
    """Finds commands by what has been typed, and completes them."""

    def __init__(self, commands: list[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    def __iter__(self) -> Iterator[Command]:
        return iter(self._commands.values())

    def is_command(self, text: str) -> bool:
        """Whether `text` is a command: one line that begins with a slash and a letter, not a path; or several where
        the command takes them."""
        first = text.split(maxsplit=1)[0] if text.strip() else ""
        if not text.startswith("/") or not first[1:].isalpha():
            return False
        command = self._commands.get(first[1:])
        return "\n" not in text.strip() or (command is not None and command.lines)

    def find(self, text: str) -> tuple[Command, str] | str:
        """The command and what stands behind it, or what is wrong with `text`."""
        name, *behind = text.strip()[1:].split(maxsplit=1) or [""]
        rest = behind[0] if behind else ""
        command = self._commands.get(name)
        if command is None:
            matching = [c for n, c in self._commands.items() if n.startswith(name)]
            if len(matching) != 1:
                return f"There is no command /{name}. Type / to see them all."
            command = matching[0]
        if command.needs and not rest.strip():
            return f"/{command.name} needs {command.needs}."
        return command, rest.strip()

    def suggest(self, before: str) -> Suggestions | None:
        """Completions for the text before the cursor: of a command, of its value, or of a path behind an @."""
        if before.startswith("/") and "\n" not in before:
            return self._of_commands(before)
        named = _NAMING.search(before)
        if named is None:
            return None
        rows = tuple(Row(path, _mention(path)) for path, _ in completions(named[1] or named[2] or ""))
        return Suggestions(named.start(), rows) if rows else None

    def _of_commands(self, before: str) -> Suggestions | None:
        name, space, rest = before[1:].partition(" ")
        if not space:
            matching = [c for n, c in sorted(self._commands.items()) if n.startswith(name)]
            rows = tuple(Row(f"/{c.name:<11} {c.help}", f"/{c.name}") for c in matching)
            final = frozenset(f"/{c.name}" for c in matching if not c.needs)
            return Suggestions(0, rows, final) if rows else None
        command = self._commands.get(name)
        if command is None or command.choices is None:
            return None
        choices = [choice for choice in command.choices() if choice.casefold().startswith(rest.casefold())]
        rows = tuple(Row(choice, choice) for choice in choices if choice != rest)
        return Suggestions(len(before) - len(rest), rows, frozenset(choices)) if rows else None
