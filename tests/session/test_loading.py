"""Models come and go on the engine thread, one at a time."""

from __future__ import annotations

import threading

from rvchat.errors import CancelledError, ModelError
from rvchat.session.model import LoadProgress, Model
from rvchat.types import Event, Finished, LoadFailed, Loading, ModelReady, TextDelta, Unloaded
from tests.session.conftest import PATIENCE, Puppet, Stage, Stages


class Shelf:
    """Opens puppets by name; `slow` waits, saying so, until it is cancelled or let go."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.puppets: list[Puppet] = []
        self.threads: set[str] = set()
        self.go = threading.Event()

    def __call__(self, name: str, progress: LoadProgress) -> Model:
        self.threads.add(threading.current_thread().name)
        if name == "broken":
            raise ModelError("The file is cut off", "Fetch it again")
        if name == "odd":
            raise ValueError("who knows")
        if name == "slow":
            while not self.go.wait(0.005):
                progress("read", 0.5)
        progress("read", 1.0)
        self.log.append(f"took memory for {name}")
        self.puppets.append(Puppet(log=self.log))
        return self.puppets[-1].as_model(name)


def test_a_model_is_loaded_with_its_stages_and_said_to_be_ready(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="one")
    ready = stage.happened.until(lambda e: isinstance(e, ModelReady))
    assert ready == ModelReady(shelf.puppets[0].as_model("one").info)
    assert stage.session.model == ready.model
    assert [(e.stage, e.fraction) for e in stage.happened.of(Loading)] == [("open", None), ("read", 1.0)]
    assert shelf.threads == {"rvchat-engine"}


def test_loading_a_second_model_frees_the_first_before(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="one")
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    stage.session.load("two")
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    assert shelf.log == ["took memory for one", "closed", "took memory for two"]


def with_an_answer_being_made(stages: Stages) -> tuple[Shelf, Stage, str]:
    """Model "one" has said "on" of an answer, whose id comes last."""
    shelf = Shelf()
    stage = stages(open_model=shelf, load="one")
    first = stage.session.send("One?")
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    shelf.puppets[0].say("on")
    stage.happened.until(lambda e: isinstance(e, TextDelta))
    return shelf, stage, first


def test_a_question_waits_for_the_model_that_is_being_loaded(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="slow")
    answer_id = stage.session.send("One?")
    assert stage.on_disk().branch()[0].content == "One?"
    assert stage.session.conversation.model == "slow"
    shelf.go.set()
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    shelf.puppets[0].say("1", "stop")
    assert stage.session.wait(answer_id, PATIENCE).content == "1"


def test_another_model_comes_after_the_answer_that_is_being_made(stages: Stages) -> None:
    shelf, stage, first = with_an_answer_being_made(stages)
    stage.session.load("two")
    shelf.puppets[0].say("e", "stop")
    assert stage.session.wait(first, PATIENCE).model == "one"
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    second = stage.session.send("Two?")
    shelf.puppets[1].say("two", "stop")
    assert stage.session.wait(second, PATIENCE).model == "two"
    assert stage.on_disk().model == "two"


def test_loading_can_be_cancelled_and_what_waited_for_it_fails_with_a_reason(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="slow")
    answer_id = stage.session.send("One?")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    stage.session.cancel_load()
    failed = stage.happened.until(lambda e: isinstance(e, LoadFailed))
    assert isinstance(failed, LoadFailed)
    assert failed.cancelled
    answer = stage.session.wait(answer_id, PATIENCE)
    assert answer.status == "failed"
    assert "cancelled" in str(answer.error)
    assert stage.session.model is None


def test_another_model_takes_the_place_of_one_that_is_being_loaded_and_answers_what_waited_for_it(
    stages: Stages,
) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="slow")
    answer_id = stage.session.send("One?")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    stage.session.load("two")
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    shelf.puppets[0].say("1", "stop")
    answer = stage.session.wait(answer_id, PATIENCE)
    assert (answer.content, answer.model) == ("1", "two")
    assert stage.session.conversation.model == "two"
    assert shelf.log == ["took memory for two"]
    assert stage.happened.of(LoadFailed) == [], "nobody asked for no model"
    models = [event.model for event in stage.happened.of(Loading)]
    assert models == sorted(models), "slow, then two"


def test_another_model_takes_the_place_of_one_that_waits_for_an_answer(stages: Stages) -> None:
    shelf, stage, first = with_an_answer_being_made(stages)
    stage.session.load("slow")
    second = stage.session.regenerate(stage.session.conversation.branch()[0].id)
    stage.session.load("two")
    shelf.puppets[0].say("e", "stop")
    assert stage.session.wait(first, PATIENCE).model == "one"
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    shelf.puppets[1].say("two", "stop")
    assert stage.session.wait(second, PATIENCE).model == "two"
    assert {event.model for event in stage.happened.of(Loading)} == {"one", "two"}


def test_a_model_that_is_being_loaded_is_not_begun_again(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="slow")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    stage.session.load("slow")
    shelf.go.set()
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    assert stage.session.unload().wait(PATIENCE)
    assert shelf.log == ["took memory for slow", "closed"]


def test_who_hears_that_a_loading_failed_can_ask_for_the_same_again_at_once(stages: Stages) -> None:
    stage = stages(open_model=Shelf(), load=None)

    def listen(event: Event) -> None:
        stage.happened.put(event)
        if len(stage.happened.of(LoadFailed)) == 1 and isinstance(event, LoadFailed):
            stage.session.load("broken")

    stage.session._on_event = listen
    stage.session.load("broken")
    stage.happened.until(lambda e: len(stage.happened.of(LoadFailed)) == 2)


def test_a_model_that_is_asked_for_after_an_unloading_comes_after_it(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="slow")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    stage.session.unload()
    stage.session.load("two")
    shelf.go.set()
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    assert shelf.log == ["took memory for slow", "closed", "took memory for two"]
    assert stage.session.model is not None


def test_a_model_that_cannot_be_opened_is_said_so_and_the_next_works(stages: Stages) -> None:
    stage = stages(open_model=Shelf(), load="broken")
    assert stage.happened.until(lambda e: isinstance(e, LoadFailed)) == LoadFailed(
        "The file is cut off", "Fetch it again"
    )
    stage.session.load("odd")
    odd = stage.happened.until(lambda e: isinstance(e, LoadFailed) and "who knows" in e.message)
    assert isinstance(odd, LoadFailed)
    assert odd.message == "ValueError: who knows"
    stage.session.load("one")
    stage.happened.until(lambda e: isinstance(e, ModelReady))


def test_a_name_that_stands_for_no_model_leaves_the_one_that_is_there(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="one")
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    stage.session.load("broken")
    stage.happened.until(lambda e: isinstance(e, LoadFailed))
    assert stage.session.model == shelf.puppets[0].as_model("one").info
    answer_id = stage.session.send("One?")
    shelf.puppets[0].say("1", "stop")
    assert stage.session.wait(answer_id, PATIENCE).content == "1"
    assert shelf.log == ["took memory for one"]


def test_every_stage_names_the_model_that_is_loaded(stages: Stages) -> None:
    stage = stages(open_model=Shelf(), load="one")
    stage.happened.until(lambda e: isinstance(e, ModelReady))
    assert {event.model for event in stage.happened.of(Loading)} == {"one"}


def test_unloading_frees_the_model_and_what_is_asked_then_says_that_there_is_none(stages: Stages) -> None:
    shelf = Shelf()
    stage = stages(open_model=shelf, load="one")
    assert stage.session.unload().wait(PATIENCE)
    assert shelf.log == ["took memory for one", "closed"]
    assert stage.session.model is None
    stage.happened.until(lambda e: isinstance(e, Unloaded))
    answer = stage.session.wait(stage.session.send("One?"), PATIENCE)
    assert answer.status == "failed"
    assert answer.error == "No model is loaded. Choose a model and try again."
    assert stage.session.conversation.model is None
    stage.session.load("two")
    again = stage.session.regenerate()
    stage.happened.until(lambda e: isinstance(e, ModelReady) and e.model.name == "two")
    shelf.puppets[1].say("1", "stop")
    assert stage.session.wait(again, PATIENCE).content == "1"


def test_unloading_waits_for_the_answers_asked_for_before(stages: Stages) -> None:
    shelf, stage, first = with_an_answer_being_made(stages)
    gone = stage.session.unload()
    assert not gone.is_set()
    assert not shelf.puppets[0].closed
    shelf.puppets[0].say("e", "stop")
    assert stage.session.wait(first, PATIENCE).content == "one"
    assert gone.wait(PATIENCE)
    assert shelf.puppets[0].closed


def test_unloading_what_is_not_there_does_nothing_and_who_waits_for_it_is_not_left_waiting(stages: Stages) -> None:
    stage = stages(open_model=Shelf(), load=None)
    assert stage.session.unload().wait(PATIENCE)
    assert stage.happened.of(LoadFailed) == []
    stage.session.load("slow")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    behind = stage.session.unload()
    assert stage.session.close()
    assert behind.wait(PATIENCE)
    assert stage.session.unload().wait(PATIENCE)


def test_closing_ends_a_loading(stages: Stages) -> None:
    stage = stages(open_model=Shelf(), load="slow")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    assert stage.session.close()


def test_who_listens_badly_does_not_end_the_thread_that_answers(stages: Stages) -> None:
    puppet = Puppet()
    heard: list[object] = []

    def listen(event: object) -> None:
        heard.append(event)
        raise RuntimeError("the listener is broken")

    from rvchat.session import Session
    from rvchat.store import Store

    store = Store.memory()
    session = Session(store=store, open_model=lambda name, progress: puppet.as_model(), on_event=listen)
    stages.made.append((session, store))
    session.load("puppet")
    puppet.say("1", "stop")
    assert session.wait(session.send("One?"), PATIENCE).content == "1"
    assert any(isinstance(event, Finished) for event in heard)


def test_progress_that_is_told_after_a_cancel_ends_the_loading_by_its_own_error(stages: Stages) -> None:
    told: list[BaseException] = []

    def open_model(name: str, progress: LoadProgress) -> Model:
        try:
            while True:
                progress("read", 0.5)
        except CancelledError as error:
            told.append(error)
            raise

    stage = stages(open_model=open_model, load="one")
    stage.happened.until(lambda e: isinstance(e, Loading) and e.fraction == 0.5)
    stage.session.cancel_load()
    stage.happened.until(lambda e: isinstance(e, LoadFailed))
    assert [error.exit_code for error in told if isinstance(error, CancelledError)] == [130]


def test_a_model_that_comes_after_all_is_freed_when_its_loading_was_cancelled(stages: Stages) -> None:
    puppet = Puppet()
    inside, go = threading.Event(), threading.Event()

    def open_model(name: str, progress: LoadProgress) -> Model:
        inside.set()
        assert go.wait(PATIENCE)  # and no progress that could end it
        return puppet.as_model(name)

    stage = stages(open_model=open_model, load="one")
    assert inside.wait(PATIENCE)
    stage.session.cancel_load()
    go.set()
    failed = stage.happened.until(lambda e: isinstance(e, LoadFailed))
    assert isinstance(failed, LoadFailed)
    assert failed.cancelled
    assert puppet.closed
    assert stage.session.model is None
    assert stage.happened.of(ModelReady) == []


def test_a_conversation_names_the_model_it_was_begun_with(stage: Stage) -> None:
    stage.answered("One?", "1")
    assert stage.on_disk().model == "puppet"
