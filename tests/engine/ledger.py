"""A device without arithmetic: it writes down for which text each place of each page was written, and reads it back.

The token after a text is a number made of all of its ids, as found in the pages; where a page holds anything else than
it should, reading it fails. Calls run in the order in which they are issued, as on a real device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.engine import Engine
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Answers, Draw
from rvchat.engine.runner import Call

from .chats import SteadyRunner, WatchedTable

Hashes = npt.NDArray[np.uint64]


def chained(before: int, token: int) -> int:
    """A number for a text, from that of the text before its last token."""
    return (before * 6364136223846793005 + token * 1442695040888963407 + 1) % (1 << 64)


def chosen(text: int, seed: int) -> int:
    """The token after a text. None of them is a control token of the chat format."""
    return 120 + (text ^ seed * 2654435761) // (1 << 40) % 80


def continued(ids: Sequence[int], seed: int, count: int) -> list[int]:
    """What the ledger goes on with."""
    text = reduce(chained, ids, 0)
    made: list[int] = []
    for _ in range(count):
        made.append(chosen(text, seed))
        text = chained(text, made[-1])
    return made


class LedgerRunner(SteadyRunner):
    """The pools are numbers of texts, by page and place."""

    def __init__(self, config: ModelConfig, table: WatchedTable, ladder: tuple[int, ...]) -> None:
        self.config, self.table, self.ladder = config, table, ladder
        self.longest_piece = ladder[-1]
        self.read_tokens = 0
        self.held: dict[Kind, Hashes] = {k: np.zeros((table.pages[k], table.page_size), np.uint64) for k in KINDS}

    def read(
        self, sequence: PageSequence, ids: Sequence[int], start: int, draw: Draw, *, final: bool
    ) -> tuple[Draw, Any]:
        self.make_room(sequence, start, len(ids))
        self.read_tokens += len(ids)
        rows = {kind: self.table.row(sequence, kind) for kind in KINDS}
        text = self._seen(rows, start)
        for position, token in enumerate(ids, start):
            text = chained(text, token)
            self._write(rows, position, text)
        return draw, np.array([chosen(text, _seed(draw))])

    def together(self, states: Sequence[Answers]) -> Any:
        return _State([int(s.token[0]) for s in states], [_seed(s.draw) for s in states], [False] * len(states))

    def decode(
        self, rows: Sequence[tuple[PageSequence, int] | None], answers: Any, stop_ids: npt.NDArray[np.int32], steps: int
    ) -> tuple[Any, Call]:
        tokens, seeds, done = list(answers.token), answers.seeds, list(answers.done)
        made: list[list[int]] = [[] for _ in tokens]
        rows = [*rows, *[None] * (len(tokens) - len(rows))]
        tables = [None if row is None else {k: self.table.row(row[0], k) for k in KINDS} for row in rows]
        texts = [0] * len(tokens)
        for i, row in enumerate(rows):
            done[i] = done[i] or row is None or tokens[i] in stop_ids[i]
        for i, (row, table) in enumerate(zip(rows, tables, strict=True)):
            # Where all are done no step is made, and the call before may have ended early.
            if row is not None and table is not None and not all(done):
                texts[i] = self._seen(table, row[1])
        for step in range(steps):
            if all(done):
                break
            for i, (row, table) in enumerate(zip(rows, tables, strict=True)):
                if row is None or table is None:
                    made[i].append(0)
                    continue
                texts[i] = chained(texts[i], tokens[i])
                self._write(table, row[1] + step, texts[i])
                tokens[i] = chosen(texts[i], seeds[i])
                made[i].append(tokens[i])
                done[i] = done[i] or tokens[i] in stop_ids[i]
        return _State(tokens, seeds, done), _Made(made)  # type: ignore[return-value]

    def finish(self, call: Any) -> list[list[int]]:
        made: list[list[int]] = call.rows
        return made

    def _seen(self, rows: dict[Kind, npt.NDArray[np.int32]], start: int) -> int:
        """The number of the text of the first `start` positions, all that can be seen of it being there."""
        if start == 0:
            return 0
        size = self.table.page_size
        places = np.arange(start)
        full = self.held["full"][rows["full"][places // size], places % size]
        first = max(0, start - (self.config.sliding.window or start) + 1)
        seen = places[first:]
        sliding = self.held["sliding"][rows["sliding"][seen // size], seen % size]
        assert (sliding == full[first:]).all(), "sliding layers would read what another text wrote"
        tokens = (
            full - np.concatenate([[np.uint64(0)], full[:-1]]) * np.uint64(6364136223846793005) - np.uint64(1)
        ) * (_INVERSE)
        assert (tokens < self.config.vocab_size).all(), "full layers would read what another text wrote"
        return int(full[-1])

    def _write(self, rows: dict[Kind, npt.NDArray[np.int32]], position: int, text: int) -> None:
        for kind in KINDS:
            page = rows[kind][position // self.table.page_size]
            assert page, "a real token is written to page 0"
            self.held[kind][page, position % self.table.page_size] = text


_INVERSE = np.uint64(pow(1442695040888963407, -1, 1 << 64))


@dataclass(frozen=True)
class _State:
    """The token of each row that is read next, what chooses the one after it, and whether the row is done."""

    token: list[int]
    seeds: list[int]
    done: list[bool]


@dataclass(frozen=True)
class _Made:
    rows: list[list[int]]


def _seed(draw: Draw) -> int:
    """0 for the likeliest token."""
    return int(np.asarray(draw.keys)[0, 1]) if float(draw.settings.temperature[0]) else 0


def ledger_engine(
    config: ModelConfig, pages: dict[Kind, int], page_size: int, max_context: int, ladder: tuple[int, ...]
) -> tuple[Engine, WatchedTable]:
    """An engine whose device is a ledger, and its table."""
    table = WatchedTable(config, pages, page_size, max_context)
    engine = Engine.__new__(Engine)
    engine.config, engine.max_context, engine.notices = config, max_context, ()
    engine._runner = LedgerRunner(config, table, ladder)
    return engine, table


def text(length: int, number: int = 0) -> list[int]:
    """A text that begins as no other number's does."""
    return [2, *(110 + (number * 41 + i * i) % 200 for i in range(length - 1))]
