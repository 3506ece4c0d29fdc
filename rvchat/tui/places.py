"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path


def expanded(text: str) -> Path:
    """`text` as a path, with the home that `~` or `~name` stands for; as it is where nobody has that name."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
