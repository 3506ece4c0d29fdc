"""What there is to choose from: the catalogue and what is installed, each with what it needs and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rvchat.config import Paths
from rvchat.engine.checkpoint import Checkpoint, open_checkpoint
from rvchat.engine.config import ModelConfig, parameter_count
from rvchat.errors import ModelError
from rvchat.hub import catalogue, fit, local, needed, partials
from rvchat.hub.catalogue import Catalogue, Entry, Licence
from rvchat.hub.fit import Fit
from rvchat.hub.local import Installed
from rvchat.hub.machine import Machine
from rvchat.hub.place import Place

State = Literal["installed", "partial", "available"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A model. `name` is what -m and pull take. `size`: bytes of its files, None where it is not known; `estimated`:
    computed from its shape, because the hub has not been asked. `fetched`: bytes that are here. `fit`: None where its
    shape is not known before it is fetched. `problem`: why it cannot be loaded, empty where nothing is known."""

    name: str
    title: str
    state: State
    size: int | None
    estimated: bool
    fetched: int
    entry: Entry | None
    installed: Installed | None
    config: ModelConfig | None
    fit: Fit | None
    problem: str = ""

    @property
    def parameters(self) -> int | None:
        return None if self.config is None else parameter_count(self.config)

    @property
    def licence(self) -> Licence | None:
        return None if self.entry is None else self.entry.licence

    @property
    def chats(self) -> bool | None:
        return None if self.entry is None else self.entry.chats

    @property
    def path(self) -> Path | None:
        return None if self.installed is None else self.installed.path


def listing(paths: Paths, machine: Machine, known: Catalogue | None = None, context: int = fit.CONTEXT) -> list[Listed]:
    """What is installed, what has only begun, and what the catalogue has besides. Opens the files of installed models
    that the catalogue does not know."""
    known = known or catalogue.read(paths)
    here = local.installed(paths, known)
    names = {model.name for model in here}
    others = [*local.unfinished(paths, known), *(entry for entry in known.entries if entry.name not in names)]
    rows = [of_installed(model, machine, context) for model in here]
    return rows + [of_entry(entry, paths, machine, context) for entry in others]


def of_installed(model: Installed, machine: Machine, context: int = fit.CONTEXT) -> Listed:
    entry = model.entry
    title = entry.title if entry is not None else ""
    row = Listed(model.name, title, "installed", model.size, False, model.size, entry, model, None, None)
    if entry is not None and (sketch := fit.Sketch.of(entry)) is not None:
        return _judged(row, sketch, machine, context)
    if not model.path.exists():  # the starter has not been put together yet
        return row
    return _opened(row, model.path, machine, context)


def of_path(path: Path, machine: Machine, context: int = fit.CONTEXT) -> Listed:
    """A folder or a GGUF file that the user names by its place: it belongs to no list, and is not ours to remove."""
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    row = Listed(str(path), "", "installed", size, False, size, None, None, None, None)
    return _opened(row, path, machine, context)


def _opened(row: Listed, path: Path, machine: Machine, context: int) -> Listed:
    try:
        return _judged(row, open_checkpoint(path), machine, context)
    except ModelError as error:
        return replace(row, problem=str(error))


def _judged(row: Listed, checkpoint: Checkpoint, machine: Machine, context: int) -> Listed:
    return replace(row, config=checkpoint.config, fit=fit.judge(checkpoint, machine, context))


def of_entry(entry: Entry, paths: Paths, machine: Machine, context: int = fit.CONTEXT) -> Listed:
    sketch = fit.Sketch.of(entry)
    judged = None if sketch is None else fit.judge(sketch, machine, context)
    size, estimated, fetched = fit.file_bytes(entry), True, 0
    pin = needed.pinned(paths, entry.repo, entry.revision, entry.file)
    if pin is not None:
        files, place = needed.likely(pin), Place.of().repository(entry.repo)
        size, estimated = sum(file.size for file in files), False
        fetched = sum(partials.size_here(place, file) for file in files)
    state: State = "partial" if fetched else "available"
    return Listed(entry.name, entry.title, state, size, estimated, fetched, entry, None, entry.config, judged)


def of_name(name: str, paths: Paths, machine: Machine, context: int = fit.CONTEXT) -> Listed:
    """One model, installed or not, by what -m or pull take. Raises ModelError for an unknown name."""
    known = catalogue.read(paths)
    model = local.find(name, paths, known)
    if model is not None:
        return of_installed(model, machine, context)
    entry = known.find(name)
    if entry is None:
        raise catalogue.unknown(name)
    return of_entry(entry, paths, machine, context)
