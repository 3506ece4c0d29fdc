"""What a model's layers are given to read: texts of our own, sent through it layer by layer while it is loaded.

calibration.npy holds them as ids [texts, tokens], each beginning with the token that begins a text. It is made by
assets/calibration.py from the passages in calibration.txt beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine import feedback
from rvchat.engine.config import Kind, ModelConfig, Segment
from rvchat.engine.decoder import Rows, embed, one_layer, per_layer_inputs
from rvchat.engine.params import Layers, Params
from rvchat.kernels.linear import product

Array = jax.Array

# So many texts are sent through a layer at a time.
TOGETHER = 8


def texts(config: ModelConfig) -> npt.NDArray[np.int32]:
    """The ids of the texts; of a smaller vocabulary, ids that it has. # [texts, tokens]"""
    with resources.files(__package__).joinpath("calibration.npy").open("rb") as file:
        ids: npt.NDArray[np.int32] = np.load(file) % config.vocab_size
    ids[:, 0] = config.bos_id
    return ids


@dataclass(frozen=True)
class Watched:
    """A layer's weight [outputs, inputs] that notes what it is multiplied by."""

    weight: Array
    seen: list[Array]

    def product(self, x: Array, layer: Array | int) -> Array:
        """`x @ weight.T` in float32, of whichever layer it is. x: [..., inputs]. # [..., outputs]"""
        self.seen.append(x)
        return product(x, self.weight)


@dataclass
class Reading:
    """Some texts on their way: x [S, C, D] after the layers so far, and what later layers take from elsewhere."""

    x: Array
    per_layer: Array | None
    owned: dict[Kind, Rows]


class Calibration:
    """The texts on their way through a model."""

    def __init__(self, config: ModelConfig, params: Params) -> None:
        """`params` need no layers yet."""
        self.config = config
        ids = texts(config)
        self.readings: list[Reading] = []
        for start in range(0, len(ids), TOGETHER):
            tokens = jnp.asarray(ids[start : start + TOGETHER])
            x = embed(config, params, tokens)
            self.readings.append(Reading(x, per_layer_inputs(config, params, tokens, x), {}))

    def through(
        self,
        segment: Segment,
        offset: int,
        stacks: Layers,
        weights: Mapping[str, Array],
        heard: Callable[[], None],
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Sends the texts through a segment's `offset`-th layer, whose `weights` [outputs, inputs] `stacks` may lack,
        and tells what each of these is multiplied by: `feedback.moments` by field. # [B, I, I]

        Calls `heard` now and then.
        """
        kind, place = segment.place(offset)
        total: dict[str, Array] = {}
        for reading in self.readings:
            heard()
            reading.x, rows, found = _through(
                self.config,
                segment,
                kind,
                jnp.int32(place),
                jnp.int32(offset),
                stacks,
                weights,
                reading.x,
                reading.per_layer,
                reading.owned if segment.shares_kv else {},
            )
            if rows is not None:
                reading.owned[kind] = (rows[0][None], rows[1][None])
            total = found if not total else {field: total[field] + found[field] for field in found}
        return {field: np.asarray(moments) for field, moments in total.items()}


@partial(jax.jit, static_argnames=("config", "segment", "kind"))
def _through(
    config: ModelConfig,
    segment: Segment,
    kind: Kind,
    place: Array,
    offset: Array,
    stacks: Layers,
    weights: Mapping[str, Array],
    x: Array,
    per_layer: Array | None,
    owned: Mapping[Kind, Rows],
) -> tuple[Array, Rows | None, dict[str, Array]]:
    watched = {field: Watched(weight, []) for field, weight in weights.items()}
    x, rows = one_layer(config, segment, kind, place, offset, {**stacks, **watched}, x, per_layer, owned)
    return x, rows, {field: feedback.moments(weight.seen[0]) for field, weight in watched.items()}
