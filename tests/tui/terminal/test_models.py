"""From nothing to a chat, with keys alone: the first start, a model chosen, watched, given up, killed, gone on with,
loaded with the real engine, and talked to."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rvchat.hub.place import Place
from rvchat.hub.starter import PARTS
from tests.loopback_hub import Hub, checkpoint
from tests.small_tokenizer import small_tokenizer

pytestmark = pytest.mark.long

Start = Callable[..., Any]
REPO = "acme/gemma-small"
SLOW = 120_000
LOADING_S = 300.0
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@pytest.fixture
def no_starter(tmp_path: Path) -> dict[str, str]:
    """An environment in which the starter's package has no weights, as where it has not been installed, and in which
    compiling is quick."""
    package = tmp_path / "hiding" / PARTS[0].split("/")[0]
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    root = Path(__file__).parents[3]
    return {"PYTHONPATH": f"{tmp_path / 'hiding'}{os.pathsep}{root}", "XLA_FLAGS": QUICK_XLA}


@pytest.fixture
def slow(hub: Hub) -> Iterator[None]:
    """A small real checkpoint with a tokenizer, on a hub that is slow until it is told otherwise."""
    files = {**checkpoint("gemma4-e2b"), "tokenizer.json": small_tokenizer().encode()}
    hub.add(REPO, files)
    hub.fail("storage", times=float("inf"), rate=SLOW)
    yield
    hub.faults.clear()


def on_disk() -> int:
    return sum(path.stat().st_size for path in Place.of().cache.glob("*/blobs/*"))


def patiently(app: Any, text: str) -> None:
    """What needs a compiler."""
    end = time.monotonic() + LOADING_S
    while text not in app.screen:
        assert time.monotonic() < end, app.screen
        time.sleep(0.05)


def choose(app: Any, name: str) -> None:
    """Finds a model of the hub by its name on the screen of models, and begins its download."""
    app.keys("C-o")
    app.sees("To download", "Search; or owner/name")
    app.type("/")
    app.type(name)
    app.sees(name, "known once its configuration is here")
    app.keys("Enter")
    app.sees("Enter downloads")
    app.keys("Enter")


def test_from_nothing_to_a_chat(
    hub: Hub, slow: None, terminal: Start, no_starter: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    app = terminal(environ=no_starter)
    app.sees("A model for this machine", "Ctrl+L downloads it", "no model", "leaves this machine")
    assert hub.seen == []

    choose(app, REPO)
    app.sees("downloading", "MB/s", "left", "Enter pauses", "x gives up")
    app.until(lambda: on_disk() > 200_000)
    app.keys("x")
    app.sees("Give up the download", "Leave it as it is")
    app.keys("Down", "Enter")
    began = time.monotonic()
    app.sees("is given up")
    with capsys.disabled():
        print(f"\nfrom the key to the end of a download that is given up: {time.monotonic() - began:.2f} s")
    assert not list(Place.of().cache.glob("*/blobs/*.rvchat"))

    app.keys("f")
    app.sees("downloading")
    app.keys("Escape", "Escape")
    app.sees("Write a message")
    app.type("typed during the download")
    app.sees("typed during the download", "↓")
    app.until(lambda: on_disk() > 200_000)
    app.kill()
    there, asked = on_disk(), len(hub.seen)

    app.start()
    app.sees("is not whole", "Ctrl+L goes on with it")
    assert (on_disk(), len(hub.seen)) == (there, asked), "something went on by itself"
    hub.faults.clear()
    began_at = len(hub.starts())
    app.keys("C-l")
    app.sees("is here. Ctrl+L loads it.")
    assert hub.starts()[began_at] > 0, "what was there was fetched again"

    app.keys("C-l")
    patiently(app, "● ready")
    app.keys("C-s")
    app.sees("System prompt")
    for _ in range(7):
        app.keys("Tab")
    app.type("8")
    app.keys("C-s")
    app.no_longer_sees("System prompt")
    app.type("hello")
    app.keys("Enter")
    app.sees("tok/s")
    app.until(lambda: _answered(app.folder))

    app.keys("C-q")
    app.sees("ENDED 0")
    app.start()
    patiently(app, "● ready")  # the model that was used last, without being asked for
    app.sees("gemma-small")


def _answered(folder: Path) -> bool:
    with sqlite3.connect(folder / "rvchat.sqlite3") as db:
        rows = db.execute("SELECT model, status FROM message WHERE role = 'assistant'").fetchall()
    return rows == [(REPO, "complete")]
