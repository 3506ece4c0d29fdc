"""Bringing a model from elsewhere into the data folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rvchat.config import Paths, private_folder
from rvchat.engine.checkpoint import open_checkpoint
from rvchat.errors import BadInputError, CancelledError, ModelError
from rvchat.hub import disk, local, needed, partials, starter
from rvchat.hub.pins import RemoteFile
from rvchat.hub.progress import OnProgress, Tracker
from rvchat.hub.removing import QUANTISED

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_TAKEN = (starter.STARTER, "pins", QUANTISED)


def bring_in(
    source: Path, name: str, paths: Paths, on_progress: OnProgress, stop: threading.Event | None = None
) -> Path:
    """Copies a model's folder or GGUF file into the data folder, under `name`, with its hashes. Returns its new place.

    Raises ModelError for what is no model, BadInputError for a name that cannot be or is taken, RvchatError when
    there is no room. What was half there is taken away, also of imports that were killed."""
    if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
        raise BadInputError(f"{name!r} cannot be a model's name", "Take letters, digits, dots, hyphens: --name NAME.")
    folder = paths.models / name
    if folder.exists():
        raise BadInputError(f"There is a model {name} already", f"Name it otherwise, or: rvchat models rm {name}")
    open_checkpoint(source)
    partials.sweep(paths.models)
    files = _files_of(source)
    size, free = sum(path.stat().st_size for path in files), disk.free_bytes(folder)
    if free is not None and size > free:
        raise disk.no_room(folder, size, free)
    track = Tracker(on_progress)
    track.expect(size)
    try:
        with _partial(folder) as partial:
            copied = [_copy(path, partial / path.name, track, stop or threading.Event()) for path in files]
            stats = {file.name: (partial / file.name).stat() for file in copied}
            checked = {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
            manifest = local.manifest(source.name if source.is_file() else "", copied, checked)
            (partial / local.MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            os.replace(partial, folder)
    except OSError as error:
        raise disk.refused(error, folder, size) from error
    track.begin("done")
    return folder / source.name if source.is_file() else folder


@contextlib.contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Where to copy what is to be `folder`; what is still there when the block ends is taken away. Raises
    BadInputError where another process is copying there."""
    partial = partials.of_import(private_folder(folder.parent), folder.name)
    try:
        partial.mkdir(mode=0o700)
    except FileExistsError:
        raise BadInputError(f"{folder.name} is being imported at this moment", "Wait, or take: --name NAME.") from None
    try:
        with partials.held(partial):
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
