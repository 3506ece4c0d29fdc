"""Keys and values in pages: the device pools, and the host's table of which page holds what.

Two pools, one for sliding layers and one for full-attention layers. Page 0 of each is scratch: unused entries of a
table point at it, and rows of padding are written to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.decoder import Rows

Array = jax.Array

SCRATCH = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pool:
    """One kind's pages, head-major. keys, values: [L, pages, K, page, H]. Always donated."""

    keys: Array
    values: Array


KVPages = dict[Kind, Pool]


def empty_pools(config: ModelConfig, pages: Mapping[Kind, int], page_size: int, dtype: jnp.dtype) -> KVPages:
    """Pools of zeros: what a mask hides is multiplied by 0, and NaN times 0 is NaN."""
    pools: KVPages = {}
    for kind in KINDS:
        a = config.attention(kind)
        shape = (config.owners(kind), pages[kind], a.kv_heads, page_size, a.head_dim)
        pools[kind] = Pool(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
    return pools


def write(pool: Pool, rows: Rows, table: Array, start: Array, count: Array) -> Pool:
    """The pool with new rows [L, S, C, K, H] at positions `start` [S] and on; only the first `count` [S] are kept.

    table: int32 [S, context pages].
    """
    page = pool.keys.shape[3]
    places = jnp.arange(rows[0].shape[2], dtype=jnp.int32)
    positions = start[:, None] + places  # [S, C]
    pages = jnp.take_along_axis(table, positions // page, axis=1, mode="clip")
    pages = jnp.where(places < count[:, None], pages, SCRATCH)

    def put(target: Array, new: Array) -> Array:
        # Indexing axes 1 and 3 with arrays moves them to the front. # [S, C, L, K, H]
        return target.at[:, pages, :, positions % page].set(jnp.moveaxis(new, 0, 2).astype(target.dtype))

    return Pool(put(pool.keys, rows[0]), put(pool.values, rows[1]))


class PagesExhaustedError(Exception):
    """No page is free."""


@dataclass
class Sequence:
    """The pages of one sequence: page of its positions -> page of the pool."""

    pages: dict[Kind, dict[int, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})


class PageTable:
    """Hands out pages of the pools and takes them back."""

    def __init__(self, config: ModelConfig, pages: Mapping[Kind, int], page_size: int, max_context: int) -> None:
        self.config = config
        self.page_size = page_size
        self.context_pages = -(-max_context // page_size)
        self.capacity = (pages["full"] - 1) * page_size
        self._free: dict[Kind, list[int]] = {kind: list(range(pages[kind] - 1, SCRATCH, -1)) for kind in KINDS}

    def free_pages(self, kind: Kind) -> int:
        return len(self._free[kind])

    def extend(self, sequence: Sequence, start: int, stop: int) -> None:
        """Makes room for positions `start` to `stop`. Raises PagesExhaustedError, having taken nothing."""
        needed = range(start // self.page_size, -(-stop // self.page_size))
        missing = {kind: [p for p in needed if p not in sequence.pages[kind]] for kind in KINDS}
        if any(len(missing[kind]) > len(self._free[kind]) for kind in KINDS):
            raise PagesExhaustedError
        for kind in KINDS:
            for page in missing[kind]:
                sequence.pages[kind][page] = self._free[kind].pop()

    def trim(self, sequence: Sequence, position: int) -> None:
        """Gives back the pages of sliding layers that no token at `position` or later sees."""
        window = self.config.sliding.window
        if window is None:
            return
        held = sequence.pages["sliding"]
        first_seen = max(0, position - window + 1) // self.page_size
        for page in [p for p in held if p < first_seen]:
            self._free["sliding"].append(held.pop(page))

    def release(self, sequence: Sequence) -> None:
        for kind in KINDS:
            self._free[kind].extend(sequence.pages[kind].values())
            sequence.pages[kind].clear()

    def row(self, sequence: Sequence, kind: Kind) -> npt.NDArray[np.int32]:
        """The table of one sequence as the device reads it. # int32 [context pages]"""
        row = np.full(self.context_pages, SCRATCH, np.int32)
        for page, place in sequence.pages[kind].items():
            row[page] = place
        return row
