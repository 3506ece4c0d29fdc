"""A conversation has the first words of its question as title, until a model that can has found a better one."""

from __future__ import annotations

from rvchat.session.titles import cleaned
from rvchat.session.tree import first_words
from rvchat.types import Finished, Titled
from tests.session.conftest import PATIENCE, Puppet, Stage, Stages


def test_the_first_words_are_the_title_at_once(stage: Stage) -> None:
    stage.session.send("  How deep\n is the lake? " + "and how wide " * 20)
    title = stage.session.conversation.title
    assert title == "How deep is the lake? and how wide and how wide and how wide…"
    assert stage.on_disk().title == title
    assert [e.title for e in stage.happened.of(Titled)] == [title]
    stage.session.stop()


def test_a_model_that_can_finds_a_better_one_when_it_is_idle(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    stage.answered("How deep is the lake?", "Nine metres.")
    assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.puppet.say('**Title: "Depth of the lake".**\n', "stop")
    stage.happened.until(lambda e: isinstance(e, Titled) and e.title == "Depth of the lake")
    assert stage.session.conversation.title == "Depth of the lake"
    assert stage.on_disk().title == "Depth of the lake"
    prompt = stage.puppet.prompt()
    assert "How deep is the lake?" in prompt
    assert "Nine metres." in prompt
    assert len(stage.session.conversation.messages) == 2


def test_a_title_gives_way_to_the_next_question_and_is_made_after_it(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    stage.answered("One?", "1")
    for _ in range(2):  # the question, and the title that begins
        assert stage.puppet.asked.acquire(timeout=PATIENCE)
    second = stage.session.send("Two?")
    assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.puppet.say("2", "stop")
    assert stage.session.wait(second, PATIENCE).content == "2"
    assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.puppet.say("Numbers", "stop")
    stage.happened.until(lambda e: isinstance(e, Titled) and e.title == "Numbers")
    assert [("One?" in stage.puppet.prompt(n), "Two?" in stage.puppet.prompt(n)) for n in range(4)] == [
        (True, False),
        (True, False),
        (True, True),
        (True, False),
    ]


def test_a_title_that_the_user_gave_stays(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    stage.answered("One?", "1")
    for _ in range(2):
        assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.session.change(title="Mine")
    stage.puppet.say("Numbers", "stop")
    stage.puppet.heard_out()
    stage.answered("Two?", "2")
    assert stage.on_disk().title == "Mine"


def test_a_title_that_was_changed_by_another_hand_stays(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    stage.answered("One?", "1")
    first = stage.session.conversation.id
    stage.session.new()
    for _ in range(2):
        assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.store.change(first, title="Renamed in the list")
    stage.puppet.say("Numbers", "stop")
    stage.puppet.heard_out()
    stage.answered("Two?", "2")
    assert stage.on_disk(first).title == "Renamed in the list"


def test_a_title_given_by_another_hand_to_the_open_conversation_stays(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    stage.answered("One?", "1")
    for _ in range(2):
        assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.store.change(stage.session.conversation.id, title="Renamed in the list")
    stage.puppet.say("Numbers", "stop")
    stage.puppet.heard_out()
    stage.answered("Two?", "2")
    assert stage.on_disk().title == "Renamed in the list"


def test_an_answer_that_was_stopped_or_is_the_second_asks_for_no_title(stages: Stages) -> None:
    stage = stages(makes_titles=True)
    answer_id = stage.session.send("One?")
    stage.session.stop(answer_id)
    stage.session.wait(answer_id, PATIENCE)
    stage.answered("Two?", "2")
    stage.happened.until(lambda e: isinstance(e, Finished) and e.answer.content == "2")
    assert stage.session.close()
    assert all("title" not in stage.puppet.prompt(n) for n in range(len(stage.puppet.requests)))


def test_a_title_that_fails_harms_nothing(stages: Stages) -> None:
    stage = stages(Puppet(), makes_titles=True)
    stage.answered("One?", "1")
    for _ in range(2):
        assert stage.puppet.asked.acquire(timeout=PATIENCE)
    stage.puppet.fail(RuntimeError("no"))
    stage.puppet.heard_out()
    stage.answered("Two?", "2")
    assert stage.on_disk().title == "One?"


def test_ornaments_of_a_title_are_taken_off() -> None:
    assert cleaned("\n\n## “Bread, slowly”\nmore") == "Bread, slowly"
    assert cleaned("Title: Bread.") == "Bread"
    assert cleaned("**Bread**") == "Bread"
    assert cleaned("\x1b[31mBread\x07") == "[31mBread"
    assert cleaned("x" * 200) == ""
    assert cleaned(" \n") == ""


def test_first_words_are_one_line_without_control_characters() -> None:
    assert first_words("a\n\tb\x1b[2J") == "a b[2J"
    assert first_words("x" * 100) == "x" * 60 + "…"
    assert first_words("word " * 30) == "word " * 11 + "word…"
