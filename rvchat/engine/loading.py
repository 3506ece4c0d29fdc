"""From a checkpoint to parameters: tensor by tensor, a few rows at a time, into the stacks.

What is rounded to INT4 from floats comes last, layer by layer: how it is rounded depends on what the layers are given
to multiply, so that the model must run as far as it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine import feedback, quantising
from rvchat.engine.calibrating import Calibration
from rvchat.engine.checkpoint import Checkpoint, Tensor
from rvchat.engine.config import KINDS, Form, Kind, Segment, Weight, all_weights, layer_weights, model_weights
from rvchat.engine.nibbles import GROUP
from rvchat.engine.params import Layers, Params, PerLayerParams, SegmentParams
from rvchat.engine.storage import Storage
from rvchat.engine.table import BLOCK_FORMS, PLAIN_FORMS, Table
from rvchat.errors import ModelError
from rvchat.kernels.quantised import Quantised, QuantisedRows, values_of

Progress = Callable[[str, float], None]

# So many values are converted at a time: what a load needs beyond the parameters themselves.
BLOCK_VALUES = 1 << 22
# The scales of columns are taken from runs of rows here and there.
SAMPLES, SAMPLE_ROWS = 64, 64

# Bytes. What XLA wants of an address to use what is there.
ALIGNMENT = 64

DTYPES = {"float32": np.dtype(np.float32), "bf16": np.dtype(jnp.bfloat16)}
FORMS = {"float32": "F32", "bf16": "BF16"}


@dataclass(frozen=True)
class Filling:
    """A stack of INT4 or INT8 that is being filled: the arrays of `Quantised`, on the host."""

    values: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    columns: npt.NDArray[np.float32]

    @classmethod
    def empty(cls, form: Form, count: int, shape: tuple[int, ...], scales: npt.DTypeLike = np.float16) -> Filling:
        """`count` weights whose shape ends in [outputs, inputs], their scales stored as `scales`."""
        outputs, inputs = shape[-2:]
        return cls(
            aligned(values_of(4 if form == "int4" else 8, count, outputs, inputs), np.uint16),
            aligned((count, inputs // GROUP, outputs), scales),
            np.ones((count, inputs), np.float32),
        )

    def put(self, place: int, start: int, integers: npt.NDArray[Any], scales: npt.NDArray[Any]) -> None:
        """The outputs from `start` on of a place: uint8 [n, G, 16] or int8 [n, G, 32], and scales [n, G]."""
        n = len(integers)
        words = np.ascontiguousarray(integers).view(np.uint16)  # [n, G, words]
        self.values[place, :, :, start : start + n] = words.transpose(1, 2, 0)
        self.scales[place, :, start : start + n] = scales.reshape(n, -1).T

    def on_device(self, exact: bool) -> Quantised:
        columns = on_device(self.columns) if (self.columns != 1).any() else None
        bits = self.values.shape[2] * 16 // GROUP
        return Quantised(on_device(self.values), on_device(self.scales), bits, exact, columns)


@dataclass
class Loader:
    """Fills parameters from a checkpoint, in the forms that `storage` says, reporting the share of values read."""

    checkpoint: Checkpoint
    storage: Storage
    progress: Progress
    _done: int = 0

    def __post_init__(self) -> None:
        self.config = self.checkpoint.config
        self._total = sum(weight.size * count for _, weight, count in all_weights(self.config))

    def load(self) -> Params:
        """Raises ModelError naming a tensor that is missing or has another shape than the configuration says."""
        model = model_weights(self.config)
        segments = tuple(
            SegmentParams(self.layers(segment, "sliding"), self.layers(segment, "full"))
            for segment in self.config.segments
        )
        per_layer = None
        if (table := self.table()) is not None:
            per_layer = PerLayerParams(
                table,
                self.plain([self.find("per_layer_projection", model["per_layer_projection"])], self.storage.compute)[0],
                self.plain([self.find("per_layer_norm", model["per_layer_norm"])], self.storage.compute)[0],
            )
        norm = self.plain([self.find("final_norm", model["final_norm"])], self.storage.compute)[0]
        params = Params(self.embedding(model["embed"]), norm, per_layer, segments)
        each = zip(self.config.segments, segments, strict=True)
        is_whole = not any(
            self.absent(segment, kind, getattr(found, kind)) for segment, found in each for kind in KINDS
        )
        return params if is_whole else self.calibrated(params)

    def layers(self, segment: Segment, kind: Kind) -> Layers | None:
        """The stacks of a segment, without those that are rounded to INT4 once all else is there."""
        numbers = segment.layer_numbers(kind)
        if not numbers:
            return None
        stacks: Layers = {}
        for name, weight in layer_weights(self.config, segment, kind).items():
            tensors = [self.find(name, weight, number) for number in numbers]
            form = self.storage.stack(weight.role, tensors, weight.shape[-1] if weight.shape else 1)
            if form == "int4" and weight.role == "linear" and any(t.int4_rows(0, 1) is None for t in tensors):
                continue
            if form in ("int4", "int8"):
                stacks[name] = self.quantised(tensors, weight, form)
            else:
                plain = self.plain(tensors, form)
                # Every expert is a layer of its stack.
                stacks[name] = plain.reshape(-1, *weight.shape[1:]) if weight.role == "experts" else plain
        return stacks

    def absent(self, segment: Segment, kind: Kind, found: Layers | None) -> dict[str, Weight]:
        """The fields of a segment's layers that are not there yet."""
        weights = layer_weights(self.config, segment, kind) if segment.count(kind) else {}
        return {name: weight for name, weight in weights.items() if name not in (found or {})}

    def calibrated(self, params: Params) -> Params:
        """With the fields that are absent, rounded to INT4 for what they are given to multiply."""
        calibration = Calibration(self.config, params)
        each = zip(self.config.segments, params.segments, strict=True)
        return replace(params, segments=tuple(self.completed(segment, found, calibration) for segment, found in each))

    def completed(self, segment: Segment, found: SegmentParams, calibration: Calibration) -> SegmentParams:
        stacks: dict[Kind, Layers] = {"sliding": found.sliding or {}, "full": found.full or {}}
        absent = {kind: self.absent(segment, kind, stacks[kind]) for kind in KINDS}
        filled = {
            kind: {name: Filling.empty("int4", segment.count(kind), w.shape) for name, w in absent[kind].items()}
            for kind in KINDS
        }
        for offset in range(segment.layers):
            kind, place = segment.place(offset)
            number = segment.first_layer + offset
            tensors = {name: self.find(name, weight, number) for name, weight in absent[kind].items()}
            weights = {name: self.plain([tensor], self.storage.compute)[0] for name, tensor in tensors.items()}
            moments = calibration.through(segment, offset, stacks[kind], weights, lambda: self._advance(0))
            for name, tensor in tensors.items():
                self.round(filled[kind][name], place, tensor, weights[name], moments[name])
            del weights, moments
        whole = {
            kind: stacks[kind] | {name: stack.on_device(self.storage.exact) for name, stack in filled[kind].items()}
            for kind in KINDS
        }
        return SegmentParams(whole["sliding"] or None, whole["full"] or None)

    def round(
        self, stack: Filling, place: int, tensor: Tensor, weights: jax.Array, moments: npt.NDArray[np.float32]
    ) -> None:
        """Fills a layer's place with `weights` [outputs, inputs] rounded, or with what the file has in INT4."""
        if (rows := tensor.int4_rows()) is not None:
            stack.put(place, 0, *rows)
            return
        stack.columns[place] = quantising.int4_columns(self.sample(tensor, 0, len(weights)))
        rounding = feedback.Rounding.of(moments, stack.columns[place])
        for start, integers, scales in rounding.pieces(weights):
            self._advance(0)
            stack.put(place, start, integers, scales)

    def find(self, field: str, weight: Weight, layer: int | None = None) -> Tensor:
        tensor = self.checkpoint.tensor(field, layer)
        found = tensor.shape
        if found != weight.shape and not (weight.shape == () and found == (1,)):
            raise ModelError(f"Tensor {tensor.name} has shape {found}; the configuration needs {weight.shape}")
        return tensor

    def plain(self, tensors: list[Tensor], form: Form) -> jax.Array:
        """# [tensors, *shape]; a scalar's shape is ()"""
        return on_device(self.filled(tensors, form))

    def filled(self, tensors: list[Tensor], form: Form) -> npt.NDArray[Any]:
        """# [tensors, *shape]"""
        shape = tensors[0].shape if tensors[0].shape != (1,) else ()
        out = aligned((len(tensors), *shape), DTYPES[form])
        for place, tensor in enumerate(tensors):
            matrix = out[place : place + 1].reshape(-1, shape[-1] if shape else 1)
            for start, stop in self.blocks(matrix.shape):
                matrix[start:stop] = tensor.rows(start, stop)
        return out

    def quantised(self, tensors: list[Tensor], weight: Weight, form: Form) -> Quantised:
        outputs, inputs = weight.shape[-2:]
        experts = weight.shape[0] if weight.role == "experts" else 1
        _, scales = self.integers(tensors[0], form, slice(0, 1), np.ones(inputs, np.float32))
        stack = Filling.empty(form, len(tensors) * experts, weight.shape, scales.dtype)
        for place in range(len(tensors) * experts):
            tensor, base = tensors[place // experts], place % experts * outputs
            if form == "int4" and tensor.int4_rows(0, 1) is None:
                stack.columns[place] = quantising.int4_columns(self.sample(tensor, base, outputs))
            for start, stop in self.blocks((outputs, inputs)):
                rows = slice(base + start, base + stop)
                stack.put(place, start, *self.integers(tensor, form, rows, stack.columns[place]))
        return stack.on_device(self.storage.exact)

    @staticmethod
    def integers(
        tensor: Tensor, form: Form, rows: slice, columns: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows of a tensor over `columns` in INT4 (as the file has them if it does) or INT8: integers and scales."""
        if form == "int8":
            return quantising.int8(tensor.rows(rows.start, rows.stop))
        return tensor.int4_rows(rows.start, rows.stop) or quantising.int4(tensor.rows(rows.start, rows.stop) / columns)

    @staticmethod
    def sample(tensor: Tensor, base: int, count: int) -> npt.NDArray[np.float32]:
        """Some of the `count` rows from `base` on. # [n, inputs]"""
        starts = np.linspace(0, count, min(SAMPLES, -(-count // SAMPLE_ROWS)), endpoint=False).astype(int).tolist()
        return np.concatenate([tensor.rows(base + i, base + min(i + SAMPLE_ROWS, count)) for i in starts])

    def embedding(self, weight: Weight) -> jax.Array | QuantisedRows:
        tensor = self.find("embed", weight)
        form = self.storage.embedding(tensor)
        if form != "int8":
            return self.plain([tensor], form)[0]
        vocab = weight.shape[0]
        values, scales = aligned(weight.shape, np.int8), aligned((vocab, 1), np.float32)
        columns = quantising.table_columns(self.sample(tensor, 0, vocab))
        for start, stop in self.blocks(weight.shape):
            values[start:stop], scales[start:stop, 0] = quantising.int8_rows(tensor.rows(start, stop) / columns)
        return QuantisedRows(on_device(values), on_device(scales), on_device(columns), self.storage.exact)

    def table(self) -> Table | None:
        """The per-layer table as its file stores it, where a step can read rows of that form."""
        weight = model_weights(self.config).get("per_layer_table")
        if weight is None:
            return None
        tensor = self.find("per_layer_table", weight)
        data, form = tensor.as_stored(), tensor.form
        if data is None or form not in (*PLAIN_FORMS, *BLOCK_FORMS):
            data, form = self.filled([tensor], self.storage.compute)[0], FORMS[self.storage.compute]
        else:
            self._advance(weight.size)
        bits = data.view(np.uint16) if data.dtype.itemsize == 2 else data
        return Table(on_device(bits), form, weight.shape[-1])

    def blocks(self, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Ranges of rows of a matrix, some millions of values each."""
        rows, width = shape
        step = max(1, BLOCK_VALUES // width)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield start, stop
            self._advance((stop - start) * width)

    def _advance(self, values: int) -> None:
        self._done += values
        self.progress("read", min(1.0, self._done / self._total))


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array to be filled, at an address that lets a CPU use it as it is: `on_device` copies it otherwise."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def on_device(array: npt.NDArray[Any]) -> jax.Array:
    """# array, which must not be changed afterwards"""
    placed: jax.Array = jax.device_put(array)
    return placed
