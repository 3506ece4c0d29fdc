"""How well a model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rvchat.errors import BadInputError


class Surprised(Protocol):
    """What is asked of an engine: the negative log likelihood of each id after the first, in nats, piece by piece."""

    def nll(self, ids: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`nll`: the mean negative log likelihood in nats per token; `windows`: in how many the text was read."""

    tokens: int
    nll: float
    windows: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll) if self.nll < 700 else math.inf


def measure(
    engine: Surprised,
    ids: Sequence[int],
    *,
    bos_id: int,
    window: int,
    report: Callable[[int, float], None] = lambda done, nll: None,
) -> Perplexity:
    """Of a text's `ids`, each predicted from those before it in its window.

    Windows follow each other without overlap, and every one begins with the beginning of a text (`bos_id`), so that
    each token of the text counts once: the first of a later window is predicted from nothing, as the text's first is.
    `window`: tokens that are read at once. `report(done, nll)` hears of every piece. Raises BadInputError for no ids.
    """
    if not ids:
        raise BadInputError("there is no text to predict")
    total, done, windows = 0.0, 0, 0
    for start in range(0, len(ids), window):
        windows += 1
        for piece in engine.nll([bos_id, *ids[start : start + window]]):
            total += float(piece.sum(dtype=np.float64))
            done += len(piece)
            report(done, total / done)
    return Perplexity(done, total / done, windows)
