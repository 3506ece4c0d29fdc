"""Attention over pages against the plain formula, for sequences of different lengths, with and without a window."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.kernels.attention import Pages, attention

S, N, K, H, LAYERS = 3, 4, 2, 8, 2
CONTEXT = 24

attend = partial(jax.jit, static_argnames=("window",))(attention)


def plain(q: Any, positions: Any, keys: Any, values: Any, window: int | None) -> Any:
    """One sequence. q: [Q, N, H]; positions: [Q]; keys, values: [T, K, H] of the positions 0 to T."""
    out = np.zeros(q.shape)
    for i, p in enumerate(positions):
        first = 0 if window is None else max(0, p - window + 1)
        for n in range(N):
            k = n // (N // K)
            scores = keys[first : p + 1, k].astype(np.float64) @ q[i, n].astype(np.float64)
            weights = np.exp(scores - scores.max())
            out[i, n] = weights / weights.sum() @ values[first : p + 1, k]
    return out


class Case:
    """Keys and values of some sequences, those before `start` in pages of a pool and the rest beside them."""

    def __init__(self, seed: int, page_size: int, starts: list[int], counts: list[int], new: int) -> None:
        rng = np.random.default_rng(seed)
        self.sequences = len(starts)
        self.starts, self.counts = np.array(starts), np.array(counts)
        context_pages = -(-CONTEXT // page_size)
        pages = 1 + self.sequences * context_pages
        shape = (LAYERS, pages, K, page_size, H)
        # What no sequence holds is large: seen through a mask that leaks, it would change everything.
        pool_k, pool_v = np.full(shape, 50.0, np.float32), np.full(shape, 50.0, np.float32)
        self.keys = rng.normal(size=(self.sequences, CONTEXT + new, K, H)).astype(np.float32)
        self.values = rng.normal(size=(self.sequences, CONTEXT + new, K, H)).astype(np.float32)
        places = rng.permutation(np.arange(1, pages))
        table = np.zeros((self.sequences, context_pages), np.int32)
        at = 0
        for s in range(self.sequences):
            for page in range(-(-int(starts[s]) // page_size)):
                table[s, page] = places[at]
                for slot in range(page_size):
                    position = page * page_size + slot
                    if position < starts[s]:
                        pool_k[1, places[at], :, slot] = self.keys[s, position]
                        pool_v[1, places[at], :, slot] = self.values[s, position]
                at += 1
        self.pages = Pages(
            jnp.asarray(pool_k), jnp.asarray(pool_v), jnp.asarray(table), jnp.asarray(self.starts, jnp.int32)
        )
        self.k_new = np.stack([self.keys[s, starts[s] : starts[s] + new] for s in range(self.sequences)])
        self.v_new = np.stack([self.values[s, starts[s] : starts[s] + new] for s in range(self.sequences)])
        for s in range(self.sequences):
            self.k_new[s, counts[s] :], self.v_new[s, counts[s] :] = 50.0, 50.0
        self.rng = rng

    def check(self, positions: Any, window: int | None) -> None:
        """positions: [S, Q]; compared where they stand before the end of their sequence."""
        q = self.rng.normal(size=(*positions.shape, N, H)).astype(np.float32)
        found = attend(
            jnp.asarray(q),
            jnp.asarray(positions, jnp.int32),
            jnp.asarray(self.k_new),
            jnp.asarray(self.v_new),
            self.pages,
            1,
            jnp.asarray(self.counts, jnp.int32),
            window,
        )
        assert found.shape == q.shape
        assert np.isfinite(found).all()
        for s in range(self.sequences):
            real = positions[s] < self.starts[s] + self.counts[s]
            expected = plain(q[s][real], positions[s][real], self.keys[s], self.values[s], window)
            np.testing.assert_allclose(found[s][real], expected, atol=2e-5)


lengths = st.lists(st.integers(0, CONTEXT), min_size=S, max_size=S)


@pytest.mark.parametrize("window", [None, 1, 6, 100])
@pytest.mark.parametrize("page_size", [4, 8])
@given(starts=lengths, counts=st.lists(st.integers(1, 5), min_size=S, max_size=S), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_a_piece_of_a_prompt(
    page_size: int, window: int | None, starts: list[int], counts: list[int], seed: int
) -> None:
    case = Case(seed, page_size, starts, counts, 5)
    case.check(case.starts[:, None] + np.arange(5), window)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("sequences", [1, 2, S])  # of one, four pages are taken a turn; of two, two
@given(starts=lengths, counts=st.lists(st.integers(1, 5), min_size=S, max_size=S), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_the_last_token_alone(
    sequences: int, window: int | None, starts: list[int], counts: list[int], seed: int
) -> None:
    """One query of each sequence, after several tokens that no page holds yet."""
    case = Case(seed, 4, starts[:sequences], counts[:sequences], 5)
    case.check((case.starts + case.counts - 1)[:, None], window)


def test_a_row_of_padding_gives_numbers() -> None:
    """Nothing is seen by a query of a sequence without tokens; what comes out is no NaN."""
    case = Case(1, 4, [0, 3, 8], [0, 0, 2], 5)
    case.check(case.starts[:, None] + np.arange(5), 6)


def test_equal_scores_weigh_equally() -> None:
    """Whatever their size: the largest score is taken off before the exponential."""
    values = np.arange(10, dtype=np.float32)[None, :, None, None] * np.ones((1, 10, 1, 4), np.float32)
    keys = np.full((1, 10, 1, 4), 300.0, np.float32)
    pool = jnp.zeros((1, 1, 1, 4, 4))
    pages = Pages(pool, pool, jnp.zeros((1, 3), jnp.int32), jnp.zeros(1, jnp.int32))
    q = np.full((1, 10, 1, 4), 300.0, np.float32)
    found = attend(q, np.arange(10)[None], keys, values, pages, 0, jnp.asarray([10]), None)
    np.testing.assert_allclose(found[0, :, 0, 0], np.arange(10) / 2, rtol=1e-5)
