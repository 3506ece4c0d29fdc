"""Tensors of safetensors files, in one file or in shards with an index, through memory maps.

The library opens and checks each file; the bytes are taken from a map of our own, since its numpy side knows no
bfloat16. Format: the safetensors specification (8 bytes of length, a JSON header, the data).
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors

from rvchat.errors import ModelError

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file, in the file's own type."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: npt.NDArray[np.uint8]

    def check(self, dtypes: Collection[str]) -> None:
        """Raises ModelError for a tensor of another type: read as one of these it would be nonsense."""
        if self.dtype not in dtypes:
            raise ModelError(
                f"Tensor {self.name} is stored as {self.dtype}; rvchat needs {' or '.join(dtypes)} there",
                "Use a checkpoint in bfloat16, float16 or float32, or a w4a16 one.",
            )

    def array(self) -> npt.NDArray[Any]:
        """A view of the map. # shape"""
        self.check(DTYPES)
        return self.data.view(DTYPES[self.dtype]).reshape(self.shape)


def read_metadata(path: Path) -> dict[str, str]:
    """What a file says of itself beside its tensors. Raises ModelError for a file that is not whole."""
    return _open(path)[1]


def _open(path: Path) -> tuple[mmap.mmap, dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="numpy") as checked:
            # The library checks the header: its length, offsets and overlaps.
            metadata = checked.metadata() or {}
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), metadata
    except FileNotFoundError:
        raise ModelError(f"{path} is missing", "Fetch the model's files again.") from None
    except (safetensors.SafetensorError, ValueError) as error:
        raise ModelError(f"{path} is damaged: {error}", "Fetch the file again.") from None
    except OSError as error:
        raise ModelError(f"Cannot open {path}: {error.strerror}", "Check its permissions.") from None


def open_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name. Raises ModelError for a file that is not whole."""
    data, _ = _open(path)
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = entry["data_offsets"]
            raw = np.frombuffer(data, np.uint8, stop - start, 8 + length + start)
            tensors[name] = StoredTensor(name, tuple(entry["shape"]), entry["dtype"], raw)
    return tensors


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint folder: every file its index names, or model.safetensors."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        files = _files_of(index)
    elif single.exists():
        files = [single.name]
    else:
        raise ModelError(f"{folder} has no model.safetensors and no index", "Name a folder with the model's weights.")
    tensors: dict[str, StoredTensor] = {}
    for name in files:
        tensors |= open_file(folder / name)
    return tensors


def _files_of(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        files = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is not an index of safetensors files: {error}", "Fetch the file again.") from None
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index} names {name!r}, which is no file beside it", "Fetch the model again.")
        if not (index.parent / name).exists():
            raise ModelError(f"{index.parent} lacks {name}, which its index names", "Fetch the missing file.")
    return files
