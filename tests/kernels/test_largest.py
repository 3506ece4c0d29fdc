"""Finding the largest of many numbers in two steps is finding them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rvchat.kernels.largest import CHUNK, largest

COUNT = 64
LARGE = 4 * COUNT * CHUNK  # from this width on the search is in two steps
SMALL = 97

found = jax.jit(largest, static_argnames="count")


@pytest.mark.parametrize("width", [SMALL, LARGE, 2 * LARGE, LARGE + 1])
@pytest.mark.parametrize("kinds", [3, 50, 10**6])
@pytest.mark.parametrize("count", [1, COUNT])
def test_the_largest_are_found_in_order(width: int, kinds: int, count: int) -> None:
    """Also where few different numbers there are: of equal ones the first come first."""
    rng = np.random.default_rng(kinds)
    x = rng.integers(0, kinds, (2, width)).astype(np.float32) / 7
    values, places = found(jnp.asarray(x), count=count)
    for row in range(2):
        order = np.argsort(-x[row], kind="stable")[:count]
        np.testing.assert_array_equal(places[row], order)
        np.testing.assert_array_equal(values[row], x[row][order])


def test_all_of_them_in_one_place() -> None:
    """And one more in the last: chunks are chosen by their largest, numbers by themselves."""
    x = np.full((1, LARGE), -5.0, np.float32)
    x[0, :CHUNK] = np.arange(CHUNK, 0, -1)
    x[0, -1] = 1.5
    values, places = found(jnp.asarray(x), count=COUNT)
    expected = np.argsort(-x[0], kind="stable")[:COUNT]
    np.testing.assert_array_equal(places[0], expected)
    np.testing.assert_array_equal(values[0], x[0][expected])


def test_more_than_there_are() -> None:
    values, places = found(jnp.asarray([[1.0, 3.0, 2.0]]), count=COUNT)
    assert places.tolist() == [[1, 2, 0]]
    assert values.tolist() == [[3.0, 2.0, 1.0]]


def test_nothing_possible_but_one() -> None:
    x = np.full((1, LARGE), -np.inf, np.float32)
    x[0, 4711] = -3.0
    assert found(jnp.asarray(x), count=COUNT)[1][0, 0] == 4711
