"""What the commands do: the same whether typed with a slash or chosen from the palette."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from rvchat import settings
from rvchat.config import expanded
from rvchat.errors import RvchatError
from rvchat.store.export import FORMATS, export
from rvchat.store.printable import one_line
from rvchat.tui import editor
from rvchat.tui.commands import Command, Commands
from rvchat.tui.keys import keys_of
from rvchat.tui.screens.conversation import ConversationSettings, Wanted
from rvchat.tui.screens.help import PALETTE, SHOWN, WRITTEN, HelpScreen, commands_of
from rvchat.tui.screens.models import ModelScreen
from rvchat.tui.widgets.list_of import ListOf
from rvchat.tui.widgets.message import MessageView
from rvchat.tui.widgets.prompt import Prompt
from rvchat.tui.widgets.sidebar import Sidebar

if TYPE_CHECKING:
    from rvchat.tui.app import RvchatApp

_ON = {"on": True, "off": False, "": None}


class Actions:
    """The application's commands, on the chat screen of `app`."""

    def __init__(self, app: RvchatApp) -> None:
        self._app = app
        self._chat = app.chat
        self.commands = Commands(self._all())

    def _all(self) -> list[Command]:
        chat = self._chat

        def soon(act: Callable[[], object]) -> Callable[[str], None]:
            def run(_: str) -> None:
                self._app.call_later(act)

            return run

        return [
            Command("new", "Begin a new conversation", soon(chat.action_new)),
            Command("search", "Search all conversations", self._search),
            Command("list", "Show or hide the conversations", soon(chat.action_sidebar)),
            Command("model", "Show the models, download and load one", self.model, choices=self.models),
            Command("unload", "Free the memory of the model", soon(self._app.models.unload)),
            Command("system", "Say what the model is told first", self._system, lines=True),
            Command("persona", "Take a saved system prompt", self._persona, "a name", self._personas),
            Command("params", "Settings of this conversation", soon(self.settings)),
            Command("settings", "Settings of this conversation", soon(self.settings)),
            Command("think", "Thinking before the answer: on or off", self._think, choices=lambda: ["on", "off"]),
            Command("title", "Give this conversation a title", self._title),
            Command("pin", "Pin this conversation to the top, or release it", soon(lambda: self._list("pin"))),
            Command("delete", "Delete this conversation", soon(lambda: self._list("delete"))),
            Command("undo", "Bring back what was deleted", soon(lambda: self._list("undo"))),
            Command("retry", "Make another answer", soon(chat.action_retry)),
            Command("continue", "Go on with the last answer", soon(self._continue)),
            Command("copy", "Copy the whole conversation", soon(chat.copy_conversation)),
            Command("export", "Write the conversation to a file", self._export, "a format", lambda: list(FORMATS)),
            Command("stats", "Statistics of every answer", soon(self._statistics)),
            Command("editor", "Write the message in your editor", soon(self.edit)),
            Command("theme", "Change the colours", self._theme, "a theme", lambda: sorted(self._app.available_themes)),
            Command("config", "Say where the file with the settings is", soon(self._where)),
            Command("help", "Keys and commands", soon(self.help)),
            Command("quit", "Leave; an answer that is being made is kept", soon(self._app.action_quit)),
        ]

    # --- model ---------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Names of the models on this machine."""
        return [row.name for row in self._app.models.shelf.installed]

    def model(self, name: str = "") -> None:
        """Loads that model, or shows what there is."""
        if name:
            self._app.models.load(name)
        elif self._chat.session is not None:
            self._app.push_screen(ModelScreen(self._app.models, lambda: self._chat.state))
            self._app.run_worker(self._app.models.refresh())

    # --- the conversation ----------------------------------------------------------------------------------

    def settings(self, at: str = "") -> None:
        """The form with the settings of the open conversation; `at` is the field to begin with."""
        session = self._chat.session
        if session is None:
            return
        model = self._chat.state.model

        def done(wanted: Wanted | None) -> None:
            if wanted is None:
                return
            self._change(**wanted.changes)
            if wanted.defaults:
                self._app.save_settings(settings.for_new_conversations(wanted.changes))
            if wanted.persona:
                self._app.save_settings({("personas", wanted.persona): wanted.changes["system"]})

        self._app.push_screen(
            ConversationSettings(
                session.conversation, self._app.settings.personas, thinks=model is None or model.thinks, at=at
            ),
            done,
        )

    def _change(self, **changes: object) -> None:
        session = self._chat.session
        if session is None:
            return
        try:
            session.change(**changes)
        except RvchatError as error:
            self._chat.tell(str(error), bad=True)
        self._chat.run_worker(self._chat.refresh_conversation())

    def _system(self, text: str) -> None:
        if text:
            self._change(system=text)
            self._chat.tell("The model is told that from the next answer on.")
        else:
            self.settings("system")

    def _personas(self) -> list[str]:
        return sorted(self._app.settings.personas)

    def _persona(self, name: str) -> None:
        saved = self._app.settings.personas
        if name in saved:
            self._change(system=saved[name])
            self._chat.tell(f"The model is told what is saved as {name} from the next answer on.")
        else:
            there = f"there are {', '.join(self._personas())}" if saved else "Ctrl+S saves one under a name"
            self._chat.tell(f"There is no system prompt called {name}; {there}.", bad=True)

    def _think(self, text: str) -> None:
        session, model = self._chat.session, self._chat.state.model
        if session is None:
            return
        if text not in _ON:
            self._chat.tell("/think takes on or off.", bad=True)
            return
        wanted = _ON[text]
        wanted = not session.conversation.thinking if wanted is None else wanted
        self._change(thinking=wanted)
        if wanted and model is not None and not model.thinks:
            self._chat.tell("Thinking is on, but the model that is loaded does not think.")
        else:
            self._chat.tell("The model thinks before it answers." if wanted else "The model answers at once.")

    def _title(self, text: str) -> None:
        session = self._chat.session
        if session is None:
            return
        if text:
            self._change(title=one_line(text, 200))
        elif session.conversation.messages:
            self._chat.list.rename(session.conversation.id)
        else:
            self._chat.tell("The conversation is empty.")

    async def _list(self, what: str) -> None:
        session = self._chat.session
        if session is None:
            return
        if what != "undo" and not session.conversation.messages:
            self._chat.tell("The conversation is empty.")
            return
        await self._chat.list.act(what, session.conversation.id)

    def _continue(self) -> None:
        self._chat.ask(lambda session: session.continue_())

    def _search(self, text: str) -> None:
        self._chat.action_search()
        if text:
            self._chat.sidebar.search_for(text)

    def _statistics(self) -> None:
        for view in self._chat.transcript.views:
            if view.message.stats is not None:
                view.action_statistics()

    def _export(self, text: str) -> None:
        session = self._chat.session
        format, _, target = text.partition(" ")
        if session is None:
            return
        if format not in FORMATS:
            self._chat.tell(f"There is no format {format}; there are {', '.join(FORMATS)}.", bad=True)
            return
        conversation = session.conversation
        if not conversation.messages:
            self._chat.tell("The conversation is empty.")
            return
        path = expanded(target.strip()) if target.strip() else Path(file_name(conversation.title, format))

        async def write() -> None:
            try:
                await asyncio.to_thread(_write_new, path, lambda: "".join(export([conversation], format)))
            except FileExistsError:
                self._chat.tell(f"{path} exists; name another file.", bad=True)
            except (OSError, RvchatError, ValueError, RecursionError) as error:  # a text that no file can hold
                self._chat.tell(f"Nothing was written: {error}", bad=True)
            else:
                self._chat.tell(f"Written to {path.absolute()}.")

        self._app.run_worker(write())

    # --- the rest ------------------------------------------------------------------------------------------

    def edit(self) -> None:
        """The text of the input in the user's editor."""
        prompt = self._chat.prompt
        try:
            with self._app.suspend():
                text = editor.edit(prompt.whole, terminal=self._app.terminal)
        except RvchatError as error:
            self._chat.tell(str(error), bad=True)
        except SuspendNotSupported:
            self._chat.tell("This terminal cannot be lent to an editor.", bad=True)
        else:
            prompt.load(text)
        prompt.focus()

    def _theme(self, name: str) -> None:
        if name not in self._app.available_themes:
            self._chat.tell(f"There is no theme {name}.", bad=True)
            return
        self._app.theme = name
        self._app.save_settings({"theme": name})

    def _where(self) -> None:
        self._chat.tell(f"{self._app.options.paths.config} has the settings; rvchat reads it when it starts.")

    def help(self) -> None:
        """Keys for where the user is, then all others, then the commands."""
        keymap = dict(self._app.settings.keys)
        places: Sequence[tuple[type, str]] = (
            (Prompt, "Writing"),
            (MessageView, "On a message"),
            (Sidebar, "In the list of conversations"),
            (ModelScreen, "Among the models"),
            (ListOf, "In any list"),
        )
        here = self._app.focused
        first = [p for p in places if here is not None and any(isinstance(n, p[0]) for n in here.ancestors_with_self)]
        ordered = [*first, *(p for p in places if p not in first)]
        everywhere = [*self._chat.BINDINGS, *self._app.BINDINGS]
        sections = [("Everywhere", [*keys_of(everywhere, keymap), PALETTE])]
        own = [(title, keys_of(place.__dict__["BINDINGS"], keymap)) for place, title in ordered]
        sections = [*own[: len(first)], *sections, *own[len(first) :]]
        rest = [("Commands", commands_of(self.commands)), ("While writing, besides", WRITTEN), ("The last line", SHOWN)]
        self._app.push_screen(HelpScreen([*sections, *rest]))


def file_name(title: str, format: str) -> str:
    """A file's name for a conversation."""
    words = "".join(letter if letter.isalnum() or letter in "-_ " else " " for letter in title)
    extension = {"openwebui": "openwebui.json"}.get(format, format)
    return f"{'-'.join(words.split())[:60] or 'conversation'}.{extension}"


def _write_new(path: Path, text: Callable[[], str]) -> None:
    """Writes a file that is its owner's alone, whole or not at all. Raises FileExistsError where one is there."""
    content = text().encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink()
        raise
