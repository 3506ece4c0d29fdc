"""Turns of a chat read what is new and no more, as the chat format makes them: thoughts are dropped from history, and
an empty thought may end the prompt, so that the next one diverges where the last answer began.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.engine import Engine
from rvchat.engine.memory import KVPlan
from rvchat.types import Request, Sampling, TokenChunk
from tests.bench import engine_soak
from tests.bench.engine_soak import CONTEXT, PAGE, POOLS, WHOLE, conversations, visits

from .chats import Ids, Style, Turns, WatchedTable, common, fold, ids_of, watched, with_window
from .ledger import LedgerRunner, continued, ledger_engine
from .test_goldens import TOLERANCE, every_model, models

DATA = Path(__file__).parents[1] / "data"
GREEDY = Sampling(temperature=0.0)
STYLES = {
    "an empty thought ends the prompt": Style(),
    "thinking": Style(thinking=True),
    "nothing is dropped": Style(large=False),
}
every_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def test_the_layout_is_that_of_the_chat_format() -> None:
    cases = json.loads((DATA / "text" / "template_cases.json").read_text())
    found = {case["name"]: case for case in (cases["cases"] if isinstance(cases, dict) else cases)}
    ids = found["user_only"]["expected"]["large_ids"]
    assert Style().prompt((), tuple(map(fold, ids[4:10]))) == [fold(i) for i in ids]


@dataclass
class Chat:
    """A conversation with an engine, held to what it may read again."""

    engine: Engine
    style: Style
    page: int
    alone: Callable[[list[int], int], list[int]] | None = None
    known: list[list[int]] = field(default_factory=list)
    """Every text that the engine has read."""
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(110, 10_000)))

    def question(self, length: int) -> Ids:
        """One that no other begins like."""
        number = next(self.numbers)
        return tuple(110 + (number * 37 + i * i) % 200 for i in range(length))

    def ask(self, turns: Turns, question: Ids, count: int) -> Turns:
        """The turns with one more, of whose prompt no more was read than has to be."""
        prompt = self.style.prompt(turns, question)
        chunks = list(self.engine.generate(Request(prompt, GREEDY, max_new_tokens=count)))
        made = [i for chunk in chunks for i in chunk.ids]
        assert len(made) == count
        if self.alone is not None:
            assert made == self.alone(prompt, count)
        same = min(len(prompt) - 1, max((common(prompt, text) for text in self.known), default=0))
        reused = chunks[-1].stats.reused_tokens
        assert reused <= same
        assert same - reused <= self.page, f"{same:,} tokens were known and {reused:,} were found"
        self.known.append([*prompt, *made[:-1]])
        return (*turns, (question, self.style.remembered(made)))

    def five_turns_and_two_steps_back(self, length: int, count: int) -> None:
        turns: Turns = ()
        for _ in range(5):
            turns = self.ask(turns, self.question(length), count)
        again = self.ask(turns[:-1], turns[-1][0], count)
        edited = self.ask(again[:-2], self.question(length), count)
        self.ask(edited, self.question(length), count)
        self.ask(turns, self.question(length), count)  # and back to where the fifth turn had led


def e2b(window: int = 512) -> ModelConfig:
    settings = json.loads((DATA / "engine" / "configs" / "gemma-4-E2B.json").read_text())
    return with_window(ModelConfig.from_hf(settings), window, 131_072)


def ledger(**options: Any) -> tuple[Engine, WatchedTable]:
    """E2B's pages as they are planned for it."""
    config = e2b()
    options = {"budget": None, "wanted": None, "free": 20 << 30} | options
    plan = KVPlan.make(config, 2, 256, 512, **options)
    return ledger_engine(replace(config, vocab_size=320), plan.pages, 256, plan.max_context, (32, 128, 512))


def counted(prompt: list[int], count: int) -> list[int]:
    return continued(prompt, 0, count)


@every_style
@pytest.mark.parametrize(("length", "count"), [(20, 100), (20, 1500), (240, 300)])
def test_turns_read_what_is_new(style: Style, length: int, count: int) -> None:
    engine, _ = ledger()
    Chat(engine, style, 256, counted).five_turns_and_two_steps_back(length, count)


