"""Taking models away, with what was made from them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from rvchat.config import Paths
from rvchat.engine.storage import copy_name
from rvchat.errors import RvchatError
from rvchat.hub import needed, partials, pins
from rvchat.hub.local import Installed
from rvchat.hub.pins import Pin, RemoteFile
from rvchat.hub.place import Place, RepositoryPlace

# Where the session has the engine keep weights that it had to quantise.
QUANTISED = "quantised"
# Bytes; no header of a safetensors file is longer.
HEADER = 100_000_000


def remove(model: Installed, paths: Paths) -> int:
    """Takes a model away. Returns the bytes freed. What other models of the same repository need stays. Raises
    RvchatError for one that is being fetched, and where the disk refuses."""
    if model.pin is None:
        return remove_copies(model.path, paths) + _remove_folder(model.folder)
    place = Place.of().repository(model.pin.repo)
    coming = needed.pinned(paths, model.pin.repo, model.pin.asked, model.pin.model, coming=True)
    with _disk(place.cache):
        everything = [*model.files, *(needed.likely(coming) if coming is not None else ())]
        if any(partials.is_busy(place, file) for file in everything):
            raise RvchatError(f"{model.name} is being fetched at this moment", "Stop that first, then remove it.")
    freed = remove_pin(coming, needed.likely(coming), paths, coming=True) if coming is not None else 0
    return freed + remove_pin(model.pin, model.files, paths)


def remove_pin(pin: Pin, files: Sequence[RemoteFile], paths: Paths, *, coming: bool = False) -> int:
    """Takes away the pin of what is here, or of what is `coming`, with its `files`. Returns the bytes freed."""
    pins.forget(paths, pin, coming=coming)
    try:
        return remove_files(pin, files, paths)
    except RvchatError:
        pins.write(paths, pin, coming=coming)  # what is left can be removed later
        raise


def remove_partials(pin: Pin, paths: Paths) -> int:
    """Takes away what has been fetched of files that are not whole, and that no other model waits for. Returns the
    bytes freed."""
    place = Place.of().repository(pin.repo)
    kept = _blobs([other for other in _pins_of(pin.repo, paths) if not _is_same_model(other, pin)])
    with _disk(place.cache):
        return sum(partials.remove(place, file) for file in needed.likely(pin) if file.blob not in kept)


def remove_files(pin: Pin, files: Sequence[RemoteFile], paths: Paths) -> int:
    """Takes away of a pin that is kept no more those `files` that no other model needs, and the copies that were made
    of them. Returns the bytes freed."""
    place = Place.of().repository(pin.repo)
    with _disk(place.cache):
        return _remove_files(place, pin, files, _pins_of(pin.repo, paths), paths)


def _pins_of(repo: str, paths: Paths) -> list[Pin]:
    return [pin for coming in (False, True) for pin in pins.everyone(paths, coming=coming) if pin.repo == repo]


def remove_copies(path: Path, paths: Paths) -> int:
    """Takes away the quantised copies that were made of the model at `path`, whole or not, which must still be where it
    was then. Returns the bytes freed."""
    copies = (paths.models / QUANTISED).glob(f"{glob.escape(path.stem)}-{'[0-9a-f]' * 16}.*")
    return sum(_unlink(copy) for copy in copies if _is_made_of(path, copy))


def _is_made_of(path: Path, copy: Path) -> bool:
    """Whether that is the model of a copy, and not another whose folder or file is called the same, stored as the
    copy's header says. One that says nothing is of use to no model, unless it is only just begun."""
    storage = _storage(copy)
    if storage is None:
        return not partials.is_held(copy)
    return copy.name.startswith(f"{copy_name(path, storage)}.")


def _storage(copy: Path) -> str | None:
    """What the header of a copy says of how it stores the model; also where no more than the header is written."""
    try:
        with copy.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, HEADER)))
        return str(json.loads(header["__metadata__"]["origin"])["storage"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
        return None


def _remove_files(
    place: RepositoryPlace, pin: Pin, files: Sequence[RemoteFile], others: Sequence[Pin], paths: Paths
) -> int:
    """`others`: the pins of the repository that stay."""
    snapshot, freed = place.snapshot(pin.commit), 0
    same = [other for other in others if other.commit == pin.commit]
    path = snapshot / pin.model  # which may lead to a file that another version has as well
    if path.resolve() not in {(place.snapshot(other.commit) / other.model).resolve() for other in others}:
        freed += remove_copies(path, paths)
    used = {file.name for other in same for file in needed.told(other, snapshot)}
    kept, soon = _blobs(others), _blobs([other for other in others if _is_same_model(other, pin)])
    # Nothing but these: other programs keep theirs in the same folder.
    own = {file.name: file for file in (*files, *needed.told(pin, snapshot))}.values()
    freed += sum(_unlink_linked(snapshot / file.name, place, soon) for file in own if file.name not in used)
    for file in own:
        if file.blob not in kept:
            freed += partials.remove(place, file)
            freed += 0 if _is_linked(place.blob(file.blob), place) else _unlink(place.blob(file.blob))
    _tidy(place, pin, others)
    return freed


def _is_same_model(one: Pin, other: Pin) -> bool:
    return (one.repo, one.asked, one.model) == (other.repo, other.asked, other.model)


def _blobs(of: Sequence[Pin]) -> set[str]:
    return {file.blob for pin in of for file in needed.likely(pin)}


def _tidy(place: RepositoryPlace, pin: Pin, others: Sequence[Pin]) -> None:
    """Leaves the cache in order when the last file of a snapshot has gone."""
    snapshot = place.snapshot(pin.commit)
    if any(other.commit == pin.commit for other in others) or any(not p.is_dir() for p in snapshot.rglob("*")):
        return
    shutil.rmtree(snapshot, ignore_errors=True)
    snapshots = place.folder / "snapshots"
    # A file that another program is fetching is a blob that no snapshot has yet.
    if not others and not any(any(folder.glob("*")) for folder in (snapshots, place.folder / "blobs")):
        shutil.rmtree(place.folder, ignore_errors=True)
        return
    for ref in (place.folder / "refs").rglob("*"):
        if ref.is_file() and ref.read_text(encoding="utf-8").strip() == pin.commit:
            ref.unlink()


def _unlink_linked(path: Path, place: RepositoryPlace, kept: Set[str]) -> int:
    """Removes a name in a snapshot, and the blob it leads to unless another snapshot does too, or it is `kept`."""
    if not path.is_symlink():
        return _unlink(path)
    blob = _target(path)
    path.unlink()
    return 0 if blob.name in kept or _is_linked(blob, place) else _unlink(blob)


def _is_linked(blob: Path, place: RepositoryPlace) -> bool:
    return any(path.is_symlink() and _target(path) == blob for path in (place.folder / "snapshots").rglob("*"))


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
