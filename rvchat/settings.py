"""The user's settings: config.toml, read with forgiveness and written without touching what the user wrote there.

A value that cannot be used is named in `problems` and its default stands. A file that is not TOML is never written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from rvchat.config import private_folder
from rvchat.errors import BadInputError
from rvchat.types import LONGEST_ANSWER, Sampling

DEFAULT_THEME = "rvchat-dark"

TEMPLATE = """\
# Settings of rvchat. It reads this file when it starts and changes only the lines of what is changed in the
# application: comments, order and what it does not know stay as they are.

# The model that is loaded at the start: a name, a folder or a .gguf file.
# model = "starter"

# rvchat-dark, rvchat-light, ansi-dark and ansi-light (the terminal's own 16 colours), or another of the application's.
# theme = "rvchat-dark"

# What a new conversation begins with.
[conversation]
# system = ""
# thinking = false
# max_new_tokens = 2048
# temperature = 1.0
# top_p = 0.95
# top_k = 64
# min_p = 0.0
# repetition_penalty = 1.0
# seed = 7

# System prompts under a name, to choose from in a conversation's settings.
[personas]
# Translator = "You translate everything into French."

# Keys by the name of what they do; the application's help has the names. Several keys are parted by commas.
[keys]
# "chat.new" = "ctrl+n"
"""

_SAMPLING = tuple(f.name for f in fields(Sampling))
_SECTIONS = ("conversation", "personas", "keys")


@dataclass(frozen=True, slots=True)
class Settings:
    """What config.toml says. `sampling`, `system`, `thinking` and `max_new_tokens` are for new conversations."""

    model: str | None = None
    theme: str = DEFAULT_THEME
    system: str = ""
    thinking: bool = False
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    personas: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read(path: Path) -> Settings:
    """The settings in the file `path`; the defaults where there is none."""
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        return Settings(problems=(f"{path} cannot be read: {error}. The defaults are used",))
    return _Reading(document).settings()


class _Reading:
    """Takes values out of a parsed file and notes what is wrong with it."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._problems: list[str] = []

    def settings(self) -> Settings:
        unknown = set(self._document) - {"model", "theme", *_SECTIONS}
        self._problems.extend(f"unknown setting {name}" for name in sorted(unknown))
        conversation = self._section("conversation")
        known = {"system", "thinking", "max_new_tokens", *_SAMPLING}
        self._problems.extend(f"unknown setting conversation.{name}" for name in sorted(set(conversation) - known))
        maximum = self._typed(conversation, "max_new_tokens", int, None)
        if maximum is not None and not 1 <= maximum <= LONGEST_ANSWER:
            self._problems.append(f"max_new_tokens is {maximum}; it must be between 1 and {LONGEST_ANSWER}")
            maximum = None
        return Settings(
            model=self._typed(self._document, "model", str, None),
            theme=self._typed(self._document, "theme", str, DEFAULT_THEME),
            system=self._typed(conversation, "system", str, ""),
            thinking=self._typed(conversation, "thinking", bool, False),
            max_new_tokens=maximum,
            sampling=self._sampling(conversation),
            personas=self._texts("personas"),
            keys=self._texts("keys"),
            problems=tuple(self._problems),
        )

    def _section(self, name: str) -> dict[str, Any]:
        section = self._document.get(name, {})
        if isinstance(section, dict):
            return section
        self._problems.append(f"{name} is {section!r}, not a section: write [{name}]")
        return {}

    def _typed(self, table: dict[str, Any], name: str, kind: type, default: Any) -> Any:
        value = table.get(name, default)
        if value is default or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            return value
        self._problems.append(f"{name} is {value!r}, not of the kind {kind.__name__}")
        return default

    def _sampling(self, table: dict[str, Any]) -> Sampling:
        sampling = Sampling()
        for name in _SAMPLING:
            if name not in table:
                continue
            value = table[name]
            whole = name in ("top_k", "seed")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                self._problems.append(f"{name} is {value!r}, not a {'whole number' if whole else 'number'}")
                continue
            try:
                change: dict[str, Any] = {name: value if whole else float(value)}
                sampling = replace(sampling, **change)
            except ValueError as error:
                self._problems.append(str(error))
            except OverflowError:
                self._problems.append(f"{name} is a number too large to be used")
        return sampling

    def _texts(self, name: str) -> dict[str, str]:
        texts: dict[str, str] = {}
        for key, value in self._section(name).items():
            if isinstance(value, str):
                texts[key] = value
            else:
                self._problems.append(f"{name}.{key} is {value!r}, not a text")
        return texts


def for_new_conversations(changes: Mapping[str, Any]) -> dict[str | tuple[str, ...], Any]:
    """What to `write` so that new conversations begin with `changes`: system, sampling, max_new_tokens, thinking."""
    values: dict[str | tuple[str, ...], Any] = {}
    for name, value in changes.items():
        if isinstance(value, Sampling):
            values.update({f"conversation.{field}": getattr(value, field) for field in _SAMPLING})
        else:
            values[f"conversation.{name}"] = value if value != "" else None
    return values


def write(path: Path, changes: Mapping[str | tuple[str, ...], Any]) -> None:
    """Sets the values in `changes`, named like "theme", "conversation.temperature" or ("personas", "Name"); None takes
    a setting out. All other lines of the file stay as they are. The file is replaced in one step.

    BadInputError: what is there is not TOML, so nothing is written.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = TEMPLATE
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path} is not text in UTF-8: {error}", "Mend the file; it has not been changed."
        ) from error
    try:
        document = tomlkit.parse(text)
        for name, value in changes.items():
            _set(document, name.split(".", 1) if isinstance(name, str) else name, value)
        _replace(path, tomlkit.dumps(document))
    except TOMLKitError as error:
        raise BadInputError(f"{path} is not valid TOML: {error}", "Mend the file; it has not been changed.") from error
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from error


def _set(document: tomlkit.TOMLDocument, name: Sequence[str], value: Any) -> None:
    table: Any = document
    *sections, key = name
    for section in sections:
        if section not in table:
            if value is None:
                return
            table[section] = tomlkit.table()
        table = table[section]
        if not isinstance(table, Table):
            raise BadInputError(f"{section} is not a section", f"Write [{section}] in the settings file.")
    if value is None:
        if key in table:
            del table[key]
    else:
        table[key] = value


def _replace(path: Path, text: str) -> None:
    folder = private_folder(path.parent)
    target = path.resolve()  # a link to a file kept elsewhere stays a link
    descriptor, name = tempfile.mkstemp(prefix=".config", dir=target.parent if target.parent.exists() else folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