@every_style
@pytest.mark.parametrize("piece", [32, 512])
def test_windows_where_turns_start_outlast_what_is_only_passed(style: Style, piece: int) -> None:
    """Little room for sliding layers: a window of all but the last turns' starts would be gone if it were not kept."""
    config = replace(e2b(), vocab_size=320)
    pages: dict[Kind, int] = {"full": 240, "sliding": 1 + 6 + 20}
    engine, table = ledger_engine(config, pages, 256, 65_536, (32, 128, 512))
    engine._runner.longest_piece = piece  # type: ignore[attr-defined]
    Chat(engine, style, 256, counted).five_turns_and_two_steps_back(30, 3500)
    assert table.given_up > 0


@every_style
def test_two_conversations_keep_their_pages(style: Style) -> None:
    engine, _ = ledger()
    first, second = Chat(engine, style, 256, counted), Chat(engine, style, 256, counted)
    second.numbers = iter(range(5000, 10_000))
    turns: list[Turns] = [(), ()]
    for _ in range(4):
        turns[0] = first.ask(turns[0], first.question(40), 700)
        turns[1] = second.ask(turns[1], second.question(40), 700)


def test_the_conversation_that_was_longest_away_makes_room() -> None:
    engine, table = ledger(wanted=4096)
    sizes = {"first": 1500, "second": 1500, "third": 1800}  # 5, 5 and 7 whole pages, in room for 16
    texts = {name: text[:size] for text, (name, size) in zip(conversations(), sizes.items(), strict=False)}

    def reused(name: str) -> int:
        chunks = list(engine.generate(Request(texts[name], GREEDY, max_new_tokens=4)))
        return chunks[-1].stats.reused_tokens

    assert [reused(name) for name in ("first", "second", "first", "third")] == [0, 0, 1280, 0]
    assert table.given_up > 0
    assert [reused("first"), reused("third")] == [1280, 1792]
    assert reused("second") == 768  # its last two pages made room for the third


# --- a hundred conversations -----------------------------------------------------------------------------------------


def test_a_hundred_conversations_in_room_for_ten() -> None:
    engine, table = ledger_engine(replace(e2b(), vocab_size=320), POOLS, PAGE, CONTEXT, (32, PAGE))
    found = list(islice(visits(engine, conversations(), 1), 300))
    assert [reused for _, reused in found] == [predicted for predicted, _ in found]
    assert {reused for _, reused in found} == {0, WHOLE * PAGE}
    assert len(table.nodes()) < POOLS["full"]
    table.check()


