"""Keys and values in pages: the device pools, and the host's table of which page holds what.

Two pools, one for sliding layers and one for full-attention layers. Page 0 of each is what unused entries of a table
point at: it is never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.decoder import Rows
from rvchat.engine.prefixes import Node, PrefixTree
from rvchat.errors import OutOfMemoryError
from rvchat.kernels.attention import BITS, to_bits

Array = jax.Array

NO_PAGE = 0


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
    pages = jnp.where(places < count[:, None], pages, pool.keys.shape[1])  # beyond the pool: dropped

    def put(target: Array, new: Array) -> Array:
        stored = to_bits(new) if target.dtype == BITS else new.astype(target.dtype)
        # Indexing axes 1 and 3 with arrays moves them to the front. # [S, C, L, K, H]
        return target.at[:, pages, :, positions % page].set(jnp.moveaxis(stored, 0, 2), mode="drop")

    return Pool(put(pool.keys, rows[0]), put(pool.values, rows[1]))


@dataclass
class Sequence:
    """The pages of one sequence, by page of its positions.

    `path` are the nodes of its full pages so far. `pages` says where each page it holds is in the pools; those in
    `shared` belong to the node of that place in the path, the others to the sequence alone. `kept` are the pages of
    sliding layers that are worth keeping when the window leaves them.
    """

    path: list[Node] = field(default_factory=list)
    pages: dict[Kind, dict[int, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    shared: dict[Kind, set[int]] = field(default_factory=lambda: {kind: set() for kind in KINDS})
    kept: set[int] = field(default_factory=set)


class PageTable:
    """Hands out pages of the pools, finds those that already hold the beginning of a text, and takes them back."""

    def __init__(self, config: ModelConfig, pages: Mapping[Kind, int], page_size: int, max_context: int) -> None:
        self.config = config
        self.page_size = page_size
        self.context_pages = -(-max_context // page_size)
        self.capacity = (pages["full"] - 1) * page_size
        self._free: dict[Kind, list[int]] = {kind: list(range(pages[kind] - 1, NO_PAGE, -1)) for kind in KINDS}
        self._prefixes = PrefixTree()

    def free_pages(self, kind: Kind) -> int:
        """Pages that a sequence could get: unused ones, and those kept for texts that may come again."""
        return len(self._free[kind]) + self._prefixes.idle(kind)

    def begin(self, ids: SequenceOf[int]) -> tuple[Sequence, int]:
        """A sequence for `ids` with the pages that already hold their beginning, and how many tokens those hold.

        At least the last token is left to be read. Sliding layers must still have the window before that point.
        """
        found = self._prefixes.path(ids[:-1], self.page_size)
        while found and not all("sliding" in found[p].pages for p in self._window(len(found) * self.page_size)):
            found.pop()
        sequence = Sequence(found)
        reused = len(found) * self.page_size
        for place in range(len(found)):
            self._hold(sequence, "full", place)
        for place in self._window(reused):
            self._hold(sequence, "sliding", place)
        return sequence, reused

    def room(self, sequences: SequenceOf[tuple[Sequence, int]], most: int) -> int:
        """How many tokens, at most `most`, all of these sequences can be extended by, each from its position on."""

        def fits(count: int) -> bool:
            return all(
                sum(len(self._missing(s, kind, start, start + count)) for s, start in sequences)
                <= self.free_pages(kind)
                for kind in KINDS
            )

        return next((count for count in range(most, 0, -1) if fits(count)), 0)

    def extend(self, sequence: Sequence, start: int, stop: int) -> None:
        """Makes room for positions `start` to `stop`. Raises OutOfMemoryError, having taken nothing."""
        missing = {kind: self._missing(sequence, kind, start, stop) for kind in KINDS}
        if any(len(missing[kind]) > self.free_pages(kind) for kind in KINDS):
            raise OutOfMemoryError(
                f"The pages for keys and values have no room for {stop - start:,} more tokens",
                "End an answer that is under way, or load the model with more memory for keys and values.",
            )
        for kind in KINDS:
            for page in missing[kind]:
                if not self._free[kind]:
                    for freed, places in self._prefixes.give_up(kind).items():
                        self._free[freed].extend(places)
                sequence.pages[kind][page] = self._free[kind].pop()

    def wrote(self, sequence: Sequence, ids: SequenceOf[int]) -> None:
        """Says that the pages now hold `ids`: those that are full can be found from now on."""
        for place in range(len(sequence.path), len(ids) // self.page_size):
            tokens = tuple(ids[place * self.page_size : (place + 1) * self.page_size])
            parent = sequence.path[-1] if sequence.path else self._prefixes.root
            node = self._prefixes.child(parent, tokens)
            sequence.path.append(node)
            for kind in KINDS:
                if place in sequence.pages[kind]:
                    page = sequence.pages[kind][place]
                    # Where another sequence wrote the same page before, this one goes on with that. A call that is
                    # still under way may read the page given back here, and ends before one that writes it begins.
                    if node.pages.setdefault(kind, page) != page:
                        self._free[kind].append(page)
                    self._hold(sequence, kind, place)

    def keep(self, sequence: Sequence, position: int) -> None:
        """Marks the window before `position`, where a turn starts, as worth keeping.

        One page more, since the next prompt may differ in the last few tokens before it.
        """
        whole = position // self.page_size * self.page_size
        sequence.kept.update(self._window(whole), self._window(max(0, whole - self.page_size)))

    def trim(self, sequence: Sequence, position: int) -> None:
        """Gives back the pages of sliding layers that no token at `position` or later sees."""
        seen = self._window(position)
        for place in [p for p in sequence.pages["sliding"] if p < seen.start]:
            self._leave(sequence, "sliding", place, keep=place in sequence.kept)

    def release(self, sequence: Sequence) -> None:
        """Gives everything back. What comes last is given up first: without it the rest is still of use."""
        for kind in KINDS:
            for place in sorted(sequence.pages[kind], reverse=True):
                self._leave(sequence, kind, place, keep=True)
        sequence.path.clear()

    def row(self, sequence: Sequence, kind: Kind) -> npt.NDArray[np.int32]:
        """The table of one sequence as the device reads it. # int32 [context pages]"""
        row = np.full(self.context_pages, NO_PAGE, np.int32)
        for page, place in sequence.pages[kind].items():
            row[page] = place
        return row

    def _window(self, position: int) -> range:
        """The pages before `position` that a token there sees in sliding layers."""
        window = self.config.sliding.window
        first = 0 if window is None else max(0, position - window + 1) // self.page_size
        return range(first, -(-position // self.page_size))

    def _missing(self, sequence: Sequence, kind: Kind, start: int, stop: int) -> list[int]:
        """The pages of positions `start` to `stop` that a sequence does not have."""
        needed = range(start // self.page_size, -(-stop // self.page_size))
        return [place for place in needed if place not in sequence.pages[kind]]

    def _hold(self, sequence: Sequence, kind: Kind, place: int) -> None:
        sequence.pages[kind][place] = self._prefixes.use(sequence.path[place], kind)
        sequence.shared[kind].add(place)

    def _leave(self, sequence: Sequence, kind: Kind, place: int, *, keep: bool) -> None:
        page = sequence.pages[kind].pop(place)
        if place in sequence.shared[kind]:
            sequence.shared[kind].discard(place)
            self._prefixes.leave(sequence.path[place], kind, keep=keep)
        else:
            self._free[kind].append(page)
