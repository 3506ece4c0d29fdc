"""A small model that commands can measure, and engines that answer as a test says.

Compiling is nearly all that these tests cost, so LLVM is told to spend little on it; what XLA makes of a program before
that is as for everybody.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

import pytest

from rvchat.engine.engine import Engine
from rvchat.types import Request, Stats, TokenChunk
from tests.small_tokenizer import small_tokenizer

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"
CONTEXT = 48


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights and a vocabulary of 320: bytes and a few control tokens."""
    folder = tmp_path_factory.mktemp("models") / "small"
    shutil.copytree(GOLDENS / "gemma4-e2b", folder)
    (folder / "tokenizer.json").write_text(small_tokenizer(), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def engine(small_model: Path) -> Iterator[Engine]:
    """The small model, exact."""
    engine = Engine.load(small_model, dtype="float32", max_context=CONTEXT, kv_memory=1 << 28)
    yield engine
    engine.close()


class Puppet:
    """An engine that answers at once with the id of each request's number, and remembers what it was asked."""

    def __init__(self, *, reuses: bool = False, fails: bool = False) -> None:
        self.reuses = reuses
        self.fails = fails
        self.full = False
        self.asked: list[tuple[bool, list[Request]]] = []
        self._read: set[tuple[int, ...]] = set()

    @contextlib.contextmanager
    def full_chunks(self) -> Iterator[None]:
        self.full = True
        yield
        self.full = False

    def generate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, TokenChunk]]:
        self.asked.append((self.full, list(requests)))
        for number, request in enumerate(requests):
            yield number, self._chunk(request, number, 1)
        longest = max(request.max_new_tokens or 0 for request in requests)
        for made in range(2, longest + 1):
            for number, request in enumerate(requests):
                yield number, self._chunk(request, number, made)

    def _chunk(self, request: Request, number: int, made: int) -> TokenChunk:
        if self.fails:
            return TokenChunk((), "memory", Stats(len(request.ids), 0, 0, 0.0, 0.0, 0.0))
        ids = tuple(request.ids)
        reused = len(ids) - 1 if self.reuses and ids in self._read else 0
        if made == request.max_new_tokens:
            self._read.add(ids)
        finish = "length" if made == request.max_new_tokens else None
        return TokenChunk((number,), finish, Stats(len(ids), reused, made, 0.0, 0.0, 0.0))
