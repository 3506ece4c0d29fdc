"""The screen of models and the first start: what is shown, and what is done about it, against a hub on loopback."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from rvchat import settings
from rvchat.config import Paths
from rvchat.errors import ModelError
from rvchat.hub import disk, starter
from rvchat.hub.machine import Machine
from rvchat.hub.place import Place
from rvchat.session import Opener
from rvchat.session.model import LoadProgress, Model
from rvchat.tui.screens.dialogs import AskLine, Pick
from rvchat.tui.screens.help import HelpScreen
from rvchat.tui.screens.models import ModelScreen
from rvchat.tui.widgets.notices import Notices
from tests.loopback_hub import GOLDENS, Hub
from tests.tui.conftest import script

NAME, REPO = "gemma-4-e4b-it-qat-q4_0-gguf", "google/gemma-4-E4B-it-qat-q4_0-gguf"
OTHER, OTHER_REPO = "gemma-4-e2b-it-qat-q4_0-gguf", "google/gemma-4-E2B-it-qat-q4_0-gguf"
GOLDEN = "gemma4-e2b-q4_0"
SLOW = 150_000
"""Bytes a second: some seconds for a model, so that things happen during a download."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 GB, for which NAME is recommended."""
    monkeypatch.setattr(Machine, "host", lambda: Machine("cpu", "processor", 8_000_000_000, 16_000_000_000))
    monkeypatch.setattr(Machine, "find", Machine.host)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 50_000_000_000)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of(tmp_path / "data", {})


@pytest.fixture
def plays(tmp_path: Path, paths: Paths) -> Callable[[str, LoadProgress], Model]:
    """Opens a script under the name of whatever model is asked for; fails where its files are not here."""
    scripted = script(tmp_path, {"text": "".join(f"word{n} " for n in range(400)), "tok_s": 400})

    def plays(name: str, progress: LoadProgress) -> Model:
        from rvchat.hub import resolve

        if not name.startswith("scripted:"):
            resolve(name, paths, progress)
        model = Opener(paths)(scripted, progress)
        return replace(model, info=replace(model.info, name=name))

    return plays


async def listed(chat: Any) -> None:
    await chat.until(lambda: chat.app.models.shelf.rows, "the models are read")


async def open_models(chat: Any, name: str = "") -> Any:
    """The screen of models, with that model highlighted."""
    await listed(chat)
    await chat.press("ctrl+o")
    await chat.until(lambda: isinstance(chat.app.screen, ModelScreen) and chat.app.screen.row is not None)
    if name:
        chat.app.screen.entries.highlight(name)
        chat.app.screen.show()
    return chat.app.screen


def row_of(screen: Any, name: str) -> Any:
    return next(row for row in screen.entries.rows if row.key == name)


def partials() -> list[Path]:
    return list(Place.of().cache.glob("*/blobs/*.rvchat"))


async def installed(chat: Any, hub: Hub, name: str, repo: str) -> None:
    """Downloads a model on its screen."""
    hub.publish(repo, GOLDEN)
    screen = await open_models(chat, name)
    await chat.press("enter")
    await chat.until(lambda: row_of(screen, name).first.endswith("installed"), "installed")
    await chat.press("escape")
    await chat.until(lambda: chat.app.screen is chat.screen)


# --- the first start ------------------------------------------------------------------------------------------------


async def test_first_start_says_what_to_begin_with_how_large_it_is_and_why(hub: Hub, opened: Any) -> None:
    async with opened(size=(100, 30)) as chat:
        await chat.sees(f"A model for this machine: {NAME}")
        await chat.sees("Ctrl+L downloads it, about 5.2 GB")
        await chat.sees("the largest Gemma that fits in the 8.0 GB of")
        await chat.sees("you write leaves this machine")
    assert hub.seen == [], "the hub was asked before the user wanted anything of it"


async def test_first_start_offers_the_starter_meanwhile(
    hub: Hub, opened: Any, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "is_available", lambda paths: True)
    monkeypatch.setattr(starter, "assemble", lambda paths, progress: Path("starter"))
    async with opened(size=(100, 30), model="starter", open_model=plays) as chat:
        await chat.sees("Meanwhile: starter is ready. Write something below.")
        await chat.sees(f"A model for this machine: {NAME}")
        await chat.type("hello")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word3" in chat.texts[-1][1])


