"""The disk may refuse: the conversation goes on, the user hears of it, and nothing is missing once it is better."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rvchat.errors import BadInputError, StoreError
from rvchat.session import history
from rvchat.store import Store
from rvchat.types import Conversation, Finished, Message, Notice, TextDelta
from tests.session.conftest import PATIENCE, Stage, Stages


class Fragile:
    """A store that can be told to refuse what is written."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.full = False
        self.refused = 0
        self.waits: threading.Event | None = None
        self.waiting = threading.Event()
        self.problem = store.problem

    def conversation(self, conversation_id: str) -> Conversation:
        return self.store.conversation(conversation_id)

    def close(self) -> None:
        self.store.close()

    def create(self, conversation: Conversation) -> None:
        self._check()
        self.store.create(conversation)

    def add(self, conversation_id: str, message: Message) -> None:
        self._check()
        self.store.add(conversation_id, message)

    def update(self, message: Message) -> None:
        self._check()
        self.store.update(message)

    def set_leaf(self, conversation_id: str, message_id: str) -> None:
        self._check()
        self.store.set_leaf(conversation_id, message_id)

    def change(self, conversation_id: str, **fields: Any) -> None:
        self._check()
        self.store.change(conversation_id, **fields)

    def recover(self) -> int:
        return self.store.recover()

    def _check(self) -> None:
        if self.waits is not None:
            self.waiting.set()
            assert self.waits.wait(PATIENCE)
        if self.full:
            self.refused += 1
            raise StoreError("There is no room on the disk", "Free some space")


def fragile(stages: Stages) -> tuple[Stage, Fragile]:
    store = Fragile(Store.open(stages.folder / "rvchat.sqlite3"))
    return stages(store=store), store


