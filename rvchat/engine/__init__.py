"""Token ids in, token ids out. No text, no screen, no disk but weights.

Importing this package does not import jax: names are looked up when they are used.

Axes, in this order, in every comment of a shape:
`L` layers of a kind, `P` periods, `S` sequences, `Q` new tokens, `T` context positions, `D` model width, `F` MLP width,
`N` query heads, `K` KV heads, `H` head width, `V` vocabulary, `E` experts, `G` quantisation groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rvchat.types import Request, Sampling, Stats, TokenChunk

if TYPE_CHECKING:
    from rvchat.engine.config import ModelConfig
    from rvchat.engine.engine import Engine

__all__ = ["Engine", "ModelConfig", "Request", "Sampling", "Stats", "TokenChunk"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from rvchat.engine.engine import Engine

        return Engine
    if name == "ModelConfig":
        from rvchat.engine.config import ModelConfig

        return ModelConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
