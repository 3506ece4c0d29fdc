"""The engine on small models whose numbers a reference gave.

Compiling is nearly all that these tests cost, so LLVM is told to spend little on it; what XLA makes of a program before
that is as for everybody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

import jax
import numpy as np
import numpy.typing as npt
import pytest

from rvchat.engine.checkpoint import Checkpoint, open_checkpoint
from rvchat.engine.config import ModelConfig
from rvchat.engine.engine import Engine, quiet
from rvchat.engine.loading import Loader
from rvchat.engine.pages import NO_PAGE
from rvchat.engine.params import Params
from rvchat.engine.safetensors import open_file
from rvchat.engine.storage import Storage
from rvchat.types import Request, Sampling

from .chats import free_pages

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
CONTEXT = 96


@dataclass(frozen=True)
class Golden:
    """A small model, and what a reference makes of it."""

    name: str
    path: Path
    ids: list[int]
    logits: npt.NDArray[np.float32]
    greedy: list[int]
    hidden: list[npt.NDArray[np.float32]]
    config: ModelConfig
    checkpoint: Checkpoint
    params: Params

    def engine(self, page_size: int = 4, **options: Any) -> Engine:
        """Its engine in float32, with few shapes and pages small enough for a window to cross."""
        options = {"ladder": (16, 64), "max_context": CONTEXT, "kv_memory": 1 << 28} | options
        return Engine(self.config, self.params, page_size=page_size, **options)

    def continued(self, engine: Engine, ids: list[int] | None = None, count: int | None = None) -> list[int]:
        """What the engine goes on with, greedily: after the reference's ids, and for as long as it did, if not told."""
        request = Request(ids or self.ids, Sampling(temperature=0.0), max_new_tokens=count or len(self.greedy))
        return [i for chunk in engine.generate(request) for i in chunk.ids]


@cache
def read_golden(name: str) -> Golden:
    folder = GOLDENS / name
    stored = {key: tensor.array() for key, tensor in open_file(folder / "golden.safetensors").items()}
    path = next(folder.glob("*.gguf"), folder)
    checkpoint = open_checkpoint(path)
    return Golden(
        name=name,
        path=path,
        ids=stored["input_ids"].tolist(),
        logits=stored["logits"],
        greedy=stored["greedy_ids"].tolist(),
        hidden=[stored[f"hidden.{i}"] for i in range(checkpoint.config.num_layers) if f"hidden.{i}" in stored],
        config=checkpoint.config,
        checkpoint=checkpoint,
        params=Loader(checkpoint, Storage.exactly(), quiet).load(),
    )


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """`golden(name)` reads a folder of tests/data/goldens, once."""
    return read_golden


@pytest.fixture(scope="module")
def model(golden: Callable[[str], Any]) -> Any:
    """The golden with most kinds of weights: shared keys and values, per-layer embeddings, windows."""
    return golden("gemma4-e2b")


@pytest.fixture(scope="module")
def shared(model: Any) -> Engine:
    return model.engine()


@pytest.fixture
def engine(shared: Engine) -> Any:
    """The engine, which after every test has all of its pages back, and nothing in page 0."""
    before = free_pages(shared)
    yield shared
    assert free_pages(shared) == before
    for pool in jax.tree.leaves(shared._runner.pools):
        assert not np.asarray(pool[:, NO_PAGE]).any()
