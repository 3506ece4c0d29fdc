"""Reading a GGUF file through a memory map: its metadata, its tensor table, and rows of its tensors.

The header is read by hand because a published vocabulary has 262,144 pieces and half a million merges: they are walked
once, by their lengths, and decoded only when asked for. The block formats are dequantised by `gguf.quants`.

Format: the GGUF specification, versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rvchat.engine.nibbles import GROUP, Int4Rows
from rvchat.errors import ModelError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

MAX_DIMENSIONS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
# Of an array: sixteen times Gemma's vocabulary.
MAX_STRINGS = 1 << 22


class StringArray(Sequence[bytes]):
    """The strings of a metadata array, as bytes, sliced out of the map when they are asked for."""

    def __init__(self, data: mmap.mmap, starts: list[int], lengths: list[int]) -> None:
        self._data, self._starts, self._lengths = data, starts, lengths

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self._starts[index]
        return self._data[start : start + self._lengths[index]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        for start, length in zip(self._starts, self._lengths, strict=True):
            yield data[start : start + length]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of the file. `shape` is in numpy's order: the last axis is contiguous and, in a block format, split
    into blocks. `form` is GGUF's name of its type; `data` the map's own bytes, `[rows, bytes per row]`."""

    name: str
    shape: tuple[int, ...]
    form: str
    data: npt.NDArray[np.uint8]

    @property
    def stored_bytes(self) -> int:
        return self.data.nbytes

    def as_stored(self) -> npt.NDArray[Any]:
        """Plain types as they are; block formats as their bytes. # shape, or uint8 [rows, bytes per row]"""
        plain = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
        dtype = plain.get(self.form)
        return self.data if dtype is None else self.data.view(dtype).reshape(self.shape)

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows `start` to `stop` of the tensor seen as a matrix, dequantised. # [rows, shape[-1]]"""
        import gguf

        block = self.data[start:stop]
        kind = gguf.GGMLQuantizationType[self.form]
        try:
            return np.asarray(gguf.quants.dequantize(block, kind), np.float32)
        except NotImplementedError:
            raise ModelError(
                f"Tensor {self.name} is stored as {self.form}, which rvchat cannot read",
                "Use a file in Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 or F32.",
            ) from None

    def int4_rows(self, start: int = 0, stop: int | None = None) -> Int4Rows | None:
        """As they are in Q4_0, which is blocks of a float16 scale and 16 bytes in this very order; None otherwise."""
        if self.form != "Q4_0":
            return None
        blocks = self.data[start:stop].reshape(-1, self.shape[-1] // GROUP, 2 + GROUP // 2)
        return blocks[..., 2:], np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]


class GGUF:
    """An open GGUF file: `metadata` (values; string arrays as `StringArray`) and `tensors` by name.

    Raises ModelError for a file that is not GGUF, is cut short, or whose tables make no sense.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], tensors: dict[str, GGUFTensor]) -> None:
        self.path, self.metadata, self.tensors = path, metadata, tensors

    @classmethod
    def open(cls, path: str | Path) -> GGUF:
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path} is empty", "Fetch the file again.") from None
        except OSError as error:
            raise ModelError(f"Cannot open {path}: {error.strerror}", "Check the path and its permissions.") from error
        return cls(path, *_Header(path, data).read())

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))


class _Header:
    """A cursor over the map."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def cut_short(self) -> ModelError:
        return ModelError(
            f"{self.path} is cut short: it ends at byte {self.size:,} in the middle of what it promises",
            "Fetch the file again.",
        )

    def nonsense(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is damaged: {what}", "Fetch the file again.")

    def unpack(self, form: str) -> Any:
        size = struct.calcsize("<" + form)
        if self.at + size > self.size:
            raise self.cut_short()
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        return value

    def string(self) -> bytes:
        length = self.unpack("Q")
        if length > self.size - self.at:
            raise self.cut_short()
        self.at += length
        return self.data[self.at - length : self.at]

    def name(self) -> str:
        try:
            return self.string().decode()
        except UnicodeDecodeError:
            raise self.nonsense("a name in its header is not UTF-8") from None

    def array(self) -> Any:
        kind, count = self.unpack("I"), self.unpack("Q")
        if kind in SCALARS:
            dtype = np.dtype("<" + SCALARS[kind]) if kind != 7 else np.dtype(bool)
            if count * dtype.itemsize > self.size - self.at:
                raise self.cut_short()
            values = np.frombuffer(self.data, dtype, count, self.at)
            self.at += values.nbytes
            return values
        if kind != STRING:
            raise self.nonsense(f"an array of value type {kind}")
        return self.strings(count)

    def strings(self, count: int) -> StringArray:
        if count * 8 > self.size - self.at:
            raise self.cut_short()
        if count > MAX_STRINGS:
            raise self.nonsense(f"an array of {count:,} strings")
        data, at, end = self.data, self.at, self.size
        read_length = struct.Struct("<Q").unpack_from
        starts, lengths = [], []
        try:
            for _ in range(count):
                (length,) = read_length(data, at)
                at += 8
                starts.append(at)
                lengths.append(length)
                at += length
        except (struct.error, OverflowError):  # past the end, by a length that no address can be
            raise self.cut_short() from None
        if at > end:
            raise self.cut_short()
        self.at = at
        return StringArray(data, starts, lengths)

    def value(self) -> Any:
        kind = self.unpack("I")
        if kind in SCALARS:
            return self.unpack(SCALARS[kind])
        if kind == STRING:
            return self.string().decode(errors="replace")
        if kind == ARRAY:
            return self.array()
        raise self.nonsense(f"metadata of value type {kind}")

    def read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self.data[:4] != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file", "Name a .gguf file, or a folder with config.json.")
        self.at = 4
        version = self.unpack("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} is GGUF version {version}; rvchat reads 2 and 3", "Use a newer file.")
        tensors, keys = self.unpack("Q"), self.unpack("Q")
        if keys > MAX_KEYS or tensors > MAX_TENSORS or tensors * 24 > self.size:
            raise self.nonsense(f"it promises {tensors:,} tensors and {keys:,} settings in {self.size:,} bytes")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.name()
            metadata[key] = self.value()
        table = [self.tensor_entry() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self.nonsense(f"alignment {alignment}")
        base = -(-self.at // alignment) * alignment
        return metadata, {entry[0]: self.tensor(base, *entry) for entry in table}

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self.name(), self.unpack("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.nonsense(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.unpack("Q") for _ in range(dimensions))
        return name, shape[::-1], self.unpack("I"), self.unpack("Q")

    def tensor(self, base: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GGUFTensor:
        import gguf

        try:
            block_type = gguf.GGMLQuantizationType(kind)
            block, block_bytes = gguf.GGML_QUANT_SIZES[block_type]
        except (ValueError, KeyError):
            raise ModelError(f"Tensor {name} has the unknown storage type {kind}", "Use another file.") from None
        count = 1
        for axis in shape:
            count *= axis
        if count == 0 or shape[-1] % block:
            raise self.nonsense(f"tensor {name} of shape {shape} does not fill blocks of {block}")
        size = count // block * block_bytes
        if base + offset + size > self.size:
            raise self.cut_short()
        data = np.frombuffer(self.data, np.uint8, size, base + offset).reshape(count // shape[-1], -1)
        return GGUFTensor(name, shape, block_type.name, data)
