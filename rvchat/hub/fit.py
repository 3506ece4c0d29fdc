"""Whether a model fits this machine: memory for its weights and for a context, by the engine's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rvchat.engine.checkpoint import Checkpoint
from rvchat.engine.config import (
    KINDS,
    ModelConfig,
    all_weights,
    kv_bytes,
    kv_bytes_per_token,
    layer_weights,
    model_weights,
)
from rvchat.engine.memory import RESERVE, KVPlan, gigabytes
from rvchat.engine.storage import Storage
from rvchat.errors import DoesNotFitError, ModelError
from rvchat.hub.catalogue import Entry
from rvchat.hub.machine import Machine

Verdict = Literal["fits", "tight", "no", "unknown"]

# A context that a conversation of some length needs.
CONTEXT = 8192
# Where less than this share of the memory is left, other programs will want it back.
ROOM = 0.1
# The engine's own: tokens in a page, and in the largest piece of a prompt; bytes of a number in keys and values, which
# have 16 bits whatever is computed in.
PAGE_SIZE, CHUNK, NUMBER = 256, 512, 2

# Stands for memory of unknown size.
PLENTY = 1 << 50

BITS: Mapping[str, float] = {"F32": 32, "F16": 16, "BF16": 16, "W4A16": 4.5, "Q4_0": 4.5, "Q6_K": 6.5625, "Q8_0": 8.5}
"""Bits a weight in a file, scales included."""

LINEAR: Mapping[str, str] = {"bf16": "BF16", "w4a16": "W4A16", "q4_0": "Q4_0"}
"""How the linear layers of a catalogue's format are stored."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes of memory and tokens of context. `weights`: of all weights; `form`: how linear layers are stored. `pages`:
    what the engine sets aside for keys and values when it is asked for nothing else, which holds `given` tokens. A
    context of `context` tokens needs `kv`. `longest`: the longest context that there is memory for. `free`: what the
    verdict was made with. `reason`: a sentence."""

    verdict: Verdict
    weights: int
    form: str
    pages: int
    given: int
    context: int
    kv: int
    longest: int
    free: int | None
    reason: str

    @property
    def needed(self) -> int:
        """Bytes that must be free to load the model and talk for `context` tokens."""
        return self.weights + self.kv + RESERVE


def judge(checkpoint: Checkpoint, machine: Machine, context: int = CONTEXT) -> Fit:
    """What the engine would make of it on `machine`."""
    config, free = checkpoint.config, machine.free
    context = min(context, config.context)
    choices = [(choice.bytes_of(checkpoint), choice) for choice in Storage.choices("auto", "auto", machine.platform)]
    weights, choice = next(
        ((size, choice) for size, choice in choices if free is None or size + RESERVE <= free),
        min(choices, key=lambda pair: pair[0]),
    )
    linear = checkpoint.tensor("q", 0)
    form = choice.stack("linear", [linear], linear.shape[-1])
    room = PLENTY if free is None else max(0, free - weights)
    usual = _plan(config, None, room)
    longest = _plan(config, max(0, room - RESERVE), room)
    kv = kv_bytes(config, context, NUMBER)
    verdict, reason = _verdict(weights, kv, context, usual.max_context, free)
    return Fit(
        verdict=verdict,
        weights=weights,
        form=form,
        pages=sum(usual.pages[kind] * PAGE_SIZE * kv_bytes_per_token(config, kind, NUMBER) for kind in KINDS),
        given=usual.max_context,
        context=context,
        kv=kv,
        longest=max(longest.max_context, usual.max_context),
        free=free,
        reason=reason,
    )


def _verdict(weights: int, kv: int, context: int, given: int, free: int | None) -> tuple[Verdict, str]:
    if free is None:
        return "unknown", f"needs {gigabytes(weights + kv + RESERVE)}; how much memory is free is not known"
    if weights + RESERVE > free:
        return "no", f"needs {gigabytes(weights + RESERVE)} of memory, and {gigabytes(free)} are free"
    if given == 0:
        return "no", "its weights fit, but leave no memory for a context"
    if given < context:
        return "tight", f"leaves memory for {given:,} tokens of context"
    if weights + kv + RESERVE > free * (1 - ROOM):
        return "tight", f"takes nearly all of the {gigabytes(free)} that are free"
    return "fits", f"needs {gigabytes(weights + kv + RESERVE)} of the {gigabytes(free)} that are free"


def _plan(config: ModelConfig, budget: int | None, free: int) -> KVPlan:
    """The engine's plan of pages; an empty one where not even a page fits."""
    try:
        return KVPlan.make(config, NUMBER, PAGE_SIZE, CHUNK, budget, None, free)
    except DoesNotFitError:
        return KVPlan(0, dict.fromkeys(KINDS, 0))


def file_bytes(entry: Entry) -> int | None:
    """About how large the files of a catalogue's model are: its text weights in their format. None for a model whose
    shape or format is not known."""
    sketch = Sketch.of(entry)
    if sketch is None:
        return None
    return round(sum(w.size * count * BITS[sketch.forms[w.role]] / 8 for _, w, count in all_weights(sketch.config)))


@dataclass(slots=True)
class Sketch:
    """A checkpoint without data: the shapes, and how each kind of weight is stored. Stands for files that are not here
    yet wherever only that is asked. `forms`: by `Weight.role`."""

    config: ModelConfig
    forms: Mapping[str, str]

    @classmethod
    def of(cls, entry: Entry) -> Sketch | None:
        if entry.config is None or not entry.format:
            return None
        linear, rows = LINEAR[entry.format], entry.embedding or "BF16"
        forms = {"linear": linear, "experts": linear, "high": "BF16", "embedding": rows, "table": rows}
        return cls(entry.config, forms)

    def tensor(self, field: str, layer: int | None = None) -> SketchTensor:
        weights = model_weights(self.config) if layer is None else self._layer(layer)
        weight = weights[field]
        form = self.forms[weight.role]
        return SketchTensor(field, weight.shape, form, round(weight.size * BITS[form] / 8))

    def _layer(self, number: int) -> Mapping[str, Any]:
        for segment in self.config.segments:
            for kind in KINDS:
                if number in segment.layer_numbers(kind):
                    return layer_weights(self.config, segment, kind)
        raise ModelError(f"There is no layer {number}")


@dataclass(frozen=True, slots=True)
class SketchTensor:
    name: str
    shape: tuple[int, ...]
    form: str
    stored_bytes: int

    def as_stored(self) -> None:
        return None

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        raise ModelError(f"{self.name} has no data here")

    def int4_rows(
        self, start: int = 0, stop: int | None = None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]] | None:
        """Says only that the file has INT4: no rows."""
        if self.form not in ("W4A16", "Q4_0"):
            return None
        return np.empty((0, 0, 16), np.uint8), np.empty((0, 0), np.float16)
