"""Models: the catalogue, what fits this machine, download, verify, remove. No jax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import starter

Progress = Callable[[str, float | None], None]


def resolve(name: str, paths: Paths, progress: Progress) -> Path:
    """The files of the model with this short name, made ready if need be. Raises ModelError for an unknown name."""
    if name == starter.STARTER:
        return starter.assemble(paths, progress)
    raise ModelError(
        f"There is no model named {name!r}",
        f"Name {starter.STARTER!r}, a folder with a config.json, or a .gguf file.",
    )
