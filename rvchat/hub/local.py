"""The models on this machine: the starter, what was imported, and what the cache of the hub has whole, whichever
program fetched it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rvchat.config import Paths
from rvchat.engine.config_hf import GEMMA3_TYPES, GEMMA4_TYPES
from rvchat.engine.gguf import GGUF
from rvchat.errors import ModelError
from rvchat.hub import fit, needed, partials, pins, starter
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
        """Where its files are."""
        return self.path if self.path.is_dir() else self.path.parent


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
    fitting = [
        m for m in asked if not entry.file or (m.path.suffix == ".gguf" and entry.file.lower() in m.path.name.lower())
    ]
    return fitting[0] if len(fitting) == 1 else None


def begun(entry: Entry, paths: Paths) -> Installed | None:
    """What is here of a model that is not whole; None where there is nothing."""
    pin = pins.read(paths, entry.repo, entry.revision)
    if pin is None:
        return None
    place = Place.of().repository(entry.repo)
    try:
        files = tuple(needed.likely(pin, entry.file))
    except ModelError:
        files = ()  # it was no model, and something of it may be here all the same
    size = sum(partials.size_here(place, file) for file in files)
    snapshot = place.snapshot(pin.commit)
    path = snapshot / files[0].name if len(files) == 1 else snapshot
    return Installed(entry.name, path, size, "hub", entry, files, pin.checked, pin) if size else None


def unfinished(paths: Paths, catalogue: Catalogue) -> list[Entry]:
    """Models of which something is here and not all, and which the catalogue does not have."""
    whole = {model.path for model in _from_hub(paths, catalogue)}
    found = []
    for pin in pins.everyone(paths):
        place = Place.of().repository(pin.repo)
        snapshot, ggufs = place.snapshot(pin.commit), needed.ggufs(pin)
        names = [pin.repo] if snapshot not in whole and pin.file(needed.CONFIG) is not None else []
        for file in ggufs:
            if snapshot / file.name not in whole and partials.size_here(place, file):
                names.append(f"{pin.repo}:{file.name}" if len(ggufs) > 1 else pin.repo)
        entries = [entry for name in names if (entry := catalogue.find(_revised(name, pin))) is not None]
        found += [e for e in entries if e not in catalogue.entries and begun(e, paths) is not None]
    return found


def absent(name: str, entry: Entry, paths: Paths) -> ModelError:
    """The error for a model that is known and not here, or not whole."""
    size, here = fit.file_bytes(entry), begun(entry, paths)
    if here is not None:
        return ModelError(f"{name} is not whole on this machine", f"Fetch the rest: rvchat models pull {name}")
    about = "" if size is None else f" (about {size / 1e9:.1f} GB)"
    return ModelError(f"{name} is not on this machine", f"Fetch it{about}: rvchat models pull {name}")


def _starter(paths: Paths) -> Iterator[Installed]:
    if starter.is_available(paths):
        path = paths.models / starter.STARTER / starter.FILE
        yield Installed(starter.STARTER, path, starter.SIZE, "starter")


def _imported(paths: Paths) -> Iterator[Installed]:
    """Models that `rvchat models import` brought: a folder each, with a manifest beside the files."""
    for file in sorted(paths.models.glob(f"*/{MANIFEST}")):
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
    known: set[str] = set()
    for pin in pins.everyone(paths):
        known.add(pin.repo)
        yield from _of_pin(pin, place.repository(pin.repo), catalogue)
    for folder in sorted(place.cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        found = None if repo in known else adopted(repo, place.repository(repo))
        if found is not None:
            yield from _of_pin(found, place.repository(repo), catalogue)


def adopted(repo: str, place: RepositoryPlace) -> Pin | None:
    """What another program has fetched, as a pin: the names of the blobs are what the hub said they hash to. None
    where the cache does not say which commit is meant."""
    try:
        commit = place.ref(DEFAULT_REVISION).read_text(encoding="utf-8").strip()
    except OSError:
        snapshots = list((place.folder / "snapshots").glob("*"))
        if len(snapshots) != 1:
            return None
        commit = snapshots[0].name
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    files = []
    for path in place.snapshot(commit).glob("*"):
        if path.is_symlink() and path.is_file():
            blob = Path(path.readlink()).name
            try:
                files.append(RemoteFile(path.name, path.stat().st_size, blob))
            except ValueError:
                continue  # not a file of ours, or no hash
    return Pin(repo, DEFAULT_REVISION, commit, tuple(files))


def _of_pin(pin: Pin, place: RepositoryPlace, catalogue: Catalogue) -> Iterator[Installed]:
    """The models that a repository's snapshot has whole: one in safetensors, and each GGUF file."""
    snapshot = place.snapshot(pin.commit)
    ggufs = [file for file in needed.ggufs(pin) if _is_whole(snapshot, file) and _is_gemma_gguf(snapshot / file.name)]
    for file in ggufs:
        entry = _entry(catalogue, pin, file)
        name = entry.name if entry else f"{pin.repo}:{file.name}" if len(needed.ggufs(pin)) > 1 else pin.repo
        yield Installed(_revised(name, pin), snapshot / file.name, file.size, "hub", entry, (file,), pin.checked, pin)
    if not _is_gemma(snapshot / needed.CONFIG):
        return
    try:
        files = (*needed.small(pin, ""), *needed.large(pin, "", snapshot))
    except ModelError:
        return  # parts of it are missing
    if all(_is_whole(snapshot, file) for file in files):
        entry = _entry(catalogue, pin, None)
        name = _revised(entry.name if entry else pin.repo, pin)
        yield Installed(name, snapshot, sum(file.size for file in files), "hub", entry, files, pin.checked, pin)


def _revised(name: str, pin: Pin) -> str:
    return name if pin.asked == DEFAULT_REVISION else f"{name}@{pin.asked}"


def _entry(catalogue: Catalogue, pin: Pin, file: RemoteFile | None) -> Entry | None:
    for entry in catalogue.entries:
        is_file = (entry.format == "q4_0") == (file is not None) or not entry.format
        if entry.repo == pin.repo and is_file and (file is None or entry.file.lower() in file.name.lower()):
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
