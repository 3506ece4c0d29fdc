"""The chat: conversations, the open one, the input, and the status line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from rvchat.errors import RvchatError
from rvchat.settings import Settings
from rvchat.store.printable import one_line, printable
from rvchat.tui import clipboard
from rvchat.tui.bridge import Bridge
from rvchat.tui.commands import Commands
from rvchat.tui.draft import Drafts
from rvchat.tui.live import LiveAnswers
from rvchat.tui.screens.list_acts import ListActs
from rvchat.tui.screens.message_acts import MessageActs, whole
from rvchat.tui.screens.moving import Moving
from rvchat.tui.screens.sending import Sending
from rvchat.tui.state import State
from rvchat.tui.widgets.list_of import ListOf
from rvchat.tui.widgets.message import MessageView
from rvchat.tui.widgets.notices import Notices
from rvchat.tui.widgets.prompt import Prompt
from rvchat.tui.widgets.prose import Prose
from rvchat.tui.widgets.sidebar import Sidebar
from rvchat.tui.widgets.status import StatusLine
from rvchat.tui.widgets.title import TitleLine
from rvchat.tui.widgets.transcript import Transcript
from rvchat.tui.widgets.welcome import Welcome
from rvchat.types import (
    Conversation,
    Event,
    Failed,
    Finished,
    LoadFailed,
    ModelReady,
    Notice,
    Queued,
    ReasoningDelta,
    TextDelta,
    Titled,
    ToolCalled,
    Unloaded,
)

if TYPE_CHECKING:
    from rvchat.session.session import Session
    from rvchat.store import Store


class ChatScreen(Moving):
    """Turns events into what is seen, and keys into what the session is asked to do.

    Events come by `bridge`; `count` tells how many tokens a text is; copies that the clipboard may not take are kept in
    `folder`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop the answer, or the loading; else back to the input", id="chat.stop"),
        Binding("ctrl+n", "new", "A new conversation", id="chat.new", priority=True),
        Binding("ctrl+r", "retry", "Another answer to the last question", id="chat.retry", priority=True),
        Binding("alt+left", "sibling(-1)", "The version before", id="chat.older", show=False, priority=True),
        Binding("alt+right", "sibling(1)", "The version after", id="chat.newer", show=False, priority=True),
        Binding("alt+up,shift+up", "messages", "To the messages", id="chat.messages", show=False, priority=True),
        Binding("ctrl+b", "sidebar", "Show or hide the conversations", id="chat.sidebar", priority=True),
        Binding("ctrl+f", "search", "Search all conversations", id="chat.search", priority=True),
        Binding("ctrl+t", "thoughts", "Open or fold the last thoughts", id="chat.thoughts", priority=True),
        Binding("ctrl+end", "follow", "To the end, and follow it", id="chat.follow", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", id="chat.page_up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="chat.page_down", show=False),
    ]

    def __init__(self, bridge: Bridge, count: Callable[[str], int | None], folder: Path) -> None:
        super().__init__()
        self.session: Session | None = None
        self.store: Store | None = None
        self.commands = Commands([])
        self.defaults = Settings()
        self.messages = MessageActs(self, self)
        self.list = ListActs(self, self)
        self.sending = Sending(self, self, count)
        self._bridge = bridge
        self._folder = folder
        self._state = State()
        self._live = LiveAnswers()
        self._drafts = Drafts()
        self._showing = asyncio.Lock()
        self._refreshing = self._refresh_again = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="all"):
            yield Sidebar(id="sidebar")
            with Vertical(id="main"):
                yield TitleLine(id="title")
                yield Welcome(id="welcome")
                yield Transcript(id="transcript")
                yield Static("↓ more below · Ctrl+End follows", id="below", markup=False)
                yield Notices(id="notice")
                yield ListOf(id="popup")
                yield Prompt(id="prompt")
        yield StatusLine(id="status", stop="screen.stop")

    def on_mount(self) -> None:
        self.query_one("#below").display = False
        popup = self.query_one("#popup", ListOf)
        popup.can_focus = popup.display = False
        self.prompt.popup = popup
        self.prompt.suggest = self.commands.suggest
        self.set_focus(self.prompt)
        self.state = self._state

    def on_resize(self, event: events.Resize) -> None:
        self.fit(event.size.width)

    # --- parts ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.status.state = state
        self.welcome.show(state=state)

    def copy(self, text: str) -> None:
        """Copies, and says what can be said of that."""
        self.tell(clipboard.copy(printable(text), terminal=self.app.copy_to_clipboard, folder=self._folder))

    # --- the session ---------------------------------------------------------------------------------------

    async def begin(self, session: Session, store: Store, conversation: str | None, *, defaults: Settings) -> None:
        """The session is there; `conversation` is to be opened, or a new one with `defaults`."""
        self.session, self.store, self.defaults = session, store, defaults
        self._use_defaults()
        self.sidebar.begin(store)
        if conversation:
            try:
                session.open(store.resolve(conversation))
            except RvchatError as error:
                self.tell(str(error), bad=True)
        if self.state.activity == "starting":
            self.state = replace(self.state, activity="no model")
        await self.refresh_conversation(fresh=True)

    def _use_defaults(self) -> None:
        """What a new conversation begins with."""
        wanted = self.defaults
        if self.session is not None and not self.session.conversation.messages:
            self.session.change(
                system=wanted.system,
                sampling=wanted.sampling,
                max_new_tokens=wanted.max_new_tokens,
                thinking=wanted.thinking,
            )

    async def open(self, conversation_id: str) -> bool:
        """Opens a conversation of the store."""
        if self.session is None:
            return False
        try:
            self.session.open(conversation_id)
        except RvchatError as error:
            self.tell(str(error), bad=True)
            return False
        await self.refresh_conversation()
        return True

    async def refresh_conversation(self, *, fresh: bool = False) -> None:
        """Shows the open conversation as it is now."""
        async with self._showing:  # two at once would both add what neither has found
            if self.session is not None:
                await self._show(self.session, fresh=fresh)

    async def _show(self, session: Session, *, fresh: bool) -> None:
        self._bridge.flush()  # so that what is live is known to be
        conversation = session.conversation
        if fresh or conversation.id != self.current:
            fresh = True
            self._change_to(conversation)
        self.query_one(TitleLine).show(one_line(conversation.title, 200) or "New conversation")
        branch = conversation.branch()
        self.welcome.display = not branch
        self.welcome.show()
        self.transcript.display = bool(branch)
        await self.transcript.show(branch, self._live.now, lambda i: _sibling(conversation, i), fresh=fresh)
        await self.transcript.prune()
        self.reload_list()

    def _change_to(self, conversation: Conversation) -> None:
        """Another conversation comes on the screen: each keeps what has been written in its input."""
        self.prompt.leave_edit()
        self.prompt.leave_recall()
        branch = conversation.branch()
        if self.current:
            # One empty conversation is as good as another: what was begun in one is there in the next.
            left = self.current if self.transcript.views else ""
            self.prompt.load(self._drafts.change(left, self.prompt.text, conversation.id if branch else ""))
        self.current = conversation.id
        self.prompt.remember([printable(m.content) for m in branch if m.role == "user"])
        stats = next((m.stats for m in reversed(branch) if m.stats is not None), None)
        used = stats.prompt_tokens + stats.new_tokens if stats is not None else None
        self.state = replace(self.state, stats=stats, used=used)

    @property
    def unsent(self) -> dict[str, str]:
        """What is written and not sent: by conversation, and under "" what is to be in the input at the next start."""
        return self._drafts.all(self.prompt.unsent, self.prompt.snippets.expand)

    def restore(self, texts: Mapping[str, str]) -> None:
        """Takes up what was `unsent` when the application was left; what has been written since goes on from it."""
        text = self._drafts.add(texts, self.current, self.prompt.text)
        if text != self.prompt.text:
            self.prompt.load(text)

    def reload_list(self) -> None:
        self.sidebar.reload(self.current)

    # --- events --------------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        """A batch of events, in order."""
        began = perf_counter()
        state, loaded = self.state, self.session.model if self.session is not None else None
        grown: set[str] = set()
        for event in events:
            state = state.after(event, loaded)
            self._live.take(event)
            if isinstance(event, TextDelta | ReasoningDelta | ToolCalled):
                grown.add(event.answer_id)
            else:
                self._happened(event)
        self.state = state
        for answer_id in grown:
            if answer_id in self._live and (view := self.transcript.view(answer_id)) is not None:
                view.show(self._live.now(view.message))
        self.call_after_refresh(lambda: self._bridge.shown(perf_counter() - began))

    def _happened(self, event: Event) -> None:
        match event:
            case Queued() | Titled() | Finished():
                self._refresh()
            case Failed(_, _, message, hint):
                self._refresh()
                self.tell(_sentence(message, hint), bad=True, more=True)
            case ModelReady(model):
                self.tell(model.notice, more=True)
            case LoadFailed(message, hint, cancelled):
                words = "Loading was stopped." if cancelled else _sentence(message, hint)
                self.tell(words, bad=not cancelled, more=True)
            case Unloaded():
                self.tell("The model is unloaded. Ctrl+O loads one.", more=True)
            case Notice(text):
                self.tell(text, more=True)
            case _:
                pass

    def _refresh(self) -> None:
        """Shows the conversation again, once, however often it is asked for meanwhile."""
        if self._refreshing:
            self._refresh_again = True
            return
        self._refreshing = True

        async def work() -> None:
            try:
                while True:
                    self._refresh_again = False
                    await self.refresh_conversation()
                    if not self._refresh_again:
                        return
            finally:
                self._refreshing = False

        self.run_worker(work(), group="refresh")

    @on(Transcript.Followed)
    def show_below(self, event: Transcript.Followed) -> None:
        self.query_one("#below").display = not event.following

    @on(events.Click, "#below")
    def go_below(self) -> None:
        self.transcript.follow()

    # --- what the user wants -------------------------------------------------------------------------------

    @on(Prompt.Sent)
    def send(self, event: Prompt.Sent) -> None:
        self.sending.send(event)

    @on(Prompt.Named)
    def attach(self, event: Prompt.Named) -> None:
        self.sending.attach(event.mention)

    def ask(self, what: Callable[[Session], object]) -> bool:
        """Asks the session for an answer and says on the screen where it refuses."""
        if self.session is None:
            return False
        try:
            what(self.session)
        except RvchatError as error:
            self.tell(str(error), bad=True)
            return False
        self.tell("")
        if isinstance(self.focused, MessageView):  # which may be about to make room: Textual would go to another one
            self.set_focus(self.prompt)
        self.transcript.follow()
        return True

    @on(MessageView.Act)
    async def act_on_message(self, event: MessageView.Act) -> None:
        await self.messages.act(event.message_id, event.what)

    @on(Prose.Copied)
    def copy_part(self, event: Prose.Copied) -> None:
        self.copy(event.text)

    @on(Sidebar.Act)
    async def act_on_list(self, event: Sidebar.Act) -> None:
        await self.list.act(event.what, event.conversation_id)

    @on(Sidebar.Trouble)
    def list_trouble(self, event: Sidebar.Trouble) -> None:
        self.tell(str(event.error), bad=True)

    @on(Sidebar.Opened)
    async def open_from_list(self, event: Sidebar.Opened) -> None:
        if not await self.open(event.conversation_id):
            return
        if self.has_class("-narrow"):
            self.hide_list()
        if event.message_id is not None:
            if self.list.select(event.message_id):
                await self.refresh_conversation()
            await self.transcript.reveal(event.message_id, event.words)
        else:
            self.set_focus(self.prompt)

    @on(ListOf.Chosen, "#popup")
    def choose_suggestion(self, event: ListOf.Chosen) -> None:
        self.prompt.accept(event.key)
        self.set_focus(self.prompt)

    def action_stop(self) -> None:
        """Esc: leaves what is open, ends the answer, else the loading, else goes back to the input."""
        session = self.session
        if self.leave_list():
            return
        if self.prompt.leave_edit():
            self.tell("")
        elif self.state.answering:
            self.stop_answer()
        elif session is not None and self.state.loading:
            session.cancel_load()
        elif not self.prompt.has_focus:
            self.set_focus(self.prompt)
        else:
            self.tell("")

    def stop_answer(self) -> None:
        if self.session is not None:
            self.session.stop()

    async def action_new(self) -> None:
        if self.session is not None:
            self.session.new()
            self._use_defaults()
            await self.refresh_conversation()
            self.tell("")
            self.set_focus(self.prompt)

    def action_retry(self) -> None:
        self.ask(lambda session: session.regenerate())

    async def action_sibling(self, by: int) -> None:
        focused = self.focused
        if isinstance(focused, MessageView):
            await self.messages.sibling(focused.message.id, by)
        else:
            await self.messages.last_with_siblings(by)

    def action_act_on(self, message_id: str, what: str) -> None:
        """What was clicked on a message. Actions run in what was clicked, and would wait here for its own removal."""
        self.post_message(MessageView.Act(message_id, what))

    def action_list(self, what: str) -> None:
        """What was clicked below the list."""
        self.post_message(Sidebar.Act(what, self.sidebar.conversation))

    def copy_conversation(self) -> None:
        if self.session is not None:
            self.copy(whole(self.session.conversation))


def _sibling(conversation: Conversation, message_id: str) -> tuple[int, int]:
    siblings = [m.id for m in conversation.siblings(message_id)]
    return siblings.index(message_id) + 1, len(siblings)


def _sentence(message: str, hint: str) -> str:
    return f"{message}. {hint}" if hint else message
