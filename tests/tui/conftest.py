"""A way to wait for what is meant to happen, and a session on a script of answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot

from rvchat.config import Paths
from rvchat.hub import starter
from rvchat.session import Opener
from rvchat.session.model import OpenModel
from rvchat.tui import Options, clipboard
from rvchat.tui.app import RvchatApp

PATIENCE_S = 20.0


async def until(condition: Callable[[], object], *, what: str = "") -> None:
    """Returns once `condition` holds."""
    end = monotonic() + PATIENCE_S
    while not condition():
        if monotonic() > end:
            raise AssertionError(f"still not so after {PATIENCE_S:.0f} s: {what or condition}")
        await asyncio.sleep(0.01)


class Chat:
    """The application under test, with the words for what a user does."""

    def __init__(self, app: RvchatApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def screen(self) -> Any:
        return self.app.chat

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Role and shown text of the messages on the screen."""
        return [(v.message.role, v.text) for v in self.screen.transcript.views]

    @property
    def notice(self) -> str:
        return str(self.screen.query_one("#notice").text)

    def text_on_screen(self) -> str:
        """The whole screen as text, line by line."""
        return "\n".join(strip.text for strip in self.app.screen._compositor.render_strips())

    async def sees(self, text: str) -> None:
        """Waits until `text` is on the screen."""
        await self.until(lambda: text in self.text_on_screen(), what=f"{text!r} on the screen")

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        try:
            await until(condition, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text_on_screen()}") from None

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """One key for each letter, without the pause that Pilot makes after each."""
        for letter in text:
            self.app.post_message(Key(_character_to_key(letter), letter))
        await self.pilot.pause()

    async def ready(self) -> None:
        await until(lambda: self.screen.state.activity == "ready", what="ready")

    async def ask(self, text: str) -> None:
        """Sends `text` and waits for the answer's end."""
        before = len(self.screen.session.conversation.messages)
        self.screen.prompt.text = text
        await self.press("enter")
        await until(lambda: len(self.screen.session.conversation.messages) > before, what="asked")
        await self.settled()

    async def settled(self) -> None:
        """No answer is being made, and the screen shows what there is."""
        await until(lambda: not self.screen.state.busy and self._shows_all(), what="settled")

    def _shows_all(self) -> bool:
        branch = self.screen.session.conversation.branch()
        shown = [view.message for view in self.screen.transcript.views]
        return bool(shown) == bool(branch) and shown == list(branch[len(branch) - len(shown) :])


def script(folder: Path, *answers: dict[str, Any]) -> str:
    """The name of a model that plays `answers`."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    return f"scripted:{path}"


Opened = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """`async with opened({...}, size=(80, 24)) as chat`: the application with a model that gives these answers, and no
    other than those that a test brings."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(starter, "is_available", lambda paths: False)

    @asynccontextmanager
    async def run(
        *answers: dict[str, Any],
        size: tuple[int, int] = (80, 24),
        model: str | None = None,
        wait: bool = True,
        open_model: OpenModel | None = None,
        **more: Any,
    ) -> AsyncIterator[Chat]:
        paths = Paths.of(tmp_path / "data", {})
        name = model if model is not None or not answers else script(tmp_path, *answers)
        app = RvchatApp(Options(paths=paths, open_model=open_model or Opener(paths), model=name, **more))
        try:
            async with app.run_test(size=size) as pilot:
                chat = Chat(app, pilot)
                if wait and name is not None:
                    await chat.ready()
                yield chat
                await app.action_quit()
        finally:
            app.close()

    return run


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been copied, in place of a clipboard."""
    texts: list[str] = []

    def take(text: str, **_: Any) -> str:
        texts.append(text)
        return "Copied."

    monkeypatch.setattr(clipboard, "copy", take)
    return texts
