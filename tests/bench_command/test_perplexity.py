"""The mean negative log likelihood is that of the engine's scores, in one window or in many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from rvchat.bench import perplexity
from rvchat.engine.engine import Engine
from rvchat.errors import BadInputError
from tests.bench_command.conftest import CONTEXT


def by_hand(engine: Engine, ids: list[int]) -> npt.NDArray[np.float64]:
    """Of each of `ids` but the first, from the scores of all of them."""
    scores = engine.logits(ids[:-1]).astype(np.float64)
    normaliser = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    return normaliser - scores[np.arange(len(ids) - 1), ids[1:]]


def test_pieces_add_up_to_what_the_scores_say(engine: Engine) -> None:
    ids = [2, *np.random.default_rng(1).integers(3, 320, CONTEXT).tolist()]
    found = np.concatenate(list(engine.nll(ids)))
    assert found.shape == (CONTEXT,)
    assert np.abs(found - by_hand(engine, ids)).max() < 1e-4


def test_every_token_counts_once_in_windows_that_begin_anew(engine: Engine) -> None:
    text = np.random.default_rng(2).integers(3, 320, 2 * CONTEXT + 5).tolist()
    told: list[int] = []
    found = perplexity.measure(engine, text, bos_id=2, window=CONTEXT, report=lambda done, nll: told.append(done))
    windows = [text[i : i + CONTEXT] for i in range(0, len(text), CONTEXT)]
    expected = np.concatenate([by_hand(engine, [2, *window]) for window in windows])
    assert (found.tokens, found.windows) == (len(text), 3)
    assert found.nll == pytest.approx(expected.mean(), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(expected.mean()), rel=1e-4)
    assert told[-1] == len(text)


def test_more_than_the_context_holds_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInputError, match=rf"{CONTEXT + 1} tokens are more than the context of {CONTEXT}"):
        next(engine.nll([2] * (CONTEXT + 2)))
    free = engine.kv_capacity
    next(engine.nll([2] * (CONTEXT + 1))).sum()
    assert engine.kv_capacity == free


def test_nothing_to_predict_is_refused() -> None:
    class Never:
        def nll(self, ids: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
            raise AssertionError("nothing was asked")

    with pytest.raises(BadInputError, match="no text"):
        perplexity.measure(Never(), [], bos_id=2, window=8)


def test_a_model_that_rules_a_token_out_is_infinitely_perplexed() -> None:
    assert perplexity.Perplexity(1, 1e4, 1).perplexity == math.inf