@pytest.mark.long
def test_memory_does_not_grow() -> None:
    """The same visits to a decoder, in a process of its own: what is compiled for tests is slow to run."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    script = [sys.executable, engine_soak.__file__, "--visits", "220"]
    run = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout)
    assert (result["visits"], result["not_as_predicted"], result["steady"]) == (220, 0, True)
    assert 40 < result["hits"] < 180


def test_hundreds_of_conversations_leave_nothing_behind() -> None:
    """Each with two turns and a branch; the tree holds no more nodes than there are pages."""
    engine, table = ledger_engine(replace(e2b(8), vocab_size=320), {"full": 60, "sliding": 40}, 4, 96, (16,))
    numbers = random.Random(3)
    for number in range(400):
        text = [2, *(110 + (number * 7 + i * i + number // 200) % 200 for i in range(numbers.randrange(5, 40)))]
        for more in ([], [120, 121], [122] * 9):
            list(engine.generate(Request([*text, *more], GREEDY, max_new_tokens=numbers.randrange(1, 20))))
        assert len(table.nodes()) < 60
    assert table.given_up > 400


# --- on real decoders ------------------------------------------------------------------------------------------------


def chat(model: Any, style: Style, window: int, page: int, context: int, ladder: tuple[int, ...]) -> Chat:
    """With a model that sees so far, beside one that is told everything anew."""
    model = replace(model, config=with_window(model.config, window, context))
    options = {"page_size": page, "ladder": ladder, "max_context": context, "kv_memory": 1 << 27}
    engine, fresh = model.engine(**options), model.engine(**options)
    watched(engine)

    def alone(prompt: list[int], count: int) -> list[int]:
        watched(fresh)
        found: list[int] = model.continued(fresh, prompt, count)
        return found

    return Chat(engine, style, page, alone)


@every_style
@pytest.mark.xdist_group("small")
def test_turns_of_a_model(golden: Callable[[str], Any], style: Style) -> None:
    """Answers that move sliding layers three windows past where the turn began."""
    chat(golden("gemma4-e2b"), style, 16, 8, 1024, (64,)).five_turns_and_two_steps_back(3, 50)


@pytest.mark.long
@every_style
def test_long_turns_of_a_model(golden: Callable[[str], Any], style: Style) -> None:
    """Windows and pages of full size, and answers of 1,500 tokens."""
    chat(golden("gemma4-e2b"), style, 512, 256, 16_384, (32, 128, 512)).five_turns_and_two_steps_back(40, 1500)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, golden: Callable[[str], Any]) -> Any:
    return golden(request.param)


def scores(engine: Engine, ids: list[int], cuts: list[int]) -> list[Any]:
    """Logits of ids in pieces that begin at the cuts, those before what is found again left out."""
    table, runner = engine._runner.table, engine._runner
    sequence, reused = table.begin(ids)
    found = []
    try:
        for start, stop in zip(cuts, [*cuts[1:], len(ids)], strict=True):
            if start >= reused:
                found.append(runner.score(sequence, ids[start:stop], start))
                table.wrote(sequence, ids[:stop])
    finally:
        table.release(sequence)
    return found


def is_unchanged(model: Any, page_size: int) -> None:
    """By pages that are found again, in the same pieces and in others; by neighbours; by having been cancelled."""
    engine = model.engine(page_size=page_size)
    watched(engine)
    whole = (len(model.ids) - 1) // page_size * page_size
    cuts = sorted({0, 16, 32, whole})
    first, again = scores(engine, model.ids, cuts), scores(engine, model.ids, cuts)
    assert [len(pieces) for pieces in (first, again)] == [len(cuts), 1]
    assert np.array_equal(first[-1], again[-1])
    assert np.abs(np.concatenate(first) - model.logits).max() <= TOLERANCE
    watched(engine)
    scores(engine, model.ids, [0, 5, 30])
    (rest,) = scores(engine, model.ids, cuts)
    assert np.abs(rest - model.logits[whole:]).max() <= TOLERANCE

    watched(engine)
    scores(engine, model.ids[:32], [0, 16])
    read_on = scores(engine, model.ids, cuts)
    assert len(read_on) == len(cuts) - 2
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(read_on, first[2:], strict=True))

    watched(engine)
    cancel = threading.Event()
    stopped = Request(model.ids, GREEDY, cancel=cancel, on_prefill=lambda done, total: cancel.set())
    assert [chunk.finish for chunk in engine.generate(stopped)] == ["cancelled"]
    assert np.abs(np.concatenate(scores(engine, model.ids, cuts)) - model.logits[16:]).max() <= TOLERANCE

    table = watched(engine)
    answer = engine.generate(Request(model.ids, GREEDY))
    made = [*next(answer).ids, *next(answer).ids]
    answer.close()  # type: ignore[attr-defined]
    assert made == model.greedy[: len(made)]
    text = [*model.ids, *made]
    found = (len(text) - 1) // page_size * page_size
    (rest,) = scores(engine, text, [0, found])
    assert np.abs(rest - engine.logits(text)[found:]).max() <= TOLERANCE
    chunks = list(engine.generate(Request([*model.ids, *made], GREEDY, max_new_tokens=len(model.greedy) - len(made))))
    assert [*made, *ids_of(chunks)] == model.greedy
    assert chunks[-1].stats.reused_tokens == (len(model.ids) + len(made) - 1) // page_size * page_size

    neighbours = [
        Request(model.ids, GREEDY, max_new_tokens=len(model.greedy)),
        Request(model.ids[:13], Sampling(temperature=2.0, seed=1), max_new_tokens=20),
    ]
    together: list[list[TokenChunk]] = [[], []]
    for number, chunk in engine.generate_many(neighbours):
        together[number].append(chunk)
    assert ids_of(together[0]) == model.greedy
    assert together[0][-1].stats.reused_tokens > 0
    table.check()


@models("gemma4-e2b")
def test_nothing_changes_what_a_model_says(model: Any) -> None:
    is_unchanged(model, 4)


@pytest.mark.long
@every_model
@pytest.mark.parametrize("page_size", [2, 8])
def test_nothing_changes_what_any_model_says(model: Any, page_size: int) -> None:
    is_unchanged(model, page_size)


def test_what_the_ledger_reads_is_counted() -> None:
    """The tests above would pass on a device that is told to read everything."""
    engine, _ = ledger()
    runner = engine._runner
    assert isinstance(runner, LedgerRunner)
    list(engine.generate(Request([2] * 1000, GREEDY, max_new_tokens=1)))
    list(engine.generate(Request([*[2] * 1000, 5], GREEDY, max_new_tokens=1)))
    assert runner.read_tokens == 1000 + 1001 - 768
    assert set(KINDS) == set(runner.held)