async def test_one_key_downloads_while_one_chats_and_then_loads(hub: Hub, opened: Any, plays: Any) -> None:
    hub.publish(REPO, GOLDEN)
    slow = hub.fail("storage", times=99, rate=SLOW)
    async with opened(size=(100, 30), model="scripted:any", open_model=plays) as chat:
        await chat.ready()
        await open_models(chat, NAME)
        await chat.press("enter", "escape")
        await chat.until(lambda: "%" in chat.screen.status.download, "in the status line")
        await chat.type("talk meanwhile")
        await chat.press("enter")
        await chat.until(lambda: chat.texts and "word9" in chat.texts[-1][1])
        assert chat.app.models.work.running, "the answer had to wait for the download"
        await chat.sees("↓")
        slow.times = 0
        await chat.until(lambda: f"{NAME} is here. Ctrl+L loads it." in chat.notice)
        await chat.until(lambda: chat.screen.status.download == "↓ here, Ctrl+L")
        await chat.settled()
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.screen.session.model.name == NAME)
        await chat.until(lambda: settings.read(chat.app.options.paths.config).model == NAME, "kept for the next start")
        await chat.until(lambda: chat.screen.status.download == "")


async def test_without_a_network_the_first_screen_says_so_and_what_to_do(hub: Hub, opened: Any) -> None:
    hub.close()
    async with opened(size=(100, 30)) as chat:
        await chat.sees("Ctrl+L downloads it")
        await chat.press("ctrl+l")
        await chat.sees("cannot be reached")
        await chat.sees("Check the network")
        await chat.sees("Ctrl+L tries again.")
        await chat.sees("/model PATH")


async def test_offline_by_the_environment_is_said_at_once(
    hub: Hub, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(100, 30)) as chat:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        await listed(chat)
        await chat.app.models.refresh()
        await chat.sees("HF_HUB_OFFLINE is set")
        await chat.sees("/model PATH")


# --- what is listed -------------------------------------------------------------------------------------------------


async def test_models_are_listed_with_size_fit_and_reason(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat)
        assert row_of(screen, NAME).first.endswith("recommended")
        assert re.fullmatch(
            r"~5\.2 GB · fits: needs [67]\.\d GB of the 8\.0 GB that are free", row_of(screen, NAME).second
        )
        assert "does not fit: needs" in row_of(screen, "gemma-4-31b-it").second
        assert "fits, but tightly: takes nearly all" in row_of(screen, "gemma-4-e2b-it").second
        headings = [row.first for row in screen.entries.rows if not row.key]
        assert headings == ["Recommended for this machine", "To download"]
        assert screen.row.name == NAME, "the recommended one is looked at first"


async def test_search_as_one_types_and_escape_step_by_step(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat)
        await chat.press("slash")
        await chat.type("31b gguf")
        await chat.until(lambda: [r.key for r in screen.entries.rows if r.key] == ["gemma-4-31b-it-qat-q4_0-gguf"])
        await chat.press("down")
        await chat.until(lambda: screen.entries.has_focus)
        assert screen.row.name == "gemma-4-31b-it-qat-q4_0-gguf"
        await chat.press("escape")
        await chat.until(lambda: len(screen.entries.rows) > 20)
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)


async def test_a_repository_and_a_place_that_are_typed_become_rows(hub: Hub, opened: Any, tmp_path: Path) -> None:
    hub.publish("acme/small", "gemma4-e2b")
    place = tmp_path / "own.gguf"
    place.write_bytes((GOLDENS / GOLDEN / "model.gguf").read_bytes())
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat)
        await chat.press("slash")
        await chat.type("acme/small")
        await chat.until(lambda: [r.key for r in screen.entries.rows if r.key] == ["acme/small"])
        assert "known once its configuration is here" in row_of(screen, "acme/small").second
        await chat.press("enter", "enter")
        await chat.until(lambda: row_of(screen, "acme/small").first.endswith("installed"))
        screen.query_one(Input).value = str(place)
        await chat.until(lambda: [r.key for r in screen.entries.rows if r.key] == [str(place)])
        assert "fits: needs" in row_of(screen, str(place)).second
        await chat.press("d")
        await chat.until(lambda: "your own" in str(screen.query_one("#notice").text))
        assert place.exists()


