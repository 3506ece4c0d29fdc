"""Taking models away, with what was made from them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rvchat.config import Paths
from rvchat.errors import RvchatError
from rvchat.hub import needed, partials, pins
from rvchat.hub.local import Installed
from rvchat.hub.pins import Pin, RemoteFile
from rvchat.hub.place import Place, RepositoryPlace

# Where the session has the engine keep weights that it had to quantise.
QUANTISED = "quantised"


def remove(model: Installed, paths: Paths) -> int:
    """Takes a model away. Returns the bytes freed. What other models of the same repository need stays."""
    freed = remove_copies(model.path, paths)
    if model.pin is None:
        return freed + _remove_folder(model.folder)
    place = Place.of().repository(model.pin.repo)
    snapshot = place.snapshot(model.pin.commit)
    others = {file.name for file in needed.ggufs(model.pin) if (snapshot / file.name).exists()} - {model.path.name}
    coming = pins.read(paths, model.pin.repo, model.pin.asked, coming=True)
    with _disk(place.cache):
        freed += sum(
            partials.remove(place, file) for pin in (model.pin, coming) if pin is not None for file in pin.files
        )
        if others:
            return freed + remove_files(place, model.pin, model.files)
        everything = [path for path in snapshot.rglob("*") if path.is_symlink() or path.is_file()]
        freed += sum(_unlink_linked(path, place) for path in everything)
        _tidy(place, model.pin)
        pins.forget(paths, model.pin)
    return freed


def remove_files(place: RepositoryPlace, pin: Pin, files: Sequence[RemoteFile]) -> int:
    """Takes some files of a snapshot out of the cache. Returns the bytes freed."""
    freed = sum(_unlink_linked(place.snapshot(pin.commit) / file.name, place) for file in files)
    if not any(place.snapshot(pin.commit).rglob("*")):
        _tidy(place, pin)
    return freed


def remove_copies(path: Path, paths: Paths) -> int:
    """Takes away the quantised copies that were made of the model at `path`: they are named after its folder or file.
    Returns the bytes freed."""
    copies = (paths.models / QUANTISED).glob(f"{path.stem}-????????????????.safetensors")
    return sum(_unlink(copy) for copy in copies)


def _tidy(place: RepositoryPlace, pin: Pin) -> None:
    """Leaves the cache in order after the last file of a snapshot has gone."""
    shutil.rmtree(place.snapshot(pin.commit), ignore_errors=True)
    snapshots = place.folder / "snapshots"
    if not snapshots.is_dir() or not any(snapshots.iterdir()):
        shutil.rmtree(place.folder, ignore_errors=True)
        return
    for ref in (place.folder / "refs").rglob("*"):
        if ref.is_file() and ref.read_text(encoding="utf-8").strip() == pin.commit:
            ref.unlink()


def _unlink_linked(path: Path, place: RepositoryPlace) -> int:
    """Removes a name in a snapshot, and the blob it leads to unless another snapshot does too."""
    if not path.is_symlink():
        return _unlink(path)
    blob = _target(path)
    path.unlink()
    if any(other.is_symlink() and _target(other) == blob for other in (place.folder / "snapshots").rglob("*")):
        return 0
    return _unlink(blob)


def _target(link: Path) -> Path:
    """The next step only: a blob may itself be a link into a store that several repositories share."""
    return Path(os.path.normpath(link.parent / link.readlink()))


def _unlink(path: Path) -> int:
    try:
        size = path.lstat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _remove_folder(folder: Path) -> int:
    if not folder.exists():
        return 0
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
