"""Quantised parameters kept on disk between starts: written once, then mapped and neither read nor converted.

A copy is a safetensors file whose header says which files it was made from and how. The data of every tensor starts at
a multiple of 64 bytes, which is what lets a CPU use the map itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rvchat.engine.config import KINDS, ModelConfig, layer_weights, model_weights
from rvchat.engine.loading import ALIGNMENT, Loader
from rvchat.engine.params import Layers, Params, PerLayerParams, SegmentParams
from rvchat.engine.safetensors import StoredTensor, open_file, read_metadata
from rvchat.engine.storage import Storage, copy_name
from rvchat.engine.table import Table
from rvchat.errors import ModelError
from rvchat.kernels.quantised import GROUP, Quantised, QuantisedRows, values_of

# Of how parameters are laid out; a copy with another number is made again.
VERSION = 6
NAMES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint16": "U16"}


@dataclass(frozen=True, slots=True)
class Copy:
    """The place of one model's copy in one way of storing it, and what it must say to be the right one."""

    file: Path
    origin: str
    exact: bool

    @classmethod
    def of(cls, folder: Path, source: Path, config: ModelConfig, storage: Storage) -> Copy:
        """`source`: the model's folder or file. Its files' sizes and times stand for their content."""
        files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
        stats = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        origin = json.dumps({"version": VERSION, "files": stats, "storage": str(storage), "config": str(config)})
        return cls(folder / f"{copy_name(source, str(storage))}.safetensors", origin, storage.exact)

    def load(self, config: ModelConfig, table: Table | None) -> Params:
        """The parameters, with the per-layer `table` that stays in the model's own file.

        Raises ModelError for a copy that is not whole, or was made from other files or by another version.
        """
        found = read_metadata(self.file).get("origin", "")
        if found != self.origin:
            raise ModelError(f"{self.file} was made from other files, or by another version of rvchat")
        return _Reader(self.file, open_file(self.file), config, self.exact).params(table)

    def save(self, params: Params) -> None:
        """Writes beside the file and moves into place. Raises OSError when it cannot."""
        tensors = dict(_flat(params))
        size = sum(a.nbytes for a in tensors.values())
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()
        if shutil.disk_usage(self.file.parent).free < size + (64 << 20):
            raise OSError(28, f"no room for {size / 1e9:.1f} GB")
        partial = self.file.with_suffix(f".{os.getpid()}.partial")
        try:
            with partial.open("wb") as out:
                fcntl.flock(out, fcntl.LOCK_EX)  # says that its process lives
                os.fchmod(out.fileno(), 0o600)
                out.write(_header(tensors, self.origin))
                for array in tensors.values():
                    out.write(_bytes_of(array))
                    out.write(b"\0" * (-array.nbytes % ALIGNMENT))
                out.flush()
                os.fsync(out.fileno())
            partial.replace(self.file)
        finally:
            partial.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Takes away what processes that died have left of this copy half written."""
        for left in self.file.parent.glob(f"{glob.escape(self.file.stem)}.*.partial"):
            with contextlib.suppress(OSError), left.open("rb") as found:  # it is being written, or has just gone
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def load_params(loader: Loader, copy: Copy | None) -> tuple[Params, tuple[str, ...]]:
    """The parameters from their copy if there is a right one, or else from the checkpoint, and then kept.

    Also what the user should know: that a copy had to be made again, or could not be kept.
    """
    notices: list[str] = []
    if copy is not None and copy.file.exists():
        try:
            return copy.load(loader.config, loader.table()), ()
        except ModelError as error:
            notices.append(f"The quantised copy is made again: {error.message}.")
    params = loader.load()
    if copy is not None and worth_keeping(params):
        loader.progress("keep", 0.0)
        try:
            copy.save(params)
        except OSError as error:
            notices.append(f"The quantised weights could not be kept for the next start: {error.strerror}.")
    return params, tuple(notices)


def worth_keeping(params: Params) -> bool:
    """Whether anything was converted that would have to be converted again."""
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Quantised | QuantisedRows))
    return any(isinstance(leaf, Quantised | QuantisedRows) for leaf in leaves)


def _bytes_of(array: jax.Array) -> memoryview:
    """An array's bytes, from its place on a CPU or from a copy that goes when they are written: an array of another
    device would keep the copy that numpy makes of it."""
    here = jax.device_put(array, jax.devices("cpu")[0])
    return np.ascontiguousarray(here).reshape(-1).view(np.uint8).data


def _flat(params: Params) -> Iterator[tuple[str, jax.Array]]:
    """Every array but the per-layer table, under a name that says where it belongs."""

    def parts(name: str, value: Any) -> Iterator[tuple[str, jax.Array]]:
        if isinstance(value, Quantised | QuantisedRows):
            yield f"{name}.values", value.values
            yield f"{name}.scales", value.scales
            if value.columns is not None:
                yield f"{name}.columns", value.columns
        else:
            yield name, value

    yield from parts("embed", params.embed)
    yield from parts("final_norm", params.final_norm)
    if params.per_layer is not None:
        yield from parts("per_layer_projection", params.per_layer.projection)
        yield from parts("per_layer_norm", params.per_layer.norm)
    for i, segment in enumerate(params.segments):
        for kind in KINDS:
            for field, value in (getattr(segment, kind) or {}).items():
                yield from parts(f"{i}.{kind}.{field}", value)


def _header(tensors: Mapping[str, jax.Array], origin: str) -> bytes:
    """The safetensors header. Padding between tensors is given to the tensor before as bytes of its own."""
    entries: dict[str, Any] = {"__metadata__": {"origin": origin}}
    at = 0
    for name, array in tensors.items():
        entries[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
        if padding := -array.nbytes % ALIGNMENT:
            entries[f"{name}.padding"] = {"dtype": "U8", "shape": [padding], "data_offsets": [at, at + padding]}
            at += padding
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True, slots=True)
class _Reader:
    file: Path
    tensors: Mapping[str, StoredTensor]
    config: ModelConfig
    exact: bool

    def params(self, table: Table | None) -> Params:
        config, model = self.config, model_weights(self.config)
        embed: jax.Array | QuantisedRows
        if "embed.values" in self.tensors:
            vocab, width = model["embed"].shape
            values, scales = self.array("embed.values", (vocab, width)), self.array("embed.scales", (vocab, 1))
            embed = QuantisedRows(values, scales, self.array("embed.columns", (width,)), self.exact)
        else:
            embed = self.array("embed", model["embed"].shape)
        per_layer = None
        if table is not None:
            shape = model["per_layer_projection"].shape
            norm = self.array("per_layer_norm", model["per_layer_norm"].shape)
            per_layer = PerLayerParams(table, self.array("per_layer_projection", shape), norm)
        segments = tuple(SegmentParams(*(self.layers(i, kind) for kind in KINDS)) for i in range(len(config.segments)))
        return Params(embed, self.array("final_norm", model["final_norm"].shape), per_layer, segments)

    def layers(self, index: int, kind: Any) -> Layers | None:
        segment = self.config.segments[index]
        count = segment.count(kind)
        if not count:
            return None
        stacks: Layers = {}
        for field, weight in layer_weights(self.config, segment, kind).items():
            name, shape = f"{index}.{kind}.{field}", (count, *weight.shape)
            if weight.role == "experts":
                shape = (count * weight.shape[0], *weight.shape[1:])
            stacks[field] = self.quantised(name, shape) if f"{name}.values" in self.tensors else self.array(name, shape)
        return stacks

    def quantised(self, name: str, shape: tuple[int, ...]) -> Quantised:
        count, outputs, inputs = shape
        bits = 4 if self.tensors[f"{name}.values"].shape == values_of(4, count, outputs, inputs) else 8
        values = self.array(f"{name}.values", values_of(bits, count, outputs, inputs))
        scales = self.array(f"{name}.scales", (count, inputs // GROUP, outputs))
        columns = self.array(f"{name}.columns", (count, inputs)) if f"{name}.columns" in self.tensors else None
        return Quantised(values, scales, bits, self.exact, columns)

    def array(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != shape:
            found = None if tensor is None else tensor.shape
            raise ModelError(f"{self.file} has {name} in shape {found}, not {shape}")
        placed: jax.Array = jax.device_put(tensor.array())
        return placed
