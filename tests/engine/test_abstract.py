"""Programs of full-size models, compiled without a weight, and what they would need beside their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rvchat.engine.abstract import abstract_answers, abstract_chunk, abstract_draw, abstract_params, abstract_pools
from rvchat.engine.config import KINDS, ModelConfig, kv_bytes_per_token, model_weights, parameter_count
from rvchat.engine.engine import quiet
from rvchat.engine.loading import Loader
from rvchat.engine.memory import KVPlan
from rvchat.engine.pages import KVPages, empty_pools
from rvchat.engine.params import bytes_of
from rvchat.engine.programs import advance, extend, score
from rvchat.engine.storage import Storage
from rvchat.kernels.attention import BITS

CONFIGS = Path(__file__).parents[1] / "data" / "engine" / "configs"
PAGE, CONTEXT, PIECE = 256, 4096, 32
EVERY_MODEL = sorted(path.stem for path in CONFIGS.glob("*.json"))
# One of each pattern: sharing with per-layer embeddings, experts, value = key, leftover layers.
PATTERNS = ["gemma-4-E2B", "gemma-4-26B-A4B", "gemma-4-31B", "gemma-3-1b"]


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


class Programs:
    """The programs of one model as its machine would compile them."""

    def __init__(self, config: ModelConfig, form: Any) -> None:
        plan = KVPlan.make(config, 2, PAGE, 512, 1 << 36, CONTEXT)
        self.config, self.vocab, self.pages = config, config.vocab_size, CONTEXT // PAGE
        self.params = abstract_params(config, form, "float32")
        self.pools = abstract_pools(config, plan, PAGE, BITS)

    def ints(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    def step(self, sequences: int = 1) -> Any:
        tables = {kind: self.ints(sequences, self.pages) for kind in KINDS}
        answers = abstract_answers(sequences, self.vocab)
        return extend.lower(
            self.config,
            self.params,
            self.pools,
            answers,
            self.ints(sequences),
            jax.ShapeDtypeStruct((sequences,), jnp.bool_),
            tables,
            self.ints(sequences, 16),
            self.ints(),
        )

    def piece(self) -> Any:
        chunk, draw = abstract_chunk(1, PIECE, self.pages), abstract_draw(1, self.vocab)
        return advance.lower(self.config, self.params, self.pools, chunk, draw, jax.ShapeDtypeStruct((), jnp.bool_))

    def scores(self) -> Any:
        return score.lower(self.config, self.params, self.pools, abstract_chunk(1, PIECE, self.pages))


def temporary(lowered: Any, pools: KVPages) -> int:
    """Bytes that a program needs beside its arguments, once it is seen to copy no pool."""
    compiled = lowered.compile()
    text = compiled.as_text()
    for pool in jax.tree.leaves(pools):
        shape = re.escape(f"u16[{','.join(map(str, pool.shape))}]")
        assert re.search(rf"{shape}\S* parameter\(", text)
        assert not re.search(rf"{shape}\S* copy\(", text)
    return int(compiled.memory_analysis().temp_size_in_bytes)


def largest_weight(config: ModelConfig) -> int:
    """Bytes of the per-layer table in bfloat16, of the embedding in float32 where there is none."""
    weights = model_weights(config)
    return weights["per_layer_table"].size * 2 if config.per_layer_width else weights["embed"].size * 4


@pytest.mark.parametrize("name", PATTERNS)
def test_a_step_of_decoding_copies_neither_table_nor_pool(name: str) -> None:
    config = config_of(name)
    programs = Programs(config, "int4")
    assert temporary(programs.step(), programs.pools) < largest_weight(config) / 10


@pytest.mark.parametrize("name", ["gemma-4-E2B", "gemma-3-1b"])
def test_a_piece_of_a_prompt_copies_neither_table_nor_pool(name: str) -> None:
    config = config_of(name)
    programs = Programs(config, "int4")
    assert temporary(programs.piece(), programs.pools) < largest_weight(config) / 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "form"),
    [(name, "int4") for name in EVERY_MODEL] + [(name, form) for name in PATTERNS for form in ("int8", "float32")],
)
def test_every_program_of_every_model_and_form(name: str, form: str) -> None:
    config = config_of(name)
    programs = Programs(config, form)
    for lowered in (programs.step(), programs.step(8), programs.piece(), programs.scores()):
        assert temporary(lowered, programs.pools) < largest_weight(config)


@pytest.mark.parametrize("form", ["float32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["gemma3", "gemma4-e2b", "gemma4-26b-a4b"])
def test_abstract_parameters_are_those_that_a_load_gives(name: str, form: Any, golden: Callable[[str], Any]) -> None:
    model = golden(name)
    storage = Storage(form, exact=False, compute="float32", plain=form)
    loaded = Loader(model.checkpoint, storage, quiet).load()
    abstract = abstract_params(model.config, form, "float32")
    assert jax.tree.structure(loaded) == jax.tree.structure(abstract)
    for (where, real), shape in zip(jax.tree.leaves_with_path(loaded), jax.tree.leaves(abstract), strict=True):
        assert (real.shape, real.dtype) == (shape.shape, shape.dtype), jax.tree_util.keystr(where)


def test_abstract_pools_are_those_that_an_engine_makes(golden: Callable[[str], Any]) -> None:
    config = golden("gemma4-e2b").config
    plan = KVPlan.make(config, 4, 4, 16, 1 << 24, 64)
    dtype = jnp.dtype(jnp.float32)
    real, abstract = empty_pools(config, plan.pages, 4, dtype), abstract_pools(config, plan, 4, dtype)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), real) == jax.tree.map(lambda a: (a.shape, a.dtype), abstract)
    pages = sum(kv_bytes_per_token(config, kind, 4) * 4 * plan.pages[kind] for kind in KINDS)
    assert bytes_of(abstract) == pages


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_no_parameter_is_forgotten(name: str) -> None:
    config = config_of(name)
    sizes = [leaf.size for leaf in jax.tree.leaves(abstract_params(config, "float32", "float32", "F32"))]
    assert sum(sizes) == parameter_count(config)