async def test_one_file_of_a_repository_with_several_is_fetched_and_loaded(hub: Hub, opened: Any, plays: Any) -> None:
    data = (GOLDENS / GOLDEN / "model.gguf").read_bytes()
    hub.add("acme/many-gguf", {"one-q4_0.gguf": data, "two-q4_0.gguf": data[:-1]})
    slow = hub.fail("storage", times=99, rate=SLOW)
    async with opened(size=(100, 30), open_model=plays) as chat:
        screen = await open_models(chat)
        await chat.press("slash")
        await chat.type("acme/many-gguf:one")
        await chat.until(lambda: screen.row is not None and screen.row.name == "acme/many-gguf:one")
        await chat.press("enter", "enter")
        await chat.until(partials)
        await chat.press("escape", "escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        screen = await open_models(chat)
        listed = "acme/many-gguf:one-q4_0.gguf"
        await chat.until(lambda: any(row.key == listed for row in screen.entries.rows), "what comes is listed")
        assert "downloading" in row_of(screen, listed).first
        slow.times = 0
        await chat.until(lambda: "acme/many-gguf:one is here" in chat.notice)
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.press("ctrl+l")
        await chat.until(lambda: getattr(chat.screen.session.model, "name", "") == "acme/many-gguf:one-q4_0.gguf")
        await chat.until(lambda: chat.screen.status.download == "")


async def test_details_say_everything_that_is_known(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(160, 50)) as chat:
        await installed(chat, hub, NAME, REPO)
        screen = await open_models(chat, NAME)
        for words in (
            "Gemma 4 E4B",
            "131k tokens at most",
            "tokens of context",
            "Apache License 2.0",
            "temperature 1, top-k 64, top-p 0.95",
            f"{GOLDEN}.gguf, 384.0 kB",
        ):
            await chat.sees(words)
        shown = str(screen.query_one("#details Static").content)
        assert f"main as of {hub.heads[REPO]}" in shown
        assert str(Place.of().repository(REPO).snapshot(hub.heads[REPO])) in shown


async def test_details_take_the_place_of_the_list_on_a_narrow_screen(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(40, 12)) as chat:
        screen = await open_models(chat, NAME)
        await chat.press("i")
        await chat.until(lambda: screen.query_one("#details").has_focus)
        assert not screen.entries.display
        await chat.sees("Recommended: the largest")
        await chat.press("escape")
        await chat.until(lambda: screen.entries.has_focus)
        assert chat.app.screen is screen


async def test_help_on_the_screen_of_models_begins_with_its_keys(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await open_models(chat)
        await chat.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))
        titles = [title for title, _ in chat.app.screen._sections]
        assert "Among the models" in titles[:2]
        await chat.press("escape", "escape")


# --- downloads ------------------------------------------------------------------------------------------------------


async def test_a_download_is_paused_gone_on_with_and_ends_whole(hub: Hub, opened: Any) -> None:
    hub.publish(REPO, GOLDEN)
    slow = hub.fail("storage", times=99, rate=SLOW)
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat, NAME)
        await chat.press("enter")
        await chat.until(lambda: "downloading" in row_of(screen, NAME).first and partials())
        await chat.press("p")
        await chat.until(lambda: "paused" in row_of(screen, NAME).first)
        assert "paused" in chat.screen.status.download
        slow.times = 0
        await chat.press("p")
        await chat.until(lambda: row_of(screen, NAME).first.endswith("installed"))
        assert hub.starts()[-1] > 0, "it began anew"


