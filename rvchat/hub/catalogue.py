"""The models that rvchat knows by name, and how any other is named: catalogue.toml, and the user's models.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rvchat.config import Paths
from rvchat.engine.config import ModelConfig
from rvchat.errors import BadInputError, ModelError, RvchatError
from rvchat.hub import REPOSITORY, disk
from rvchat.types import Sampling

OWN = Path(__file__).with_name("catalogue.toml")
USERS = "models.toml"
FORMATS = ("bf16", "w4a16", "q4_0")
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Licence:
    name: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A model on the hub. What only the catalogue knows is empty or None for one that is named by its repository.

    `format` is how its weights are stored, `embedding` the type of its embeddings. `file`: a part of the name of the
    GGUF file that is meant. `revision`: a branch, a tag or a commit."""

    name: str
    repo: str
    file: str = ""
    revision: str = DEFAULT_REVISION
    title: str = ""
    format: str = ""
    embedding: str = ""
    config: ModelConfig | None = None
    chats: bool | None = None
    licence: Licence | None = None
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """`problems`: what could not be used of the user's file, in sentences."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()

    def find(self, name: str) -> Entry | None:
        """The entry of a name or a repository (`owner/name`, `owner/name:FILE`, either with `@revision`). One that the
        catalogue does not have is made from what its repository's name says; None for what is no such name."""
        wanted = name.lower()
        for entry in self.entries:
            if wanted in (entry.name.lower(), entry.repo.lower()):
                return entry
        match = REPOSITORY.fullmatch(name)
        if match is None:
            return self._revised(name)
        repo, file, revision = match["repo"], match["file"] or "", match["revision"] or DEFAULT_REVISION
        known = next((e for e in self.entries if e.repo.lower() == repo.lower()), None)
        if known is not None:
            return replace(known, name=name, file=file or known.file, revision=revision)
        return Entry(name, repo, file, revision)

    def _revised(self, name: str) -> Entry | None:
        short, at, revision = name.partition("@")
        entry = next((e for e in self.entries if e.name.lower() == short.lower()), None)
        return replace(entry, name=name, revision=revision) if entry and at and revision else None


@disk.reading()
def read(paths: Paths) -> Catalogue:
    """The catalogue with what the user's models.toml adds. What is wrong there is named in `problems` and left out."""
    own = _Reading.of(OWN)
    own.raise_problems()
    users = paths.settings / USERS
    if not users.exists():
        return Catalogue(tuple(own.entries()))
    added = _Reading.of(users, own)
    entries = {entry.name: entry for entry in [*own.entries(), *added.entries()]}
    return Catalogue(tuple(entries.values()), tuple(added.problems))


class _Reading:
    """One file. `base`: the file whose shapes and licences it may use."""

    def __init__(self, path: Path, document: Mapping[str, Any], base: _Reading | None) -> None:
        self.path, self.problems = path, list[str]()
        self.licences: dict[str, Licence] = dict(base.licences) if base else {}
        self.shapes: dict[str, tuple[str, ModelConfig]] = dict(base.shapes) if base else {}
        self._models: list[Entry] = []
        for section, take in (("licences", self._licence), ("shapes", self._shape)):
            table = document.get(section, {})
            if not isinstance(table, dict):
                self.problems.append(f"{path}: {section} is {table!r}; write [{section}.NAME]")
                table = {}
            for name, values in table.items():
                self._take(f"{section}.{name}", lambda take=take, name=name, values=values: take(name, values))
        models = document.get("models", [])
        if not isinstance(models, list):
            self.problems.append(f"{path}: models is {models!r}; write [[models]]")
            models = []
        for number, values in enumerate(models, 1):
            self._take(f"model {number}", lambda values=values: self._model(values))

    @classmethod
    def of(cls, path: Path, base: _Reading | None = None) -> _Reading:
        try:
            return cls(path, tomllib.loads(path.read_text(encoding="utf-8")), base)
        except (OSError, ValueError) as error:
            reading = cls(path, {}, base)
            reading.problems.append(f"{path} cannot be read: {error}")
            return reading

    def entries(self) -> list[Entry]:
        return self._models

    def raise_problems(self) -> None:
        if self.problems:
            raise RvchatError("; ".join(self.problems))

    def _take(self, what: str, act: Any) -> None:
        try:
            act()
        except (RvchatError, TypeError, ValueError, KeyError, AttributeError) as error:
            message = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            self.problems.append(f"{self.path}: {what} cannot be used: {message}")

    def _licence(self, name: str, values: Mapping[str, Any]) -> None:
        self.licences[name] = Licence(name, _text(values, "title"), _text(values, "url"))

    def _shape(self, name: str, values: Mapping[str, Any]) -> None:
        settings = dict(values)
        title = settings.pop("title", name)
        period = settings.pop("period", None)
        if period is not None:
            layers = settings["num_hidden_layers"]
            settings["layer_types"] = [
                "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)
            ]
        self.shapes[name] = title, ModelConfig.from_hf(settings)

    def _model(self, values: Mapping[str, Any]) -> None:
        repo, format = _text(values, "repo"), values.get("format", "")
        if REPOSITORY.fullmatch(repo) is None or ":" in repo or "@" in repo:
            raise BadInputError(f"{repo!r} is no repository: write owner/name")
        if format not in ("", *FORMATS):
            raise BadInputError(f"format {format!r} is none of {', '.join(FORMATS)}")
        title, config = self.shapes[_text(values, "shape")] if "shape" in values else ("", None)
        licence = self.licences[_text(values, "licence")] if "licence" in values else None
        chats = values.get("chats")
        if chats not in (None, True, False):
            raise BadInputError(f"chats is {chats!r}; it must be true or false")
        self._models.append(
            Entry(
                name=_text(values, "name", repo.partition("/")[2].lower()),
                repo=repo,
                file=_text(values, "file", ""),
                revision=_text(values, "revision", DEFAULT_REVISION),
                title=title,
                format=format,
                embedding=_text(values, "embedding", "Q6_K" if format == "q4_0" else "BF16"),
                config=config,
                chats=chats,
                licence=licence,
                sampling=Sampling(**values.get("sampling", {})),
            )
        )


def _text(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = values[name] if default is None else values.get(name, default)
    if not isinstance(value, str):
        raise BadInputError(f"{name} is {value!r}, not a text")
    return value


def unknown(name: str) -> ModelError:
    return ModelError(
        f"There is no model named {name!r}",
        "rvchat models lists them. Or name a repository (owner/name), a folder with a config.json, or a .gguf file.",
    )
