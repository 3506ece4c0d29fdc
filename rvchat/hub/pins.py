"""What the hub said of a repository when a model of it was first asked for: a commit, its files, sizes and hashes.

Kept in the data folder, one file for each model: every later start and every resumed download works on the same files,
whatever has been published since, and whatever becomes of other models of the same repository."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rvchat.config import Paths, private_folder
from rvchat.errors import RvchatError

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`blob`: what its bytes hash to, and its name in the cache: the sha256 of a large file (64 digits), git's id of a
    small one (40)."""

    name: str
    size: int
    blob: str

    def __post_init__(self) -> None:
        # These become paths on this machine.
        parts = self.name.split("/")
        if not self.name.isprintable() or "\\" in self.name or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{self.name!r} is no name for a file")
        if not _HASH.fullmatch(self.blob):
            raise ValueError(f"{self.name} has the hash {self.blob!r}")
        if not 0 <= self.size < 1 << 50:
            raise ValueError(f"{self.name} has the size {self.size!r}")

    def hash(self) -> Hash:
        """A hash that ends in `blob` when it has seen the whole file."""
        if len(self.blob) == 64:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Pin:
    """`asked`: the branch, tag or commit that was named; `commit`: what it was then. `files`: all of the repository.
    `checked`: of files whose hash has been found right, their size and time of change then. `model`: the name of the
    GGUF file that is the model; empty where it is the weights in safetensors."""

    repo: str
    asked: str
    commit: str
    files: tuple[RemoteFile, ...]
    checked: dict[str, tuple[int, int]] = field(default_factory=dict)
    model: str = ""

    def __post_init__(self) -> None:
        if not _HASH.fullmatch(self.commit):
            raise ValueError(f"{self.repo} has the commit {self.commit!r}")
        if self.model and self.file(self.model) is None:
            raise ValueError(f"{self.repo} has no file {self.model!r}")

    def file(self, name: str) -> RemoteFile | None:
        return next((file for file in self.files if file.name == name), None)


def file_of(paths: Paths, repo: str, asked: str, model: str = "", *, coming: bool = False) -> Path:
    named = f"{repo}@{asked}:{model}" if model else f"{repo}@{asked}"
    place = re.sub(r"[^\w.-]", "--", named, flags=re.ASCII)
    return _folder(paths, coming) / f"{place}.json"


def everyone(paths: Paths, *, coming: bool = False) -> Iterator[Pin]:
    """All pins but damaged ones: the hub says again what those said. `coming`: of versions that are to replace what is
    here, and are not whole yet."""
    folder = _folder(paths, coming)
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        if (pin := _read(file)) is not None:
            yield pin


def _folder(paths: Paths, coming: bool) -> Path:
    return paths.models / "pins" / ("coming" if coming else "")


def _read(file: Path) -> Pin | None:
    try:
        return _pin(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(paths: Paths, pin: Pin, *, coming: bool = False) -> None:
    """Keeps the pin, in one step. Raises RvchatError when it cannot."""
    write_json(file_of(paths, pin.repo, pin.asked, pin.model, coming=coming), asdict(pin))


def write_json(file: Path, value: object) -> None:
    """Replaces a file in one step. Raises RvchatError when it cannot."""
    try:
        private_folder(file.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=".pin", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                json.dump(value, out, indent=1)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Check its folder and the room there, or name another with --data (or RVCHAT_DATA)."
        raise RvchatError(f"{file} cannot be written: {reason}", hint) from error


def forget(paths: Paths, pin: Pin, *, coming: bool = False) -> None:
    file_of(paths, pin.repo, pin.asked, pin.model, coming=coming).unlink(missing_ok=True)


def _pin(values: dict[str, Any]) -> Pin:
    files = tuple(RemoteFile(**file) for file in values["files"])
    checked = {str(name): (int(size), int(time)) for name, (size, time) in values["checked"].items()}
    return Pin(str(values["repo"]), str(values["asked"]), values["commit"], files, checked, str(values["model"]))
