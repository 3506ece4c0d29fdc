"""Pages are handed out, shared, kept and given back without one ever being two sequences' at once.

A pool here remembers which beginning of a text each place was written for, so that whatever a sequence would read can
be checked to be its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.config import KINDS, Attention, Kind, ModelConfig, Rope, plan_segments
from rvchat.engine.pages import NO_PAGE, PageTable
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.errors import OutOfMemoryError

PAGE, WINDOW, CONTEXT = 4, 6, 48
POOLS: dict[Kind, int] = {"sliding": 14, "full": 17}


def config() -> ModelConfig:
    return ModelConfig(
        model_type="gemma4",
        vocab_size=8,
        hidden_size=8,
        num_layers=2,
        query_heads=1,
        sliding=Attention(1, 4, Rope(1e4), WINDOW),
        full=Attention(1, 4, Rope(1e6), None),
        segments=plan_segments(["sliding", "full"], [8, 8], 2),
        context=CONTEXT,
        query_scale=1.0,
        norm_eps=1e-6,
        softcap=None,
        value_norm=True,
        layer_scalar=True,
        per_layer_width=0,
        experts=None,
        eos_ids=(1,),
    )


def table() -> PageTable:
    return PageTable(config(), POOLS, PAGE, CONTEXT)


@dataclass
class Text:
    """A sequence, the ids it holds, and how many of them the table has been told of."""

    sequence: PageSequence
    ids: list[int]
    told: int


@dataclass
class Device:
    """The pools: which beginning of a text each place of each page was written for."""

    table: PageTable
    pools: dict[Kind, dict[tuple[int, int], tuple[int, ...]]] = field(default_factory=lambda: {k: {} for k in KINDS})
    texts: list[Text] = field(default_factory=list)

    def write(self, text: Text, start: int, stop: int) -> None:
        for kind in KINDS:
            row = self.table.row(text.sequence, kind)
            for position in range(start, stop):
                page = int(row[position // PAGE])
                assert page != NO_PAGE
                self.pools[kind][page, position % PAGE] = tuple(text.ids[: position + 1])

    def check(self, text: Text, position: int) -> None:
        """Whatever a token at `position` sees is what this text wrote, or another that began the same way."""
        for kind in KINDS:
            row = self.table.row(text.sequence, kind)
            first = max(0, position - WINDOW + 1) if kind == "sliding" else 0
            for seen in range(first, position):
                held = self.pools[kind].get((int(row[seen // PAGE]), seen % PAGE))
                assert held == tuple(text.ids[: seen + 1]), f"{kind} position {seen} before {position}"

    def read(self, text: Text, start: int, stop: int) -> bool:
        """Positions `start` to `stop` in one call, as the engine makes it; whether there was room."""
        self.table.trim(text.sequence, start)
        try:
            self.table.extend(text.sequence, start, stop)
        except OutOfMemoryError:
            return False
        self.check(text, start)
        self.write(text, start, stop)
        return True

    def begin(self, ids: list[int], piece: int) -> None:
        sequence, reused = self.table.begin(ids)
        assert reused % PAGE == 0
        assert reused < len(ids)
        text = Text(sequence, ids, reused)
        self.texts.append(text)
        self.check(text, reused)
        done = reused
        while done < len(ids):
            stop = min(done + piece, len(ids))
            if not self.read(text, done, stop):
                self.release(len(self.texts) - 1)
                return
            done = stop
            self.tell(text, done)
        self.table.keep(sequence, len(ids))

    def tell(self, text: Text, count: int) -> None:
        self.table.wrote(text.sequence, text.ids[:count])
        text.told = count

    def go_on(self, which: int, tokens: list[int], tell: bool) -> None:
        """Some steps of decoding. The table hears of them later where their call is still under way."""
        text = self.texts[which % len(self.texts)]
        start = len(text.ids)
        if start + len(tokens) > CONTEXT:
            return
        text.ids = text.ids + tokens
        if not self.read(text, start, start + len(tokens)):
            text.ids = text.ids[:start]
        if tell:
            self.tell(text, len(text.ids))

    def release(self, which: int) -> None:
        text = self.texts.pop(which % len(self.texts))
        self.table.release(text.sequence)

    def no_page_is_used_twice(self) -> None:
        for kind in KINDS:
            own = [
                page
                for text in self.texts
                for place, page in text.sequence.pages[kind].items()
                if place not in text.sequence.shared[kind]
            ]
            shared = {
                page
                for text in self.texts
                for place, page in text.sequence.pages[kind].items()
                if place in text.sequence.shared[kind]
            }
            assert len(own) == len(set(own))
            assert not set(own) & shared
            assert NO_PAGE not in {*own, *shared}
            assert self.table.free_pages(kind) == POOLS[kind] - 1 - len(own) - len(shared), kind


IDS = st.integers(1, 2)
ACTS = st.one_of(
    st.tuples(st.just("begin"), st.lists(IDS, min_size=1, max_size=30), st.integers(1, 16)),
    st.tuples(st.just("again"), st.integers(0, 5), st.lists(IDS, max_size=9), st.integers(1, 16)),
    st.tuples(st.just("go_on"), st.integers(0, 5), st.lists(IDS, min_size=1, max_size=8), st.booleans()),
    st.tuples(st.just("go_on"), st.integers(0, 5), st.lists(IDS, min_size=1, max_size=8), st.booleans()),
    st.tuples(st.just("release"), st.integers(0, 5)),
)


def played(acts: list[Any]) -> None:
    device = Device(table())
    for act, *values in acts:
        if act == "begin":
            device.begin(*values)
        elif device.texts and act == "again":  # a text that begins as one that is there does, and differs later
            which, more, piece = values
            known = device.texts[which % len(device.texts)].ids
            device.begin([*known[: max(1, len(known) - which)], *more][:CONTEXT], piece)
        elif device.texts and act == "go_on":
            device.go_on(*values)
        elif device.texts and act == "release":
            device.release(*values)
        device.no_page_is_used_twice()
    while device.texts:
        device.release(0)
    assert {kind: device.table.free_pages(kind) for kind in KINDS} == {kind: POOLS[kind] - 1 for kind in KINDS}


@given(acts=st.lists(ACTS, max_size=14))
@settings(max_examples=200, deadline=None)
def test_every_text_reads_its_own_pages(acts: list[Any]) -> None:
    played(acts)


@pytest.mark.long
@given(acts=st.lists(ACTS, max_size=40))
@settings(max_examples=2500, deadline=None)
def test_every_text_reads_its_own_pages_at_length(acts: list[Any]) -> None:
    played(acts)


def test_what_was_read_before_is_found_again() -> None:
    device = Device(table())
    device.begin([1, 2] * 10, 16)
    device.release(0)
    sequence, reused = device.table.begin([1, 2] * 10 + [2])
    assert reused == 20
    device.table.release(sequence)
    sequence, reused = device.table.begin([1, 2] * 10)  # one token at least is left to be read
    assert reused == 16
    device.table.release(sequence)
    sequence, reused = device.table.begin([2, 1] * 10)
    assert reused == 0


def test_a_window_that_is_gone_is_not_missed_silently() -> None:
    """Full layers still have the beginning of the text, sliding layers do not: it is read again."""
    device = Device(table())
    device.begin([1] * 12, 4)
    device.go_on(0, [2] * 8, True)
    for _ in range(3):
        device.go_on(0, [2] * 8, True)
    assert len(device.texts[0].ids) == 44
    device.begin([1] * 12 + [1, 1, 1, 1, 2], 4)
    device.no_page_is_used_twice()


def test_a_page_that_is_given_up_takes_none_with_it_that_is_in_use() -> None:
    """Two texts wrote the same page; the one whose copy can be found ends, the other goes on after its own."""
    device = Device(table())
    device.begin([1] * 9, 16)
    device.begin([1] * 9, 16)
    for which in (0, 1):
        device.go_on(which, [1] * 3, True)
    device.go_on(1, [2] * 4, True)
    device.release(0)
    device.begin([2] * 47, 4)  # needs the place of the page that the first text left
    device.no_page_is_used_twice()
    device.check(device.texts[0], len(device.texts[0].ids))


def test_exhausted_pages_take_nothing() -> None:
    pages = table()
    first, _ = pages.begin([1])
    pages.extend(first, 0, 40)
    before = {kind: pages.free_pages(kind) for kind in KINDS}
    second, _ = pages.begin([2])
    with pytest.raises(OutOfMemoryError):
        pages.extend(second, 0, 40)
    assert {kind: pages.free_pages(kind) for kind in KINDS} == before
    pages.release(first)
    pages.extend(second, 0, 40)


def test_sliding_layers_hold_their_window_and_no_more() -> None:
    pages = table()
    sequence, _ = pages.begin([1])
    for position in range(40):
        pages.trim(sequence, position)
        pages.extend(sequence, position, position + 1)
        assert len(sequence.pages["sliding"]) <= -(-WINDOW // PAGE) + 1
        assert len(sequence.pages["full"]) == position // PAGE + 1