def refused(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> tuple[Stage, Fragile, Conversation]:
    """A conversation that a full disk has refused, which is tried again without a pause."""
    monkeypatch.setattr(history, "RETRY_S", 0.0)
    stage, store = fragile(stages)
    store.full = True
    stage.answered("One?", "1")
    return stage, store, stage.session.conversation


def notices(stage: Stage) -> list[str]:
    return [event.text for event in stage.happened.of(Notice)]


def test_with_a_full_disk_the_conversation_goes_on_and_the_user_hears_of_it_once(stages: Stages) -> None:
    stage, store = fragile(stages)
    stage.answered("One?", "1")
    store.full = True
    stage.answered("Two?", "2")
    stage.answered("Three?", "3")
    assert stage.branch() == ["One?", "1", "Two?", "2", "Three?", "3"]
    assert [m.content for m in stage.on_disk().branch()] == ["One?", "1"]
    (text,) = notices(stage)
    assert "There is no room on the disk. Free some space. It goes on in memory" in text


def test_what_could_not_be_written_is_written_when_the_disk_takes_it_again(stages: Stages) -> None:
    stage, store = fragile(stages)
    store.full = True
    stage.answered("One?", "1")
    stage.session.change(title="Numbers", pinned=True)
    answer_id = stage.session.regenerate()
    stage.puppet.say("eins", "stop")
    stage.session.wait(answer_id, PATIENCE)
    store.full = False
    stage.answered("Two?", "2")
    assert stage.on_disk() == stage.session.conversation
    assert [m.content for m in stage.on_disk().messages] == ["One?", "1", "eins", "Two?", "2"]
    assert stage.on_disk().pinned
    assert notices(stage)[-1] == "The conversation is saved again, all of it."


def test_a_conversation_that_is_not_on_disk_can_be_left_and_opened_again(stages: Stages) -> None:
    stage, store = fragile(stages)
    store.full = True
    stage.answered("One?", "1")
    first = stage.session.conversation.id
    stage.session.new()
    assert [m.content for m in stage.session.open(first).branch()] == ["One?", "1"]
    store.full = False
    assert stage.session.close()
    assert [m.content for m in stage.on_disk(first).branch()] == ["One?", "1"]


def test_closing_says_what_could_not_be_saved(stages: Stages) -> None:
    stage, store = fragile(stages)
    store.full = True
    stage.answered("One?", "1")
    stage.session.close()
    (text,) = notices(stage)[1:]
    assert text == "Not saved completely: “One?”. There is no room on the disk. Free some space"
    assert [conversation.title for conversation in stage.session.unsaved] == ["One?"]


def test_what_could_not_be_written_is_written_by_itself_when_the_disk_takes_it_again(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, store, first = refused(stages, monkeypatch)
    stage.session.new()
    assert stage.session.unsaved == (first,)
    before = store.refused
    deadline = time.monotonic() + PATIENCE
    while store.refused == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    store.full = False
    stage.happened.until(lambda e: isinstance(e, Notice) and "saved again" in e.text)
    assert stage.on_disk(first.id) == first
    assert stage.session.unsaved == ()
    assert len(notices(stage)) == 2
    last = first.branch()[-1]
    store.store.add(first.id, Message("later", last.id, "user", "Two?", last.created))
    assert stage.session.open(first.id).branch()[-1].content == "Two?"  # read again: it is whole on disk
    stage.session.close()
    assert len(notices(stage)) == 2


def test_another_conversation_can_be_opened_while_a_store_keeps_one_waiting(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, store, first = refused(stages, monkeypatch)
    store.waits = threading.Event()
    assert store.waiting.wait(PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(stage.session.new).result(PATIENCE / 2).messages == ()
            assert pool.submit(stage.session.open, first.id).result(PATIENCE / 2).title == "One?"
        finally:
            store.full = False
            store.waits.set()
    stage.happened.until(lambda e: isinstance(e, Notice) and "saved again" in e.text)


def test_a_number_that_no_column_holds_is_refused_and_stops_nothing(stage: Stage) -> None:
    stage.answered("One?", "1")
    for number in (10**20, 0):
        with pytest.raises(BadInputError, match=f"is {number} tokens; it must be between 1 and"):
            stage.session.change(max_new_tokens=number)
    stage.session._ledger.change(stage.session.conversation.id, max_new_tokens=10**20)
    assert "too large" in notices(stage)[-1]
    assert stage.session.close()
    assert "Not saved completely: “One?”" in notices(stage)[-1]


def test_checkpoints_that_fail_do_not_pile_up(stages: Stages) -> None:
    stage, store = fragile(stages)
    answer_id = stage.session.send("One?")
    stage.puppet.say("a")
    stage.happened.until(lambda e: isinstance(e, TextDelta))
    store.full = True
    deadline = time.monotonic() + PATIENCE
    while store.refused < 2:
        assert time.monotonic() < deadline
        stage.puppet.say("b")
        time.sleep(0.02)
    stage.puppet.say("c", "stop")
    answer = stage.session.wait(answer_id, PATIENCE)
    writes = stage.session._ledger._pending[stage.session.conversation.id]
    assert len(writes) == 1
    store.full = False
    stage.session.change(title="x")
    assert stage.on_disk().branch()[-1] == answer


def test_one_conversation_that_cannot_be_written_does_not_hold_up_another(stages: Stages) -> None:
    stage, store = fragile(stages)
    stage.answered("One?", "1")
    first = stage.session.conversation.id
    store.store.delete(first)
    store.store.purge(older_than=-1)
    stage.answered("Two?", "2")
    assert "There is no conversation" in notices(stage)[0]
    stage.session.new()
    stage.answered("Three?", "3")
    assert [m.content for m in stage.on_disk().branch()] == ["Three?", "3"]


def test_a_store_in_memory_says_why(stages: Stages) -> None:
    stage = stages(store=Store.memory("The folder cannot be written to."))
    assert notices(stage)[0] == "The folder cannot be written to. What is said now is kept in memory alone."
    stage.answered("One?", "1")
    assert [m.content for m in stage.store.conversation(stage.session.conversation.id).branch()] == ["One?", "1"]


def test_an_empty_conversation_is_not_kept(stage: Stage) -> None:
    stage.session.change(system="Be brief.", title="Plans")
    assert stage.store.list() == []
    stage.answered("One?", "1")
    (kept,) = stage.store.list()
    assert (kept.title, stage.on_disk().system) == ("Plans", "Be brief.")
    stage.session.new()
    stage.session.new()
    assert len(stage.store.list()) == 1


def test_an_answer_goes_on_while_another_conversation_is_open(stage: Stage) -> None:
    answer_id = stage.session.send("One?")
    first = stage.session.conversation.id
    stage.puppet.say("On")
    stage.happened.until(lambda e: isinstance(e, TextDelta))
    stage.session.new()
    assert stage.session.conversation.messages == ()
    assert stage.session.open(first).branch()[-1].content == "On"
    stage.session.new()
    stage.puppet.say("e.", "stop")
    stage.session.wait(answer_id, PATIENCE)
    done = stage.happened.until(lambda e: isinstance(e, Finished))
    assert isinstance(done, Finished)
    assert done.conversation_id == first
    assert stage.on_disk(first).branch()[-1].content == "One."
    assert stage.session.open(first).branch()[-1].content == "One."