async def test_a_download_that_is_given_up_leaves_nothing(hub: Hub, opened: Any) -> None:
    hub.publish(REPO, GOLDEN)
    hub.fail("storage", times=99, rate=SLOW)
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat, NAME)
        await chat.press("enter")
        await chat.until(partials)
        await chat.press("x")
        await chat.until(lambda: isinstance(chat.app.screen, Pick))
        await chat.press("enter")  # the first choice changes nothing
        await chat.until(lambda: chat.app.screen is screen)
        assert chat.app.models.work.running
        await chat.press("x")
        await chat.until(lambda: isinstance(chat.app.screen, Pick))
        await chat.press("down", "enter")
        await chat.until(lambda: "given up" in str(screen.query_one("#notice").text))
        assert partials() == []
        assert "part downloaded" not in row_of(screen, NAME).first
        assert not chat.app.models.work.running


async def test_giving_up_to_mend_a_model_leaves_what_is_here_of_it(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        await installed(chat, hub, NAME, REPO)
        next(Place.of().repository(REPO).folder.glob("blobs/*")).write_bytes(b"damaged")
        hub.fail("storage", times=99, rate=SLOW)
        screen = await open_models(chat, NAME)
        await chat.press("f")
        await chat.until(partials)
        await chat.press("x")
        await chat.until(lambda: isinstance(chat.app.screen, Pick))
        await chat.press("down", "enter")
        await chat.until(lambda: "given up" in str(screen.query_one("#notice").text))
        assert partials() == []
        assert not list(chat.app.models.work)


async def test_leaving_during_a_download_keeps_it_and_the_next_start_offers_to_go_on(hub: Hub, opened: Any) -> None:
    size = len(hub.publish(REPO, GOLDEN)[f"{GOLDEN}.gguf"])
    slow = hub.fail("storage", times=99, rate=SLOW)
    async with opened(size=(100, 30)) as chat:
        await chat.sees("Ctrl+L downloads it")
        await chat.press("ctrl+l")
        await chat.until(lambda: sum(path.stat().st_size for path in partials()) > 60_000)
    kept = partials()[0].stat().st_size
    before = len(hub.seen)
    async with opened(size=(100, 30)) as chat:
        await chat.sees("is not whole")
        await chat.sees(f"{kept / size:.0%} of it, ")
        assert len(hub.seen) == before, "it went on by itself"
        screen = await open_models(chat, NAME)
        assert "part downloaded" in row_of(screen, NAME).first
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        slow.times = 0
        await chat.press("ctrl+l")
        await chat.until(lambda: "is here. Ctrl+L loads it." in chat.notice)
        assert hub.starts()[-1] == kept


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("gate", "is given only to those who have accepted its licence"),
        ("gone", "has no public repository"),
        ("full", "are needed in"),
    ],
)
async def test_what_the_hub_or_the_disk_refuses_is_said_with_what_to_do(
    hub: Hub, opened: Any, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    if fault == "gate":
        hub.closed[REPO] = (403, "GatedRepo")
    if fault != "gone":
        hub.publish(REPO, GOLDEN)
    async with opened({"text": "ok"}, size=(160, 40)) as chat:
        screen = await open_models(chat, NAME)
        if fault == "full":
            monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
        await chat.press("enter")
        await chat.until(lambda: said in str(screen.query_one("#notice").text))
        assert said in row_of(screen, NAME).second
        assert "stopped" in row_of(screen, NAME).first
        assert said in str(screen.query_one("#details Static").content)
        await chat.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert said in chat.notice


async def test_a_model_that_cannot_run_here_is_downloaded_only_after_a_question(hub: Hub, opened: Any) -> None:
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        await open_models(chat, "gemma-4-31b-it")
        await chat.press("enter")
        await chat.sees("Download it all the same")
        await chat.press("escape")
        assert not chat.app.models.work.running
        assert hub.seen == []


# --- loading, unloading, deleting -----------------------------------------------------------------------------------


async def test_switching_models_and_unloading(hub: Hub, opened: Any, plays: Any) -> None:
    async with opened(size=(100, 30), open_model=plays) as chat:
        await installed(chat, hub, NAME, REPO)
        await installed(chat, hub, OTHER, OTHER_REPO)
        for name in (NAME, OTHER):
            await open_models(chat, name)
            await chat.press("enter")
            await chat.until(lambda: chat.app.screen is chat.screen)
            await chat.until(lambda name=name: getattr(chat.screen.session.model, "name", "") == name)
        screen = await open_models(chat)
        await chat.until(lambda: row_of(screen, OTHER).first.endswith("loaded"))
        await chat.until(lambda: row_of(screen, NAME).first.endswith("installed"))
        await chat.press("u")
        await chat.until(lambda: chat.screen.session.model is None)
        await chat.until(lambda: row_of(screen, OTHER).first.endswith("installed"))
        await chat.press("escape")
        await chat.sees("no model")


async def test_loading_shows_its_stages_on_both_screens_and_is_ended_by_a_key(
    hub: Hub, opened: Any, tmp_path: Path
) -> None:
    def slow(name: str, progress: LoadProgress) -> Model:
        while True:
            progress("quantise", 0.5)
            time.sleep(0.01)

    async with opened(size=(100, 30), open_model=slow) as chat:
        await installed(chat, hub, NAME, REPO)
        for end in ("escape", "x"):
            await open_models(chat, NAME)
            await chat.press("enter")
            await chat.until(lambda: chat.app.screen is chat.screen)
            await chat.sees("quantising 50%")
            if end == "x":
                screen = await open_models(chat)
                assert screen.row.name == NAME
                assert "loading: quantising 50%" in row_of(screen, NAME).first
            await chat.press(end)
            await chat.until(lambda: not chat.screen.state.loading)
            assert chat.screen.state.model is None
            if end == "x":
                await chat.press("escape")
            await chat.sees("no model")


async def test_another_model_takes_the_place_of_one_that_is_being_loaded(
    hub: Hub, opened: Any, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opens(name: str, progress: LoadProgress) -> Model:
        while name == NAME:
            progress("quantise", 0.5)
            time.sleep(0.01)
        return plays(name, progress)

    async with opened(size=(100, 30), open_model=opens) as chat:
        await installed(chat, hub, NAME, REPO)
        await installed(chat, hub, OTHER, OTHER_REPO)
        await open_models(chat, NAME)
        await chat.press("enter")
        await chat.sees("quantising 50%")
        # What the first has taken is not free until it has been given up.
        monkeypatch.setattr(Machine, "host", lambda: Machine("cpu", "processor", 10_000_000, 16_000_000_000))
        await open_models(chat, OTHER)
        await chat.press("enter")
        await chat.until(lambda: chat.screen.state.model is not None)
        assert chat.screen.state.model.name == OTHER
        assert chat.notice.startswith(f"{NAME} is given up for {OTHER}.")
        assert "stopped" not in chat.notice
        await chat.until(lambda: settings.read(chat.app.options.paths.config).model == OTHER)


async def test_a_model_that_does_not_fit_is_refused_with_what_would(
    hub: Hub, opened: Any, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(100, 30), open_model=plays) as chat:
        await installed(chat, hub, NAME, REPO)
        await installed(chat, hub, OTHER, OTHER_REPO)
        monkeypatch.setattr(Machine, "host", lambda: Machine("cpu", "processor", 5_000_000_000, 16_000_000_000))
        await chat.type(f"/model {NAME}")
        await chat.press("escape", "enter")
        await chat.until(lambda: "does not fit: needs" in chat.notice)
        assert f"{OTHER}, which is here, would." in chat.notice
        assert chat.screen.session.model is None


async def test_what_a_loaded_model_holds_counts_as_free_for_the_next(
    hub: Hub, opened: Any, plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heavy(name: str, progress: LoadProgress) -> Model:
        model = plays(name, progress)
        monkeypatch.setattr(Machine, "host", lambda: Machine("cpu", "processor", 2_000_000_000, 16_000_000_000))
        return replace(model, info=replace(model.info, memory=6_000_000_000))

    async with opened(size=(100, 30), open_model=heavy) as chat:
        await installed(chat, hub, NAME, REPO)
        await installed(chat, hub, OTHER, OTHER_REPO)
        for name in (OTHER, NAME):
            await chat.type(f"/model {name}")
            await chat.press("escape", "enter")
            await chat.until(lambda name=name: getattr(chat.screen.session.model, "name", "") == name)


async def test_deleting_frees_what_it_says_and_unloads_what_is_loaded(hub: Hub, opened: Any, plays: Any) -> None:
    async with opened(size=(100, 30), open_model=plays) as chat:
        await installed(chat, hub, NAME, REPO)
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.screen.session.model is not None)
        screen = await open_models(chat, NAME)
        await chat.press("d")
        await chat.until(lambda: isinstance(chat.app.screen, Pick))
        assert "That frees 384.0 kB. It is unloaded first." in chat.app.screen._question
        await chat.press("down", "enter")
        await chat.until(lambda: "384.0 kB are free again" in str(screen.query_one("#notice").text))
        assert chat.screen.session.model is None
        assert not Place.of().repository(REPO).folder.exists()
        assert settings.read(chat.app.options.paths.config).model is None
        assert row_of(screen, NAME).second.startswith("~5.2 GB")


async def test_a_model_that_answers_is_not_deleted(hub: Hub, opened: Any, plays: Any) -> None:
    async with opened(size=(100, 30), open_model=plays) as chat:
        await installed(chat, hub, NAME, REPO)
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.screen.session.model is not None)
        await chat.type("go on for long")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.state.activity == "answering")
        await open_models(chat, NAME)
        await chat.press("d")
        await chat.until(lambda: "is answering. Stop the answer first" in chat.notice)
        assert isinstance(chat.app.screen, ModelScreen)


