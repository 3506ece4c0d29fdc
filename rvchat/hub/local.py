"""The models on this machine: the starter, what was imported, and what the cache of the hub has whole, whichever
program fetched it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rvchat.config import Paths
from rvchat.engine.config_hf import GEMMA3_TYPES, GEMMA4_TYPES
from rvchat.engine.gguf import GGUF
from rvchat.engine.memory import gigabytes
from rvchat.errors import ModelError
from rvchat.hub import disk, fit, needed, partials, pins, starter
from rvchat.hub.catalogue import DEFAULT_REVISION, Catalogue, Entry
from rvchat.hub.pins import Pin, RemoteFile
from rvchat.hub.place import Place, RepositoryPlace

MANIFEST = "import.json"

# The key, the type of a string (8), its length in 8 bytes.
_ARCHITECTURE = re.compile(rb"general\.architecture\x08\0\0\0[\x01-\x20]\0{7}([a-z0-9_]+)")

Source = Literal["hub", "import", "starter"]


@dataclass(frozen=True, slots=True)
class Installed:
    """`name`: what -m takes. `path`: a folder or a GGUF file; the starter's may not be there before it is first used.
    `size`: bytes on the disk. `entry`: what the catalogue knows of it. `files`: what must be whole, with what each
    must hash to; `checked`: of those whose hash has been found right, size and time of change then. `pin`: of a model
    from the hub."""

    name: str
    path: Path
    size: int
    source: Source
    entry: Entry | None = None
    files: tuple[RemoteFile, ...] = ()
    checked: dict[str, tuple[int, int]] = field(default_factory=dict)
    pin: Pin | None = None

    @property
    def folder(self) -> Path:
        """Where its files are, by their names."""
        if self.pin is not None and self.pin.model:
            return self.path.parents[self.pin.model.count("/")]
        return self.path if self.path.is_dir() else self.path.parent


@disk.reading()
def installed(paths: Paths, catalogue: Catalogue) -> list[Installed]:
    """Every model that can be loaded."""
    found = [*_starter(paths), *_imported(paths), *_from_hub(paths, catalogue)]
    return list({model.name: model for model in reversed(found)}.values())[::-1]


def find(name: str, paths: Paths, catalogue: Catalogue) -> Installed | None:
    """The installed model of that name, or of that repository."""
    entry, lower = catalogue.find(name), name.lower()
    models = installed(paths, catalogue)
    for model in models:
        if lower == model.name.lower():
            return model
    if entry is None:
        return None
    of_repo = [m for m in models if m.pin is not None and m.pin.repo == entry.repo]
    asked = [m for m in of_repo if m.pin is not None and entry.revision in (m.pin.asked, m.pin.commit)]
    fitting = [m for m in asked if not entry.file or (m.pin is not None and entry.file.lower() in m.pin.model.lower())]
    return fitting[0] if len(fitting) == 1 else None


@disk.reading()
def begun(entry: Entry, paths: Paths) -> Installed | None:
    """What is here of a model that is not whole; None where there is nothing."""
    pin = needed.pinned(paths, entry.repo, entry.revision, entry.file)
    if pin is None:
        return None
    place, files = Place.of().repository(entry.repo), tuple(needed.likely(pin))
    size = sum(partials.size_here(place, file) for file in files)
    path = place.snapshot(pin.commit) / pin.model
    return Installed(entry.name, path, size, "hub", entry, files, pin.checked, pin) if size else None


def unfinished(paths: Paths, catalogue: Catalogue) -> list[Entry]:
    """Models of which something is here and not all, and which the catalogue does not have."""
    whole = {model.path for model in _from_hub(paths, catalogue)}
    found = []
    for pin in pins.everyone(paths):
        path = Place.of().repository(pin.repo).snapshot(pin.commit) / pin.model
        entry = None if path in whole else catalogue.find(_revised(_named(pin), pin))
        if entry is not None and entry not in catalogue.entries and begun(entry, paths) is not None:
            found.append(entry)
    return found


def absent(name: str, entry: Entry, paths: Paths) -> ModelError:
    """The error for a model that is known and not here, or not whole."""
    size, here = fit.file_bytes(entry), begun(entry, paths)
    if here is not None:
        return ModelError(f"{name} is not whole on this machine", f"Fetch the rest: rvchat models pull {name}")
    about = "" if size is None else f" (about {gigabytes(size)})"
    return ModelError(f"{name} is not on this machine", f"Fetch it{about}: rvchat models pull {name}")


def _starter(paths: Paths) -> Iterator[Installed]:
    if starter.is_available(paths):
        path = paths.models / starter.STARTER / starter.FILE
        yield Installed(starter.STARTER, path, starter.SIZE, "starter")


def _imported(paths: Paths) -> Iterator[Installed]:
    """Models that `rvchat models import` brought: a folder each, with a manifest beside the files."""
    for file in sorted(paths.models.glob(f"[!.]*/{MANIFEST}")):
        folder = file.parent
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            files = tuple(RemoteFile(**entry) for entry in values["files"])
            checked = {str(name): (int(size), int(time)) for name, (size, time) in values["checked"].items()}
            path = folder / values["model"] if values["model"] else folder
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            yield Installed(folder.name, folder, 0, "import")  # it can be removed, and is no model to load
            continue
        yield Installed(folder.name, path, sum(entry.size for entry in files), "import", None, files, checked)


def manifest(model: str, files: Sequence[RemoteFile], checked: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """What is written beside an imported model. `model`: the name of the GGUF file, empty for a folder."""
    return {"model": model, "files": [asdict(file) for file in files], "checked": dict(checked)}


def remember_checked(model: Installed, paths: Paths) -> None:
    """Keeps what `model.checked` has. Raises RvchatError when it cannot."""
    if model.pin is not None:
        pins.write(paths, model.pin)
    elif model.source == "import" and model.files:
        name = model.path.name if model.path.is_file() else ""
        pins.write_json(model.folder / MANIFEST, manifest(name, model.files, model.checked))


def _from_hub(paths: Paths, catalogue: Catalogue) -> Iterator[Installed]:
    place = Place.of()
    pinned = list(pins.everyone(paths))
    known = {(pin.repo, pin.asked, pin.model) for pin in pinned}
    for folder in sorted(place.cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        pinned += [p for p in adopted(repo, place.repository(repo)) if (p.repo, p.asked, p.model) not in known]
    for pin in pinned:
        model = _of_pin(pin, place.repository(pin.repo), catalogue)
        if model is not None:
            yield model


def adopted(repo: str, place: RepositoryPlace) -> list[Pin]:
    """What another program has fetched, as pins: the names of the blobs are what the hub said they hash to. None where
    the cache does not say which commit is meant."""
    try:
        commit = place.ref(DEFAULT_REVISION).read_text(encoding="utf-8").strip()
    except OSError:
        snapshots = list((place.folder / "snapshots").glob("*"))
        if len(snapshots) != 1:
            return []
        commit = snapshots[0].name
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return []
    files = []
    for path in place.snapshot(commit).glob("*"):
        if path.is_symlink() and path.is_file():
            blob = Path(path.readlink()).name
            try:
                files.append(RemoteFile(path.name, path.stat().st_size, blob))
            except ValueError:
                continue  # not a file of ours, or no hash
    pin = Pin(repo, DEFAULT_REVISION, commit, tuple(files))
    return [pin, *(replace(pin, model=file.name, checked={}) for file in needed.ggufs(pin))]


def _of_pin(pin: Pin, place: RepositoryPlace, catalogue: Catalogue) -> Installed | None:
    """A pin's model, where it is whole."""
    snapshot = place.snapshot(pin.commit)
    try:
        files = (*needed.small(pin), *needed.large(pin, snapshot))
    except ModelError:
        return None  # parts of it are missing
    if not all(_is_whole(snapshot, file) for file in files):
        return None
    if not (_is_gemma_gguf(snapshot / pin.model) if pin.model else _is_gemma(snapshot / needed.CONFIG)):
        return None
    entry, size = _entry(catalogue, pin), sum(file.size for file in files)
    name = _revised(entry.name if entry else _named(pin), pin)
    return Installed(name, snapshot / pin.model, size, "hub", entry, files, pin.checked, pin)


