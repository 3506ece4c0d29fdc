"""What is known of models without a screen: names, memory, words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rvchat.config import Paths
from rvchat.hub import catalogue
from rvchat.hub.background import Download
from rvchat.hub.listing import of_entry
from rvchat.hub.machine import Machine
from rvchat.hub.progress import Progress
from rvchat.tui.models import shelf, words
from rvchat.tui.models.words import Now
from rvchat.types import ModelInfo

GPU = Machine("gpu", "card", 70_000_000_000, 80_000_000_000)
HOST = Machine("cpu", "processor", 4_000_000_000, 16_000_000_000)
LOADED = ModelInfo("gemma", "int4", "plain", 8192, False, False, memory=3_000_000_000)
NAME = "gemma-4-e2b-it"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(Machine, "host", lambda: HOST)
    return Paths.of(tmp_path / "data", {})


def test_memory_for_the_next_model_is_what_is_free_and_what_the_loaded_one_gives_back(paths: Paths) -> None:
    assert shelf.machine_for_next(HOST, None) == HOST
    assert shelf.machine_for_next(HOST, LOADED).free == 7_000_000_000
    assert shelf.machine_for_next(GPU, LOADED) == GPU, "it was asked for before anything was loaded"


def test_a_model_answers_to_its_name_and_to_that_of_its_repository(paths: Paths) -> None:
    entry = catalogue.read(paths).find(NAME)
    assert entry is not None
    row = of_entry(entry, paths, HOST)
    assert shelf.is_called(row, NAME)
    assert shelf.is_called(row, entry.repo)
    assert not shelf.is_called(row, "gemma-4-e2b")


def test_what_is_neither_a_place_nor_a_repository_is_no_model(paths: Paths, tmp_path: Path) -> None:
    for text in ("gemma", "~/nothing-there", str(tmp_path), "https://hub/owner/name", "\0"):
        assert shelf.named(text, paths, HOST) is None, text


@pytest.mark.parametrize(
    ("state", "done", "text"),
    [
        ("running", 0, "↓ …"),
        ("running", 43, "↓ 43%"),
        ("paused", 43, "↓ 43% paused"),
        ("failed", 0, "↓ stopped"),
        ("done", 100, ""),
    ],
)
def test_downloads_in_the_status_line(paths: Paths, state: str, done: int, text: str) -> None:
    entry = catalogue.read(paths).find(NAME)
    assert entry is not None
    download = Download(entry, paths, lambda changed: None)
    download.state = state  # type: ignore[assignment]
    download.progress = Progress(done=done, total=100 if done else 0)
    assert words.compact([download]) == text


def test_a_list_leaves_out_the_column_of_states_where_there_is_no_room(paths: Paths) -> None:
    entry = catalogue.read(paths).find(NAME)
    assert entry is not None
    row = replace(of_entry(entry, paths, HOST), state="partial", fetched=500, size=1000)
    wide, narrow = (words.entry(row, Now(), width, 20) for width in (80, 40))
    assert wide.first == f"{NAME:<20}  part downloaded 50%"
    assert narrow.first == NAME
    assert narrow.second.startswith("part downloaded 50% · ")
