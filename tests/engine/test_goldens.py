"""Every architecture gives the reference's numbers, however its prompt is cut and wherever its pages end.

The models' windows are 8 positions and their prompts 40, so that pages of 4 and of 8 are left behind while reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rvchat.engine.engine import Engine

TOLERANCE = 5e-3
ARCHITECTURES = ["gemma3", "gemma4-e2b", "gemma4-e4b", "gemma4-12b", "gemma4-31b", "gemma4-26b-a4b"]
QUANTISED = ["gemma4-e2b-w4a16", "gemma4-e2b-q4_0", "gemma4-31b-w4a16", "gemma4-31b-q4_0", "gemma4-26b-a4b-q4_0"]
# Kept with what stands after each layer: the others' files are smaller without.
WITH_HIDDEN = ["gemma3", "gemma4-e2b"]


def models(*names: str) -> Any:
    """Tests of one model run one after the other, so that its programs are compiled once."""
    return pytest.mark.parametrize("model", names, indirect=True, scope="module")


every_model = models(*ARCHITECTURES, *QUANTISED)
# How pages are laid out and left does not depend on how weights are stored.
every_architecture = models(*ARCHITECTURES)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, golden: Callable[[str], Any]) -> Any:
    return golden(request.param)


@pytest.fixture(scope="module")
def pages_of_4(model: Any) -> Engine:
    return model.engine(page_size=4)


@pytest.fixture(scope="module")
def pages_of_8(model: Any) -> Engine:
    return model.engine(page_size=8)


@pytest.fixture(scope="module")
def loaded(model: Any) -> Iterator[Engine]:
    engine = Engine.load(model.path, dtype="float32", kv_memory=1 << 28)
    yield engine
    engine.close()


def difference(engine: Engine, model: Any, chunk: int | None = None) -> float:
    logits = engine.logits(model.ids, chunk)
    assert logits.shape == model.logits.shape
    assert logits.dtype == np.float32
    return float(np.abs(logits - model.logits).max())


@every_architecture
def test_logits_in_one_piece(pages_of_4: Engine, model: Any) -> None:
    assert difference(pages_of_4, model) <= TOLERANCE


@every_model
@pytest.mark.parametrize("chunk", [16, 3, 1])
def test_logits_in_pieces(pages_of_4: Engine, model: Any, chunk: int) -> None:
    assert difference(pages_of_4, model, chunk) <= TOLERANCE


@every_architecture
def test_greedy_ids(pages_of_4: Engine, model: Any) -> None:
    assert model.continued(pages_of_4) == model.greedy


@every_architecture
@pytest.mark.parametrize("chunk", [16, 3])
def test_logits_with_pages_as_long_as_the_window(pages_of_8: Engine, model: Any, chunk: int) -> None:
    assert difference(pages_of_8, model, chunk) <= TOLERANCE


@models("gemma3", "gemma4-e2b")
def test_greedy_ids_with_pages_as_long_as_the_window(pages_of_8: Engine, model: Any) -> None:
    assert model.continued(pages_of_8) == model.greedy


@every_model
def test_loaded_from_its_file(loaded: Engine, model: Any) -> None:
    assert difference(loaded, model) <= TOLERANCE
    assert model.continued(loaded) == model.greedy


@models("gemma4-e2b", "gemma4-e4b", "gemma4-12b")
def test_the_next_token_is_the_same_whichever_way_the_prompt_was_read(pages_of_4: Engine, model: Any) -> None:
    """Where layers share KV, generating runs them for a piece's last position only, and scoring for all."""
    for count in (1, 15, 16, 17, 33, len(model.ids)):
        best = pages_of_4.logits(model.ids[:count])[-1].argmax()
        assert model.continued(pages_of_4, model.ids[:count], 1) == [best]


@models(*WITH_HIDDEN)
def test_the_residual_stream_after_every_layer(pages_of_4: Engine, model: Any) -> None:
    found = pages_of_4.hidden(model.ids)
    assert len(found) == model.config.num_layers + 1
    assert len(model.hidden) == model.config.num_layers
    for layer, (ours, theirs) in enumerate(zip(found[:-1], model.hidden, strict=True)):
        assert np.abs(ours - theirs).max() <= TOLERANCE, f"after layer {layer}"
