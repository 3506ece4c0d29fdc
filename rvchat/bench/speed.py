"""How fast prompts are read and answers made."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from rvchat.errors import BadInputError
from rvchat.types import Request, Sampling, TokenChunk

# New tokens of one answer: as many as take some seconds, but never so few that one call says it all.
FEWEST_TOKENS, MOST_TOKENS, DECODE_SECONDS = 16, 128, 8.0
# A measurement is made so many times, unless it takes long: the median counts.
REPEATS, LONG_SECONDS = 3, 20.0
# Ids of prompts: past control tokens and bytes, and of ordinary words.
FIRST_ID, LAST_ID = 300, 5000

Report = Callable[[str], None]
T = TypeVar("T")


class Measurable(Protocol):
    """What is asked of an engine."""

    def generate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, TokenChunk]]: ...
    def full_chunks(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians. Prompts are read in full chunks for `prefill_tok_s` and as for people for `ttft_s`, the time to the
    first token; `ttft_reused_s` is that of a prompt read before, None where nothing of it was reused. `decode_tok_s`
    and `decode_cores` are None where no token follows the first. Cores are how many were busy on average: fewer than
    there are where others had work for them, or where some had nothing to do."""

    context: int
    sequences: int
    prefill_tok_s: float
    decode_tok_s: float | None
    ttft_s: float
    ttft_reused_s: float | None
    prefill_cores: float
    decode_cores: float | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds since the start, and processor seconds."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.perf_counter(), time.process_time())

    def cores_since(self, earlier: Moment) -> float:
        return (self.cpu - earlier.cpu) / (self.wall - earlier.wall)


@dataclass(frozen=True, slots=True)
class Timeline:
    """`first_s`: seconds until every answer had its first token; `rates`: tokens per second of each round of calls
    after that; `reused`: prompt tokens that were not read again."""

    first_s: float
    first_cores: float
    rates: tuple[float, ...]
    decode_cores: float | None
    reused: int

    @classmethod
    def of(cls, answers: Iterable[tuple[int, TokenChunk]], sequences: int) -> Timeline:
        """Consumes the chunks of answers that are made at once. A round ends when an answer comes again."""
        began = Moment.now()
        arrivals = [(Moment.now(), index, chunk) for index, chunk in answers]
        firsts: dict[int, int] = {}
        for place, (_, index, chunk) in enumerate(arrivals):
            if chunk.ids:
                firsts.setdefault(index, place)
        if len(firsts) < sequences:
            raise BadInputError("an answer ended before its first token", "Measure shorter contexts, fewer sequences.")
        last_first = max(firsts.values())
        first = arrivals[last_first][0]
        rates: list[float] = []
        round_began, tokens, seen = first, 0, set[int]()
        for (before, _, _), (_, index, chunk) in itertools.pairwise(arrivals[last_first:]):
            if index in seen:
                rates.append(tokens / (before.wall - round_began.wall))
                round_began, tokens, seen = before, 0, set()
            tokens += len(chunk.ids)
            seen.add(index)
        last = arrivals[-1][0]
        if tokens:
            rates.append(tokens / (last.wall - round_began.wall))
        return cls(
            first.wall - began.wall,
            first.cores_since(began),
            tuple(rates),
            last.cores_since(first) if rates else None,
            sum(arrivals[place][2].stats.reused_tokens for place in firsts.values()),
        )


class Meter:
    """Measures one engine. `report(what)` hears what is measured next."""

    def __init__(
        self, engine: Measurable, *, bos_id: int, vocab_size: int, room: int, report: Report = lambda what: None
    ) -> None:
        """`room`: tokens that the engine's context holds."""
        self._engine = engine
        self._bos_id = bos_id
        self._room = room
        self._report = report
        self._ids = np.random.default_rng(0)
        self._low, self._high = (FIRST_ID, LAST_ID) if vocab_size >= LAST_ID else (vocab_size // 4, vocab_size)

    def check(self, context: int) -> None:
        """Raises BadInputError for a context that leaves no room for an answer."""
        if context >= self._room:
            raise BadInputError(f"a context of {context:,} tokens leaves no room for an answer in {self._room:,}")

    def warm_up(self, lengths: Sequence[int]) -> None:
        """Has everything compiled that reading prompts of `lengths` and decoding need."""
        for length in lengths:
            if length + 4 <= self._room:
                self._report("compiling")
                self._answer(self._prompts(length, 1), 4, full=True)

    def measure(self, context: int, sequences: int) -> Speed:
        """Answers to `sequences` prompts of `context` tokens, made at once.

        Raises BadInputError where an answer ends before it begins, for want of memory.
        """
        where = f"context {context:,}" + (f", {sequences} sequences" if sequences > 1 else "")
        tokens = self._tokens(context, sequences)

        def reading_and_answering() -> Timeline:
            self._report(f"{where}: reading and answering")
            return self._answer(self._prompts(context, sequences), tokens, full=True)

        def first_tokens() -> tuple[float, float | None]:
            self._report(f"{where}: first token")
            prompts = self._prompts(context, sequences)
            fresh, again = (self._answer(prompts, 1, full=False) for _ in range(2))
            return fresh.first_s, again.first_s if again.reused else None

        timelines = repeated(reading_and_answering)
        firsts = repeated(first_tokens)
        rates = [statistics.median(t.rates) for t in timelines if t.rates]
        cores = [t.decode_cores for t in timelines if t.decode_cores is not None]
        reused = [again for _, again in firsts if again is not None]
        return Speed(
            context=context,
            sequences=sequences,
            prefill_tok_s=context * sequences / statistics.median(t.first_s for t in timelines),
            decode_tok_s=statistics.median(rates) if rates else None,
            ttft_s=statistics.median(fresh for fresh, _ in firsts),
            ttft_reused_s=statistics.median(reused) if reused else None,
            prefill_cores=statistics.median(t.first_cores for t in timelines),
            decode_cores=statistics.median(cores) if cores else None,
        )

    def _tokens(self, context: int, sequences: int) -> int:
        """How many new tokens each answer gets. Found from short ones, which also have the step compiled and timed."""
        most = self._room - context
        if most <= FEWEST_TOKENS:
            return most
        short = self._answer(self._prompts(min(context, FEWEST_TOKENS), sequences), FEWEST_TOKENS, full=True)
        wanted = round(statistics.median(short.rates) / sequences * DECODE_SECONDS)
        return min(most, MOST_TOKENS, max(FEWEST_TOKENS, wanted))

    def _prompts(self, length: int, count: int) -> list[list[int]]:
        """Prompts that were never read before."""
        return [[self._bos_id, *self._ids.integers(self._low, self._high, length - 1).tolist()] for _ in range(count)]

    def _answer(self, prompts: Sequence[Sequence[int]], tokens: int, *, full: bool) -> Timeline:
        requests = [Request(ids, Sampling(seed=0), max_new_tokens=tokens) for ids in prompts]
        with self._engine.full_chunks() if full else nullcontext():
            return Timeline.of(self._engine.generate_many(requests), len(requests))


def repeated(measure: Callable[[], T]) -> list[T]:
    """What `measure` gives, some times over, or until that has taken long."""
    began = time.perf_counter()
    found = [measure()]
    while len(found) < REPEATS and time.perf_counter() - began < LONG_SECONDS:
        found.append(measure())
    return found
