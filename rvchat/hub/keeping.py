"""What is done with models that are here: checking them, taking them away, bringing in one from elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rvchat.config import Paths, private_folder
from rvchat.engine.checkpoint import open_checkpoint
from rvchat.errors import BadInputError, CancelledError, ModelError, RvchatError
from rvchat.hub import disk, needed, partials, pins, starter
from rvchat.hub.local import MANIFEST, Installed
from rvchat.hub.pins import RemoteFile
from rvchat.hub.place import Place
from rvchat.hub.progress import OnProgress, Tracker

# Where the session has the engine keep weights that it had to quantise.
QUANTISED = "quantised"

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def verify(
    model: Installed, paths: Paths, on_progress: OnProgress, stop: threading.Event | None = None
) -> list[RemoteFile]:
    """The files of a model whose bytes are not what they should be; none for one that is whole. What is found right is
    remembered, and not read again before it changes."""
    track = Tracker(on_progress)
    track.expect(model.size)
    wrong = []
    folder = model.path if model.path.is_dir() else model.path.parent
    for file in model.files:
        path = folder / file.name
        track.begin("checking", file.name)
        if path.exists() and partials.hash_matches(path, file, stop or threading.Event(), track):
            _remember(model, file, path)
        else:
            wrong.append(file)
            if model.pin is not None:
                model.pin.checked.pop(file.name, None)
        track.complete(file.size)
    if model.pin is not None:
        pins.write(paths, model.pin)
    track.begin("done")
    return wrong


def damaged(model: Installed, wrong: Sequence[RemoteFile]) -> ModelError:
    """The error for a model that may not be loaded."""
    names = ", ".join(file.name for file in wrong)
    hint = "Import it again." if model.pin is None else f"Fetch what is damaged again: rvchat models pull {model.name}"
    return ModelError(f"{model.name} is damaged: the bytes of {names} are not what they should be", hint)


def unchecked(model: Installed) -> bool:
    """Whether a file of the model has not been found right since it last changed."""
    if model.pin is None:
        return False
    folder = model.path if model.path.is_dir() else model.path.parent
    for file in model.files:
        stat = (folder / file.name).stat()
        if model.pin.checked.get(file.name) != (stat.st_size, stat.st_mtime_ns):
            return True
    return False


def _remember(model: Installed, file: RemoteFile, path: Path) -> None:
    if model.pin is not None:
        stat = path.stat()
        model.pin.checked[file.name] = stat.st_size, stat.st_mtime_ns


def remove(model: Installed, paths: Paths) -> int:
    """Takes a model away, with what was made from it. Returns the bytes freed. What other models of the same
    repository need stays."""
    freed = sum(_unlink(copy) for copy in copies_of(model, paths))
    if model.source == "starter":
        return freed + _remove_folder(paths.models / starter.STARTER)
    if model.source == "import":
        return freed + _remove_folder(paths.models / model.name)
    assert model.pin is not None
    place = Place.of().repository(model.pin.repo)
    snapshot = place.snapshot(model.pin.commit)
    others = {file.name for file in needed.ggufs(model.pin) if (snapshot / file.name).exists()} - {model.path.name}
    with _disk(place.cache):
        if others:
            for file in model.files:
                freed += _unlink_linked(snapshot / file.name, place.folder) + partials.remove(place, file)
        else:
            for path in sorted(snapshot.rglob("*")):
                if path.is_symlink() or path.is_file():
                    freed += _unlink_linked(path, place.folder)
            shutil.rmtree(snapshot, ignore_errors=True)
            freed += sum(partials.remove(place, file) for file in model.pin.files)
            pins.forget(paths, model.pin)
            if not any((place.folder / "snapshots").iterdir()):
                shutil.rmtree(place.folder)
            elif place.ref(model.pin.asked).is_file():
                place.ref(model.pin.asked).unlink()
    return freed


def copies_of(model: Installed, paths: Paths) -> list[Path]:
    """Quantised copies that were made of a model: they are named after its folder or file."""
    return sorted((paths.models / QUANTISED).glob(f"{model.path.stem}-????????????????.safetensors"))


def _unlink_linked(path: Path, repository: Path) -> int:
    """Removes a name in a snapshot, and the blob it leads to unless another snapshot does too."""
    if not path.is_symlink():
        return _unlink(path)
    blob = Path(os.path.normpath(path.parent / path.readlink()))
    path.unlink()
    for other in (repository / "snapshots").rglob("*"):
        if other.is_symlink() and Path(os.path.normpath(other.parent / other.readlink())) == blob:
            return 0
    return _unlink(blob)


def _unlink(path: Path) -> int:
    try:
        size = path.lstat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _remove_folder(folder: Path) -> int:
    with _disk(folder):
        freed = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder)
    return freed


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RvchatError(f"Cannot remove from {folder}: {error.strerror}", "Check its permissions.") from error


def bring_in(
    source: Path, name: str, paths: Paths, on_progress: OnProgress, stop: threading.Event | None = None
) -> Path:
    """Copies a model's folder or GGUF file into the data folder, under `name`, with its hashes. Returns its new place.

    Raises ModelError for what is no model, BadInputError for a name that cannot be or is taken, RvchatError when
    there is no room. What was half there is taken away."""
    if not _NAME.fullmatch(name) or name.lower() in (starter.STARTER, "pins", QUANTISED):
        raise BadInputError(f"{name!r} cannot be a model's name", "Take letters, digits, dots, hyphens: --name NAME.")
    folder = paths.models / name
    if folder.exists():
        raise BadInputError(f"There is a model {name} already", f"Name it otherwise, or: rvchat models rm {name}")
    open_checkpoint(source)
    files = _files_of(source)
    needed_bytes, free = sum(path.stat().st_size for path in files), disk.free_bytes(folder)
    if free is not None and needed_bytes > free:
        raise disk.no_room(folder, needed_bytes, free)
    partial = folder.with_name(f".{name}.partial")
    track = Tracker(on_progress)
    track.expect(needed_bytes)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        private_folder(partial)
        copied = [_copy(path, partial / path.name, track, stop or threading.Event()) for path in files]
        manifest = {"model": source.name if source.is_file() else "", "files": [asdict(file) for file in copied]}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        os.replace(partial, folder)
    except OSError as error:
        raise disk.refused(error, folder, needed_bytes) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    track.begin("done")
    return folder / source.name if source.is_file() else folder


def _files_of(source: Path) -> Sequence[Path]:
    if source.is_file():
        return [source]
    names = (needed.CONFIG, needed.TOKENIZER, needed.INDEX, *needed.OPTIONAL)
    present = [source / name for name in names if (source / name).is_file()]
    if source / needed.TOKENIZER not in present:
        raise ModelError(f"{source} has no {needed.TOKENIZER}", "Fetch the model's files again.")
    return [*present, *sorted(source.glob("*.safetensors"))]


def _copy(source: Path, target: Path, track: Tracker, stop: threading.Event) -> RemoteFile:
    track.begin("fetching", source.name)
    digest, done = hashlib.sha256(), 0
    with source.open("rb") as there, target.open("xb") as here:
        while block := there.read(partials.BLOCK):
            if stop.is_set():
                raise CancelledError("Stopped")
            here.write(block)
            digest.update(block)
            done += len(block)
            track.at(done)
        here.flush()
        os.fsync(here.fileno())
    track.complete(done)
    return RemoteFile(source.name, done, digest.hexdigest())
