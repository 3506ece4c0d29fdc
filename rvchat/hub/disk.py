"""Room on the disk, and what a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from rvchat.engine.memory import gigabytes
from rvchat.errors import RvchatError

ROOM = "Make room (`rvchat models rm`), or set HF_HOME to a folder on another disk."


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Says in words what may not be looked into."""
    try:
        yield
    except PermissionError as error:
        raise RvchatError(
            f"{error.filename} cannot be looked into: {error.strerror}",
            "Check the permissions of its folders, or name others (HF_HOME, --data).",
        ) from error


def free_bytes(folder: Path) -> int | None:
    """Bytes free where `folder` is or would be made; None where nothing says."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                return shutil.disk_usage(place).free
            except PermissionError:
                return None
    return None


def refused(error: OSError, folder: Path, needed: int) -> RvchatError:
    """`needed`: bytes that were still to be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "The disk is full" if error.errno == errno.ENOSPC else "Your share of the disk is used up"
        return RvchatError(
            f"{what}: {gigabytes(needed)} more are needed in {folder}",
            f"{ROOM} What has been fetched is kept.",
        )
    if error.errno == errno.EFBIG:
        return RvchatError(f"The file system of {folder} holds no files so large", "Set HF_HOME to another disk.")
    return RvchatError(
        f"Cannot write to {folder}: {error.strerror or error}",
        "Check its permissions, or set HF_HOME to another folder.",
    )


def no_room(folder: Path, needed: int, free: int) -> RvchatError:
    return RvchatError(
        f"{gigabytes(needed)} are needed in {folder}, and {gigabytes(free)} are free",
        f"{ROOM} Nothing has been fetched.",
    )