def _named(pin: Pin) -> str:
    """What `pull` takes for a model that the catalogue does not have."""
    return pin.repo if needed.means(pin, "") else f"{pin.repo}:{pin.model}"


def _revised(name: str, pin: Pin) -> str:
    return name if pin.asked == DEFAULT_REVISION else f"{name}@{pin.asked}"


def _entry(catalogue: Catalogue, pin: Pin) -> Entry | None:
    for entry in catalogue.entries:
        is_file = (entry.format == "q4_0") == bool(pin.model) or not entry.format
        if entry.repo == pin.repo and is_file and entry.file.lower() in pin.model.lower():
            return entry
    return None


def _is_whole(snapshot: Path, file: RemoteFile) -> bool:
    try:
        return (snapshot / file.name).stat().st_size == file.size
    except OSError:
        return False


def _is_gemma(config: Path) -> bool:
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        return settings.get("model_type") in (*GEMMA3_TYPES, *GEMMA4_TYPES)
    except (OSError, ValueError, AttributeError):
        return False


def _is_gemma_gguf(path: Path) -> bool:
    """By the architecture, which writers put first; only where it is not there is the whole header read."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
        found = _ARCHITECTURE.search(start)
        name = found[1].decode() if found else GGUF.open(path).architecture
    except (OSError, ModelError):
        return False
    return name in ("gemma3", "gemma4")
