"""The application: the session, its events, and the screens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver

from rvchat.errors import RvchatError
from rvchat.tui import Options
from rvchat.tui.bridge import Bridge
from rvchat.tui.screens.chat import ChatScreen
from rvchat.types import Event

if TYPE_CHECKING:
    from rvchat.session.session import Session
    from rvchat.store import Store

log = logging.getLogger(__name__)


class RvchatApp(App[None]):
    """Draws first; the store is opened and the model loaded once the screen is there."""

    TITLE = "rvchat"
    CSS_PATH = "rvchat.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "quit", "Quit", id="app.quit", priority=True),
    ]

    def __init__(self, options: Options, *, driver_class: Callable[..., Driver] | None = None) -> None:
        super().__init__(driver_class=driver_class)  # type: ignore[arg-type]
        self.options = options
        self.session: Session | None = None
        self.store: Store | None = None
        self.bridge = Bridge(self._deliver)
        self.chat = ChatScreen(self.bridge.shown, options.paths.data)

    def on_mount(self) -> None:
        self.bridge.attach()
        self.push_screen(self.chat)
        self.call_after_refresh(lambda: self.run_worker(self._start(), exit_on_error=False))

    async def _start(self) -> None:
        """What is not needed to draw the first screen."""
        try:
            store, session = await asyncio.to_thread(self._open)
        except RvchatError as error:
            self.chat.tell(str(error), bad=True)
            return
        self.store, self.session = store, session
        await self.chat.begin(session, store, self.options.conversation)
        if self.options.model is not None:
            session.load(self.options.model)
        else:
            self.chat.tell(self.options.missing or "No model. Start rvchat with -m and the path of one.", bad=True)

    def _open(self) -> tuple[Store, Session]:
        from rvchat.session.session import Session
        from rvchat.store import Store

        store = Store.open_or_memory(self.options.paths.database)
        store.recover()
        return store, Session(store=store, open_model=self.options.open_model, on_event=self.bridge.put)

    def _deliver(self, events: list[Event]) -> None:
        self.chat.take(events)

    async def action_quit(self) -> None:
        """Leaves at once: an answer that is being made is kept as far as it is."""
        self.bridge.detach()
        if self.session is not None:
            await asyncio.to_thread(self.session.close)
        self.exit()
