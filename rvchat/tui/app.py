"""The application: the session, its events, and the screens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.driver import Driver
from textual.screen import Screen
from textual.widgets import Input, TextArea

from rvchat import settings
from rvchat.errors import RvchatError, StoreError
from rvchat.tui import Options, crash, draft
from rvchat.tui.actions import Actions
from rvchat.tui.bridge import Bridge
from rvchat.tui.models.acts import Models
from rvchat.tui.screens.chat import ChatScreen
from rvchat.tui.screens.models import ModelScreen
from rvchat.tui.screens.moving import NARROW
from rvchat.tui.themes import THEMES, fitting
from rvchat.types import Event, Notice

if TYPE_CHECKING:
    from rvchat.session import Session
    from rvchat.session.model import LoadProgress, Model
    from rvchat.store import Store

log = logging.getLogger(__name__)

_PATIENCE_S = 1.0


class Conversations(Provider):
    """Conversations in the palette, by their names."""

    async def discover(self) -> Hits:
        for name, conversation_id in await self._named():
            yield DiscoveryHit(Content(name), self._open(conversation_id), help="Open this conversation")

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, conversation_id in await self._named():
            if (score := matcher.match(name)) > 0:
                # The name is text: as a plain string it would be read as markup.
                yield Hit(score, Content(name), self._open(conversation_id), text=name, help="Open this conversation")

    async def _named(self) -> list[tuple[str, str]]:
        app = self.app
        if not isinstance(app, RvchatApp) or app.store is None:
            return []
        try:
            return [(summary.name, summary.id) for summary in await asyncio.to_thread(app.store.list)]
        except StoreError:  # which the list of conversations says
            return []

    def _open(self, conversation_id: str) -> Callable[[], None]:
        app = self.app
        assert isinstance(app, RvchatApp)

        def run() -> None:
            app.call_later(app.chat.open, conversation_id)

        return run


class RvchatApp(App[None]):
    """Draws first; the store is opened and the model loaded once the screen is there."""

    TITLE = "rvchat"
    CSS_PATH = "rvchat.tcss"
    COMMANDS = App.COMMANDS | {Conversations}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW, "-wide")]  # noqa: RUF012 - Textual declares the type
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high")]  # noqa: RUF012
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Leave; an answer that is being made is kept", id="app.quit", priority=True),
        Binding(
            "ctrl+c", "interrupt", "Copy what is marked; else stop the answer; else leave", id="app.copy", priority=True
        ),
        Binding("f1", "help", "Help", id="app.help", priority=True),
        Binding("ctrl+o", "models", "The models: download, load, delete", id="app.models", priority=True),
        Binding(
            "ctrl+l", "next_model", "Take the step with models that is offered", id="app.next_model", priority=True
        ),
        Binding("ctrl+s", "settings", "Settings of this conversation", id="app.settings"),
        Binding("ctrl+g", "editor", "Write in your editor", id="app.editor", priority=True),
        Binding("ctrl+z", "suspend_process", "To the shell; fg comes back", id="app.suspend", priority=True),
    ]

    def __init__(self, options: Options, *, driver_class: type[Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)
        self.options = options
        self.settings = settings.read(options.paths.config)
        self.session: Session | None = None
        self.store: Store | None = None
        self.bridge = Bridge(self._deliver)
        self.chat = ChatScreen(self.bridge, self._count, options.paths.data)
        self.models = Models(self)
        self.actions = Actions(self)
        self.tokenizer: Any = None  # of the model that is loaded
        self.failed = False  # whether it ended by an error of its own, of which `report` is the file, if any
        self.report: str | None = None
        self.kept = True  # whether, at the end, a disk has all that was said
        self.last_words: list[str] = []  # what there is to say once the screen is gone
        self._drafts_kept = False
        self._leaving = threading.Lock()
        self._left = False
        self._ended: bool | None = None  # whether the engine has come to rest; None while the session is open
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = fitting(self.settings.theme, set(self.available_themes), self.console.color_system)
        self.set_keymap(dict(self.settings.keys))

    @property
    def terminal(self) -> int:
        """The file descriptor that the screen is on."""
        return 2 if self.options.terminal is None else self.options.terminal

    # --- start and end -------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.bridge.attach()
        self.chat.commands = self.actions.commands
        self.push_screen(self.chat)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on the main thread
                loop.add_signal_handler(number, lambda: self.call_later(self.action_quit))
        self.call_after_refresh(lambda: self.run_worker(self._start()))

    async def _start(self) -> None:
        """What is not needed to draw the first screen."""
        first = not self.options.paths.database.exists()
        self.chat.prompt.use_keys(self.settings.keys)
        self.chat.transcript.use_keys(self.settings.keys)
        found, _ = await asyncio.gather(asyncio.to_thread(self._open), self.models.find_machine())
        if found is None or self._drafts_kept:  # the user has left meanwhile
            return
        store, session = found
        model = self.options.model
        if model is not None:
            session.load(model)  # before anything can be asked
        await self.chat.begin(session, store, self.options.conversation, defaults=self.settings)
        self.chat.welcome.show(first=first, missing="" if model is not None else self.options.missing)
        for problem in (*self.settings.problems, *([store.problem] if store.problem else [])):
            self.chat.tell(problem, bad=True, more=True)
        self.chat.sending.send_early()
        self.chat.restore(draft.take(self.options.paths.data))
        await self.models.begin()

    def _open(self) -> tuple[Store, Session] | None:
        """The conversations; None, and nothing is left open, where the user has left meanwhile. Any thread."""
        from rvchat.hub import partials
        from rvchat.session import Session
        from rvchat.store import Store

        store = Store.open_or_memory(self.options.paths.database)
        try:
            store.recover()
            store.purge()
        except StoreError as error:
            if _is_damage(error):  # nothing is to be written into that; of a full disk all is there to be read
                with contextlib.suppress(StoreError):
                    store.close()
                store = Store.memory(str(error))
            else:
                self.bridge.put(Notice(str(error)))
        partials.sweep(self.options.paths.models)
        session = Session(store=store, open_model=self._open_model, on_event=self.bridge.put)
        with self._leaving:
            if not self._left:
                self.store, self.session = store, session
                return store, session
        session.close()
        store.close()
        return None

    def _open_model(self, name: str, progress: LoadProgress) -> Model:
        """On the engine's thread."""
        self.tokenizer = None
        model = self.options.open_model(name, progress)
        self.tokenizer = model.tokenizer
        return model

    def _count(self, text: str) -> int | None:
        """How many tokens a text is to the model that is loaded; None while there is none. Any thread."""
        tokenizer = self.tokenizer
        return len(tokenizer.encode(text)) if tokenizer is not None else None

    async def action_quit(self) -> None:
        """Leaves at once: an answer that is being made is kept as far as it is, and so is what was not sent yet."""
        await self._caught_up()
        self.bridge.detach()
        await self.models.work.close()
        self._keep_drafts()
        await asyncio.to_thread(self._close_session)
        self.exit()

    def close(self) -> None:
        """Lets go of the conversations, also after an error; once more does nothing."""
        self.bridge.detach()
        self._close_session()
        if self.store is not None and self._ended:
            with contextlib.suppress(StoreError):
                self.store.close()

    def _close_session(self) -> None:
        """Has the session keep everything, and hears what it says of that. Any thread."""
        with self._leaving:
            self._left = True
            if self.session is None or self.store is None or self._ended is not None:
                return
            self.bridge.rest()  # what was not shown before is of no interest any more
            self._ended = self.session.close()
            last = self.bridge.rest()[-1:]  # what came before it was about answers that have ended since
            self.last_words += [event.text for event in last if isinstance(event, Notice)]
            self.kept = crash.is_kept(self.session, self.store)
            draft.keep(self.options.paths.data, draft.unstored(self.session, self.store))

    def _keep_drafts(self) -> None:
        """Keeps what was written and not sent, once: it is added to what is kept already."""
        if not self._drafts_kept and self.chat.is_mounted:
            self._drafts_kept = True
            if not draft.keep(self.options.paths.data, self.chat.unsent):
                self.last_words.append("What was written and not sent could not be kept.")

    async def action_interrupt(self) -> None:
        """Ctrl+C, by which people mean one of three things."""
        field = self.focused
        marked = self.screen.get_selected_text() or (field.selected_text if isinstance(field, Input | TextArea) else "")
        if marked:
            self.chat.copy(marked)
            self.screen.clear_selection()
        elif self.chat.state.answering:
            self.chat.stop_answer()
        else:
            await self.action_quit()

    async def _caught_up(self) -> None:
        """Returns when what was typed a moment before has come to where it goes."""
        for node in (self.chat.prompt, self.chat):
            done = asyncio.Event()
            node.call_later(done.set)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _PATIENCE_S)

    def _fatal_error(self) -> None:
        """An error of the application itself. Textual would print a screenful of it over the terminal."""
        if not self.failed:  # what comes after the first error comes from it
            self.failed = True
            self.bridge.detach()
            self.report = crash.report(sys.exc_info()[1] or self._exception, self.options.paths.logs)
            self._keep_drafts()
        self._close_messages_no_wait()

    def panic(self, *renderables: RenderableType) -> None:
        """Where an error could be drawn, Textual comes here."""
        self._fatal_error()

    # --- events --------------------------------------------------------------------------------------------

    def _deliver(self, events: list[Event]) -> None:
        self.chat.take(events)
        self.models.take(events)

    # --- settings ------------------------------------------------------------------------------------------

    def save_settings(self, changes: Mapping[str | tuple[str, ...], Any], *, quiet: bool = False) -> None:
        """Writes changes to config.toml and goes on with what then stands there; says so unless `quiet`."""
        path = self.options.paths.config
        try:
            settings.write(path, changes)
        except RvchatError as error:
            self.chat.tell(str(error), bad=True)
            return
        self.settings = settings.read(path)
        self.chat.defaults = self.settings
        if not quiet:
            self.chat.tell(f"Saved in {path}.")

    # --- screens -------------------------------------------------------------------------------------------

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Says something of the models: in the chat, and where the screen of models is open there too."""
        self.chat.tell(text, bad=bad, more=True)
        if isinstance(self.screen, ModelScreen):
            self.screen.tell(text, bad=bad)

    def show_chat(self) -> None:
        """Closes the screen of models."""
        if isinstance(self.screen, ModelScreen):
            self.screen.dismiss(None)

    # --- actions -------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for command in self.actions.commands:
            begin, run = f"/{command.name} ", command.run
            act = (lambda begin=begin: self.call_later(self.chat.prompt.load, begin)) if command.needs else None
            yield SystemCommand(command.help, f"/{command.name}", act or (lambda run=run: run("")))
        for name in sorted(self.available_themes):
            yield SystemCommand(f"Theme: {name}", "Change the colours", lambda name=name: self.set_theme(name))
        for name in self.actions.models():
            yield SystemCommand(f"Model: {name}", "Load it", lambda name=name: self.actions.model(name))

    def set_theme(self, name: str) -> None:
        self.theme = name
        self.save_settings({"theme": name})

    def action_help(self) -> None:
        if self.screen is self.chat or isinstance(self.screen, ModelScreen):
            self.actions.help()

    def action_models(self) -> None:
        if self.screen is self.chat:
            self.actions.model()

    def action_next_model(self) -> None:
        if self.screen is self.chat:
            self.models.next()

    def action_settings(self) -> None:
        if self.screen is self.chat:
            self.actions.settings()

    async def action_editor(self) -> None:
        if self.screen is self.chat:
            await self._caught_up()
            self.actions.edit()


def _is_damage(error: StoreError) -> bool:
    """Whether it is the file that is wrong, rather than the disk."""
    return getattr(error.__cause__, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
