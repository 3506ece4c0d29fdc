"""A model at work, as the session sees it: an engine, its tokenizer, and how it wants to be asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from rvchat.text.tokenizer import Tokenizer
from rvchat.types import ModelInfo, Request, TokenChunk

LoadProgress = Callable[[str, float | None], None]
"""`progress(stage, fraction)`: fraction 0 to 1, None where it is not known. Raising from it cancels the loading."""


class EngineLike(Protocol):
    """What the session asks of an engine: rvchat.engine's, or a scripted one."""

    def generate(self, request: Request) -> Iterator[TokenChunk]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Model:
    """`stop_ids` end an answer, as do `stop_texts` where the format has no end of a turn. `makes_titles`: it can be
    asked to name a conversation."""

    info: ModelInfo
    engine: EngineLike
    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...] = ()
    makes_titles: bool = False

    def generate(self, request: Request) -> Generator[TokenChunk, None, None]:
        """What the engine makes of the request. Closing it cancels."""
        yield from self.engine.generate(request)


OpenModel = Callable[[str, LoadProgress], Model]
"""Opens the model of that name. Its first call of the progress says that the name stands for one, and that memory is
about to be taken: the model that was there is freed then. What fails before leaves it in its place."""
