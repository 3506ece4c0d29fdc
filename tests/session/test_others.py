"""Another process works on the same conversation: nothing it writes is overwritten, and what it adds is found."""

from __future__ import annotations

import dataclasses

import pytest

from rvchat.errors import BadInputError
from rvchat.store import Store
from rvchat.types import TextDelta
from tests.session.conftest import PATIENCE, Stage, Stages


def opened_again(stages: Stages, first: Stage) -> Stage:
    """A second session, on a store of its own, with the conversation open that the first has."""
    second = stages()
    second.session.open(first.session.conversation.id)
    return second


def test_an_answer_that_another_process_is_writing_cannot_go_on_here(stages: Stages) -> None:
    one = stages()
    stopped = one.session.send("Count.")
    one.puppet.say("One, ")
    one.happened.until(lambda e: isinstance(e, TextDelta))
    one.session.stop(stopped)
    one.session.wait(stopped, PATIENCE)
    two = opened_again(stages, one)
    one.session.continue_()
    with pytest.raises(BadInputError, match=r"another rvchat is writing this answer.*Wait"):
        two.session.continue_()
    one.comes(stopped, "two, ")
    assert one.on_disk().branch()[-1].content == "One,two,"
    assert two.session.continue_() == stopped
    two.comes(stopped, "three")
    assert one.on_disk().branch()[-1].content == "One,two,three"


def test_an_answer_goes_on_here_when_the_process_that_wrote_it_has_died(stages: Stages) -> None:
    one = stages()
    question = one.answered("Count.", "One,")
    two = opened_again(stages, one)
    other = Store.open(one.path)
    (answer,) = (m for m in other.conversation(one.session.conversation.id).messages if m.id == question)
    other.update(dataclasses.replace(answer, content="One, two,", status="streaming"))
    with pytest.raises(BadInputError, match="another rvchat"):
        two.session.continue_()
    other.close()
    two.session.continue_()
    two.comes(question, " three")
    assert one.on_disk().branch()[-1].content == "One, two, three"


def test_what_another_process_has_added_can_be_selected(stages: Stages) -> None:
    one = stages()
    one.answered("One?", "1")
    two = opened_again(stages, one)
    two.answered("Two?", "2")
    added = two.session.conversation.branch()[-1]
    one.session.select(added.id)
    assert one.branch() == ["One?", "1", "Two?", "2"]
    assert one.session.conversation.messages == two.session.conversation.messages
    with pytest.raises(BadInputError, match="no message nowhere"):
        one.session.select("nowhere")


def test_selecting_what_was_added_leaves_an_answer_that_is_being_made(stages: Stages) -> None:
    one = stages()
    one.answered("One?", "1")
    two = opened_again(stages, one)
    two.answered("Two?", "2")
    mine = one.session.send("Drei?")
    one.puppet.say("Dr")
    one.happened.until(lambda e: isinstance(e, TextDelta) and e.answer_id == mine)
    one.session.select(two.session.conversation.branch()[2].id)
    assert one.branch() == ["One?", "1", "Two?", "2"]
    one.comes(mine, "ei")
    one.session.select(mine)
    assert one.branch() == ["One?", "1", "Drei?", "Drei"]
    assert {m.content for m in one.on_disk().messages} == {"One?", "1", "Two?", "2", "Drei?", "Drei"}


def test_talking_on_in_a_deleted_conversation_brings_it_back(stages: Stages) -> None:
    stage = stages()
    stage.answered("One?", "1")
    there = stage.session.conversation.id
    other = Store.open(stage.path)
    other.delete(there)
    stage.answered("Two?", "2")
    assert stage.on_disk() == stage.session.conversation
    other.delete(there)
    stage.session.new()
    stage.session.open(there)
    stage.session.continue_()
    assert stage.session.conversation.deleted is None
    assert [summary.id for summary in other.list()] == [there]
    stage.session.stop()
    assert other.purge(older_than=-1.0) == 0
    other.close()


def test_an_answer_that_comes_after_its_conversation_was_deleted_leaves_it_deleted(stages: Stages) -> None:
    stage = stages()
    answer_id = stage.session.send("One?")
    other = Store.open(stage.path)
    other.delete(stage.session.conversation.id)
    stage.comes(answer_id, "1")
    assert stage.on_disk().messages[-1].content == "1"
    assert other.list() == []
    other.close()