@pytest.mark.parametrize(("name", "repo"), [(NAME, REPO), ("acme/unlisted", "acme/unlisted")])
async def test_files_are_checked_and_damaged_ones_fetched_again(hub: Hub, opened: Any, name: str, repo: str) -> None:
    hub.publish(repo, GOLDEN)
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat)
        await chat.press("slash")
        await chat.type(name)
        await chat.until(lambda: [row.key for row in screen.entries.rows if row.key] == [name])
        await chat.press("enter", "enter")
        await chat.until(lambda: row_of(screen, name).first.endswith("installed"))
        await chat.press("v")
        await chat.until(lambda: "is whole: 1 files" in str(screen.query_one("#notice").text))
        blob = next(Place.of().repository(repo).folder.glob("blobs/*"))
        data = bytearray(blob.read_bytes())
        data[1000] ^= 1
        blob.write_bytes(data)
        await chat.press("v")
        await chat.until(lambda: f"is damaged: {GOLDEN}.gguf" in str(screen.query_one("#notice").text))
        before = len(hub.starts())
        await chat.press("f")
        await chat.until(lambda: len(hub.starts()) > before and not list(chat.app.models.work), "fetched again")
        await chat.press("v")
        await chat.until(lambda: "is whole" in str(screen.query_one("#notice").text))


