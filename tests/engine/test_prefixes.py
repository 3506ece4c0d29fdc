"""What was read before is found again, whatever was asked, stopped, changed and asked again in between.

Most of this runs on a device that only writes down what it is given (ledger.py), so that thousands of acts take
seconds; the same acts run on a real decoder too, against one that begins every answer with nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.engine import Engine
from rvchat.engine.pages import PageTable
from rvchat.engine.prefixes import PrefixTree
from rvchat.types import Request, Sampling, TokenChunk

from .chats import Ids, Style, Turns, WatchedTable, watched
from .ledger import continued, ledger_engine

PAGE, CONTEXT = 4, 96
# One context is 24 pages of full layers; a prompt being read needs 7 of sliding layers.
POOLS: dict[Kind, int] = {"full": 49, "sliding": 33}


# --- the tree alone --------------------------------------------------------------------------------------------------


def path_of(tree: PrefixTree, texts: Sequence[tuple[int, ...]], first_page: int) -> list[Any]:
    """A path of one node a text, with pages of both kinds that one sequence holds."""
    node, nodes = tree.root, []
    for page, tokens in enumerate(texts, first_page):
        node = tree.child(node, tokens)
        for kind in KINDS:
            node.pages.setdefault(kind, page)
            tree.use(node, kind)
        nodes.append(node)
    return nodes


def leave(tree: PrefixTree, nodes: Sequence[Any], keep: bool = True) -> None:
    for node in reversed(nodes):
        for kind in KINDS:
            tree.leave(node, kind, keep=keep)


def test_least_recently_used_goes_first() -> None:
    tree = PrefixTree()
    first, second = path_of(tree, [(1,), (2,)], 1), path_of(tree, [(3,), (4,)], 3)
    leave(tree, first)
    leave(tree, second)
    for kind in KINDS:
        for node in first:  # looked at again: now the other is the older
            tree.use(node, kind)
    leave(tree, first)
    assert [tree.give_up("sliding")["sliding"] for _ in range(4)] == [[4], [3], [2], [1]]
    assert [tree.give_up("full")["full"] for _ in range(4)] == [[4], [3], [2], [1]]
    assert tree.idle("full") == tree.idle("sliding") == 0
    with pytest.raises(KeyError):
        tree.give_up("full")


def test_pages_that_were_only_passed_go_before_those_that_are_kept() -> None:
    tree = PrefixTree()
    kept, passed = path_of(tree, [(1,)], 1), path_of(tree, [(2,)], 2)
    leave(tree, kept)
    leave(tree, passed, keep=False)
    assert tree.give_up("sliding") == {"sliding": [2]}
    assert tree.give_up("sliding") == {"sliding": [1]}


def test_a_kept_page_stays_kept_when_somebody_passes_through_it() -> None:
    tree = PrefixTree()
    kept = path_of(tree, [(1,)], 1)
    leave(tree, kept)
    tree.use(kept[0], "sliding")
    tree.leave(kept[0], "sliding", keep=False)
    leave(tree, path_of(tree, [(2,)], 2), keep=False)
    assert tree.give_up("sliding") == {"sliding": [2]}


def test_a_page_that_was_given_up_is_kept_no_more_when_it_is_written_again() -> None:
    tree = PrefixTree()
    (again,) = path_of(tree, [(1,)], 1)
    leave(tree, [again])
    assert tree.give_up("sliding") == {"sliding": [1]}
    leave(tree, path_of(tree, [(2,)], 2))
    again.pages["sliding"] = 3
    tree.use(again, "sliding")
    tree.leave(again, "sliding", keep=False)
    assert tree.give_up("sliding") == {"sliding": [3]}


def test_what_cannot_be_reached_any_more_goes_in_both_pools() -> None:
    tree = PrefixTree()
    trunk = path_of(tree, [(1,), (2,)], 1)
    branches = [path_of(tree, [(1,), (2,), (tokens,)], page)[2:] for page, tokens in ((1, 3), (2, 4))]
    for nodes in (trunk, trunk, trunk, *branches):
        leave(tree, nodes)
    for nodes in branches:  # the trunk is the oldest now
        for node in nodes:
            for kind in KINDS:
                tree.use(node, kind)
        leave(tree, nodes)
    given = tree.give_up("full")
    assert sorted(given["full"]) == sorted(given["sliding"]) == [2, 3, 4]
    assert [node.tokens for node in tree.path([1, 2, 3], 1)] == [(1,)]
    assert not trunk[0].children
    assert {kind: tree.idle(kind) for kind in KINDS} == {"sliding": 1, "full": 1}


# --- random acts -----------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """An answer being made: of which branch, to which question, and what has come of it so far."""

    turns: Turns
    question: Ids
    style: Style
    request: Request
    chunks: Iterator[TokenChunk]
    found: list[TokenChunk] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [i for chunk in self.found for i in chunk.ids]


Continued = Callable[[Request], list[int]]

QUESTIONS = st.tuples(st.integers(1, 14), st.integers(0, 2)).map(
    lambda q: tuple(210 + q[1] + i % 3 for i in range(q[0]))
)
STYLES = st.sampled_from([Style(), Style(thinking=True), Style(large=False)])
ANY = st.integers(0, 1000)


class Conversations(RuleBasedStateMachine):
    """Several conversations with branches, and answers that are made by turns, stopped and asked for again."""

    engine: Engine
    table: WatchedTable
    alone: Continued
    """What an engine that has seen nothing goes on with."""
    most_alternatives = 4

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[tuple[Style, Turns]] = []
        self.running: list[Running] = []

    def asks(self, style: Style, turns: Turns, question: Ids, limit: int, seed: int) -> Request:
        while len(prompt := style.prompt(turns, question)) >= CONTEXT:
            turns = turns[1:]
        sampling = Sampling(temperature=0.0) if seed == 0 else Sampling(temperature=3.0, top_k=0, top_p=1.0, seed=seed)
        return Request(prompt, sampling, max_new_tokens=limit, cancel=threading.Event())

    def start(self, style: Style, turns: Turns, question: Ids, limit: int, seed: int) -> None:
        request = self.asks(style, turns, question, limit, seed)
        self.running.append(Running(turns, question, style, request, self.engine.generate(request)))

    def ended(self, run: Running, *finishes: str) -> None:
        """Reads the rest of an answer, compares it, and makes it a branch that can be gone on with."""
        run.found += run.chunks
        expected = self.alone(run.request)
        end = run.found[-1].finish
        room = CONTEXT - len(run.request.ids)
        assert end in finishes
        if end == "length":
            assert run.ids == expected[: run.request.max_new_tokens]
        elif end == "context":
            assert run.ids == expected[:room]
        else:
            assert run.ids == expected[: len(run.ids)]
        if end == "memory":
            assert self.running, "nobody else holds a page"
        self.branches.append((run.style, (*run.turns, (run.question, run.style.remembered(run.ids)))))

    @rule(style=STYLES, question=QUESTIONS, limit=st.integers(1, 40), seed=st.integers(0, 3))
    @precondition(lambda self: len(self.running) < 3)
    def new_conversation(self, style: Style, question: Ids, limit: int, seed: int) -> None:
        self.start(style, (), question, limit, seed)

    @rule(which=ANY, back=st.integers(0, 3), question=QUESTIONS, limit=st.integers(1, 40), seed=st.integers(0, 3))
    @precondition(lambda self: self.branches and len(self.running) < 3)
    def go_on_or_edit(self, which: int, back: int, question: Ids, limit: int, seed: int) -> None:
        """Some turns back in any branch: going on where `back` is 0, switching where it is not the last one."""
        style, turns = self.branches[which % len(self.branches)]
        self.start(style, turns[: max(0, len(turns) - back)], question, limit, seed)

    @rule(which=ANY, limit=st.integers(1, 40), seed=st.integers(0, 3))
    @precondition(lambda self: self.branches and len(self.running) < 3)
    def regenerate(self, which: int, limit: int, seed: int) -> None:
        style, turns = self.branches[which % len(self.branches)]
        self.start(style, turns[:-1], turns[-1][0], limit, seed)

    @rule(which=ANY, count=st.integers(1, 4))
    @precondition(lambda self: self.running)
    def some_more(self, which: int, count: int) -> None:
        run = self.running[which % len(self.running)]
        for _ in range(count):
            if not run.found or run.found[-1].finish is None:
                run.found.append(next(run.chunks))

    @rule(which=ANY)
    @precondition(lambda self: self.running)
    def to_the_end(self, which: int) -> None:
        self.ended(self.running.pop(which % len(self.running)), "length", "context", "memory")

    @rule(which=ANY)
    @precondition(lambda self: self.running)
    def cancel(self, which: int) -> None:
        run = self.running.pop(which % len(self.running))
        over = bool(run.found) and run.found[-1].finish is not None
        assert run.request.cancel is not None
        run.request.cancel.set()
        self.ended(run, *(("length", "context", "memory") if over else ("cancelled",)))

    @rule(which=ANY)
    @precondition(lambda self: self.running)
    def close(self, which: int) -> None:
        run = self.running.pop(which % len(self.running))
        run.chunks.close()  # type: ignore[attr-defined]
        assert run.ids == self.alone(run.request)[: len(run.ids)]

    @rule(which=ANY, limits=st.lists(st.integers(1, 30), min_size=2, max_size=4), cancelled=st.integers(0, 5))
    @precondition(lambda self: self.branches)
    def alternatives(self, which: int, limits: list[int], cancelled: int) -> None:
        """Several answers to the last question of a branch in the same steps, one of them perhaps cancelled."""
        style, turns = self.branches[which % len(self.branches)]
        requests = [self.asks(style, turns[:-1], turns[-1][0], limit, seed) for seed, limit in enumerate(limits)][
            : self.most_alternatives
        ]
        found: list[list[TokenChunk]] = [[] for _ in requests]
        for number, chunk in self.engine.generate_many(requests):
            found[number].append(chunk)
            if number == cancelled and (event := requests[number].cancel):
                event.set()
        for number, (request, chunks) in enumerate(zip(requests, found, strict=True)):
            ids, expected = [i for chunk in chunks for i in chunk.ids], self.alone(request)
            assert ids == expected[: len(ids)]
            end = chunks[-1].finish
            if end in ("length", "context"):
                assert len(ids) == min(limits[number], CONTEXT - len(request.ids))
            else:
                assert end == "cancelled" if number == cancelled else end == "memory"

    @invariant()
    def no_page_is_lost(self) -> None:
        self.table.check()

    def teardown(self) -> None:
        for run in self.running:
            run.chunks.close()  # type: ignore[attr-defined]
        self.table.check()
        assert not self.table.sequences
        assert {kind: self.table.free_pages(kind) for kind in KINDS} == {kind: POOLS[kind] - 1 for kind in KINDS}


def played(machine: type[Conversations], times: int, acts: int, *, always_the_same: bool = False) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=times,
            stateful_step_count=acts,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=always_the_same or settings().derandomize,
        ),
    )


def on_a_ledger(config: ModelConfig) -> tuple[type[Conversations], list[int]]:
    """The acts on a device without arithmetic, and how many pages each run gave up."""
    given_up: list[int] = []

    class OnALedger(Conversations):
        def __init__(self) -> None:
            super().__init__()
            self.engine, self.table = ledger_engine(config, POOLS, PAGE, CONTEXT, (16,))

        def alone(self, request: Request) -> list[int]:  # type: ignore[override]
            return continued(request.ids, request.sampling.seed or 0, CONTEXT - len(request.ids))

        def teardown(self) -> None:
            super().teardown()
            given_up.append(self.table.given_up)

    return OnALedger, given_up


def on_a_model(model: Any) -> type[Conversations]:
    """The acts on a decoder, against one that begins with empty pages each time."""
    tried, fresh = (model.engine(page_size=PAGE, ladder=(16,)) for _ in range(2))
    table = watched(tried, POOLS)
    watched(fresh, POOLS)
    known: dict[Any, list[int]] = {}

    class OnAModel(Conversations):
        engine = tried
        most_alternatives = 2  # one more program to compile, and not two

        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def alone(self, request: Request) -> list[int]:  # type: ignore[override]
            key = tuple(request.ids), request.sampling
            if key not in known:
                fresh._runner.table = PageTable(model.config, POOLS, PAGE, CONTEXT)
                chunks = fresh.generate(Request(request.ids, request.sampling))
                known[key] = [i for chunk in chunks for i in chunk.ids]
            return known[key]

    return OnAModel


def test_conversations_on_a_ledger(golden: Callable[[str], Any]) -> None:
    machine, given_up = on_a_ledger(golden("gemma4-e2b").config)
    played(machine, 40, 30, always_the_same=True)  # which the number below depends on; the long test goes on from there
    assert sum(given_up) > 100


@pytest.mark.long
def test_a_thousand_conversations_on_a_ledger(golden: Callable[[str], Any]) -> None:
    machine, given_up = on_a_ledger(golden("gemma4-e2b").config)
    played(machine, 1000, 50)
    assert sum(given_up) > 10_000


@pytest.mark.xdist_group("small")
def test_conversations_on_a_model(golden: Callable[[str], Any]) -> None:
    played(on_a_model(golden("gemma4-e2b")), 10, 20)


@pytest.mark.long
@pytest.mark.parametrize(("name", "times"), [("gemma4-e2b", 500), ("gemma4-31b", 250), ("gemma3", 250)])
def test_a_thousand_conversations_on_models(golden: Callable[[str], Any], name: str, times: int) -> None:
    played(on_a_model(golden(name)), times, 25)
