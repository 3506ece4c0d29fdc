"""What is written in the input and goes out: questions, commands, files that go along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from textual.screen import Screen

from rvchat.config import expanded
from rvchat.errors import RvchatError
from rvchat.session.session import Session
from rvchat.tui.attachments import attach, size_of, with_mentioned
from rvchat.tui.commands import Commands
from rvchat.tui.widgets.prompt import Prompt


class Asking(Protocol):
    """The part of the chat screen that sending uses."""

    session: Session | None
    commands: Commands

    @property
    def prompt(self) -> Prompt: ...
    def tell(self, text: str, *, bad: bool = False) -> None: ...
    def ask(self, what: Callable[[Session], object]) -> bool: ...


class Sending:
    """Sends what the input posts; what comes before there is a session waits for it. `count` tells how many tokens a
    text is, None while nothing can tell."""

    def __init__(self, chat: Asking, screen: Screen[None], count: Callable[[str], int | None]) -> None:
        self._chat, self._screen, self._count = chat, screen, count
        self._early: list[Prompt.Sent] = []

    def send(self, event: Prompt.Sent) -> None:
        if self._chat.session is None:
            self._early.append(event)
            self._chat.tell("Still starting: it will be sent in a moment.")
            return
        self._send(event)
        self._chat.prompt.arrived(event)  # not after an error: the draft has it then

    def _send(self, event: Prompt.Sent) -> None:
        chat, editing = self._chat, event.editing
        # What the user has written decides, not what stands in a text that goes along.
        if editing is None and chat.commands.is_command(event.raw):
            self._command(event.raw)
            return
        try:
            text = with_mentioned(event.raw, chat.prompt.snippets.expand, but=event.before)
        except RvchatError as error:
            chat.tell(str(error), bad=True)
            self._give_back(event)
            return
        if editing is None:
            taken = chat.ask(lambda session: session.send(text))
        else:
            taken = chat.ask(lambda session: session.edit(editing, text))
        if not taken:
            self._give_back(event)

    def _give_back(self, event: Prompt.Sent) -> None:
        if event.editing is None:
            self._chat.prompt.give_back(event.raw)
        else:
            self._chat.prompt.edit_message(event.editing, event.raw, event.before)

    def send_early(self) -> None:
        """Sends what the user sent before there was a session."""
        early, self._early = self._early, []
        for event in early:
            self.send(event)

    def attach(self, mention: str) -> None:
        """A file that was chosen in the input becomes a mark that says how much it is."""
        self._screen.run_worker(self._attach(mention))

    async def _attach(self, mention: str) -> None:
        try:
            attached = await asyncio.to_thread(attach, expanded(mention[1:].strip('"')))
        except RvchatError as error:
            self._chat.tell(str(error), bad=True)
            return
        about = f"{attached.path.name}, {size_of(attached.size)}"
        count = await asyncio.to_thread(self._count, attached.text)
        if count is not None:
            about += f", {count:,} tokens"
        self._chat.prompt.attach(mention, about, attached.as_message())

    def _command(self, text: str) -> None:
        found = self._chat.commands.find(text)
        if isinstance(found, str):
            self._chat.tell(found, bad=True)
            self._chat.prompt.give_back(text)
        else:
            self._chat.tell("")
            command, rest = found
            command.run(self._chat.prompt.snippets.expand(rest).strip())