async def test_a_damaged_model_is_not_loaded(hub: Hub, opened: Any, plays: Any) -> None:
    async with opened(size=(100, 30), open_model=plays) as chat:
        await installed(chat, hub, NAME, REPO)
        blob = next(Place.of().repository(REPO).folder.glob("blobs/*"))
        data = bytearray(blob.read_bytes())
        data[1000] ^= 1
        blob.write_bytes(data)
        await open_models(chat, NAME)
        await chat.press("enter")
        await chat.until(lambda: "is damaged" in chat.notice)
        assert chat.screen.session.model is None


async def test_the_screen_of_models_works_with_the_mouse(hub: Hub, opened: Any) -> None:
    hub.publish(OTHER_REPO, GOLDEN)
    async with opened({"text": "ok"}, size=(100, 40)) as chat:
        screen = await open_models(chat)
        await click_on(chat, OTHER)
        await chat.until(lambda: screen.row.name == OTHER)
        assert not chat.app.models.work.running, "one click only looks"
        await click_on(chat, "downloads ~3.4 GB")
        await chat.until(lambda: row_of(screen, OTHER).first.endswith("installed"))
        await click_on(chat, "deletes")
        await click_on(chat, "Delete it, 384.0 kB")
        await chat.until(lambda: "are free again" in str(screen.query_one("#notice").text))
        await click_on(chat, "Esc back")
        await chat.until(lambda: chat.app.screen is chat.screen)


async def click_on(chat: Any, text: str) -> None:
    """A click where `text` stands on the screen."""
    await chat.sees(text)
    lines = chat.text_on_screen().split("\n")
    y = next(y for y, line in enumerate(lines) if text in line)
    await chat.pilot.click(offset=(lines[y].index(text) + 1, y))


async def test_failure_to_load_leaves_the_model_that_the_session_has(hub: Hub, opened: Any, plays: Any) -> None:
    def opens(name: str, progress: LoadProgress) -> Model:
        if name == OTHER:
            raise ModelError("It is cut off", "Fetch it again")
        return plays(name, progress)

    async with opened(size=(100, 30), open_model=opens) as chat:
        await installed(chat, hub, NAME, REPO)
        await installed(chat, hub, OTHER, OTHER_REPO)
        for name in (NAME, OTHER):
            await chat.type(f"/model {name}")
            await chat.press("escape", "enter")
            await chat.until(lambda name=name: chat.screen.state.coming == name and not chat.screen.state.loading)
        await chat.until(lambda: "It is cut off" in chat.notice)
        assert chat.screen.state.model == chat.screen.session.model
        assert chat.screen.session.model.name == NAME
        await chat.until(lambda: settings.read(chat.app.options.paths.config).model == NAME)


async def test_what_a_killed_import_left_is_gone_after_the_start(opened: Any, paths: Paths) -> None:
    left = paths.models / ".killed.partial"
    left.mkdir(parents=True)
    (left / "model.gguf").write_bytes(b"half")
    async with opened({"text": "ok"}):
        assert not left.exists()


async def test_a_model_from_elsewhere_is_copied_by_a_key(opened: Any, tmp_path: Path, paths: Paths) -> None:
    source = next((GOLDENS / GOLDEN).glob("*.gguf"))
    async with opened({"text": "ok"}, size=(100, 30)) as chat:
        screen = await open_models(chat)
        await chat.press("a")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        chat.app.screen.query_one(Input).value = str(tmp_path / "nothing.gguf")
        await chat.press("enter")
        await chat.until(lambda: "No model there" in screen.query_one(Notices).text)
        await chat.press("a")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        chat.app.screen.query_one(Input).value = str(source)
        await chat.press("enter")
        name = source.name.removesuffix(".gguf")
        await chat.until((paths.models / name / source.name).is_file, "copied")
        await chat.until(lambda: chat.app.models.shelf.find(name) is not None, "on the shelf")
        assert (paths.models / name / source.name).read_bytes() == source.read_bytes()
        assert chat.app.screen is screen


async def test_ctrl_c_stops_an_answer_also_among_the_models(opened: Any) -> None:
    async with opened({"text": "".join(f"w{n} " for n in range(900)), "tok_s": 100}) as chat:
        await chat.type("go")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.state.activity == "answering")
        await chat.press("ctrl+o")
        await chat.until(lambda: isinstance(chat.app.screen, ModelScreen))
        await chat.press("ctrl+c")
        await chat.until(lambda: not chat.screen.state.answering)
        assert chat.screen.session.conversation.branch()[-1].status == "stopped"
        assert isinstance(chat.app.screen, ModelScreen)
        assert chat.app._exit is False


async def test_model_of_a_home_that_nobody_has_is_said(opened: Any) -> None:
    async with opened({"text": "ok"}) as chat:
        await chat.type("/model ~no-such-user/gemma.gguf")
        await chat.press("escape", "enter")
        await chat.until(lambda: chat.notice)
        await chat.press("ctrl+o", "slash")
        await chat.type("~no-such-user")
        await chat.sees("No model there")


async def test_folder_that_cannot_be_looked_at_is_said(opened: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    async with opened({"text": "ok"}) as chat:
        await chat.press("ctrl+o")
        await chat.until(lambda: isinstance(chat.app.screen, ModelScreen))
        notices = chat.app.screen.query_one(Notices)
        chat.app.screen.query_one(Input).value = str(folder)
        await chat.until(lambda: "No such file" in notices.text)
        chat.app.screen.query_one(Input).value = ""
        chat.app.screen.tell("")
        await chat.press("a")
        await chat.until(lambda: isinstance(chat.app.screen, AskLine))
        chat.app.screen.query_one(Input).value = str(folder)
        await chat.press("enter")
        await chat.until(lambda: "No such file" in notices.text)
