"""The chat: a conversation, the input, and the status line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from rvchat.errors import RvchatError
from rvchat.store.printable import one_line
from rvchat.tui.live import LiveAnswers
from rvchat.tui.state import State
from rvchat.tui.widgets.message import MessageView
from rvchat.tui.widgets.prompt import Prompt
from rvchat.tui.widgets.status import StatusLine
from rvchat.tui.widgets.transcript import Transcript
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
)

if TYPE_CHECKING:
    from rvchat.session.session import Session
    from rvchat.store import Store


class ChatScreen(Screen[None]):
    """Turns events into what is seen, and keys into what the session is asked to do.

    `on_shown` hears how many seconds showing a batch of events took.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop"),
        Binding("ctrl+n", "new", "New", id="chat.new"),
        Binding("ctrl+r", "retry", "Retry", id="chat.retry"),
        Binding("ctrl+end", "follow", "Follow", id="chat.follow", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", id="chat.page_up", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", id="chat.page_down", show=False, priority=True),
    ]

    def __init__(self, on_shown: Callable[[float], None]) -> None:
        super().__init__()
        self.session: Session | None = None
        self.store: Store | None = None
        self._on_shown = on_shown
        self._state = State()
        self._live = LiveAnswers()
        self._shown = ""  # id of the conversation on the screen
        self._refreshing = self._refresh_again = False

    def compose(self) -> ComposeResult:
        with Vertical(id="main"):
            yield Static("New conversation", id="title", markup=False)
            yield Transcript(id="transcript")
            yield Static("↓ new output below · Ctrl+End follows", id="below", markup=False)
            yield Static("", id="notice", markup=False)
            yield Prompt(id="prompt")
        yield StatusLine(id="status")

    def on_mount(self) -> None:
        self.query_one("#below").display = False
        self.query_one("#notice").display = False
        self.prompt.focus()
        self.state = self._state

    # --- parts ---------------------------------------------------------------------------------------------

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.query_one(StatusLine).state = state

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Shows one line above the input until the next thing happens."""
        notice = self.query_one("#notice", Static)
        notice.update(Content.styled(one_line(text, 600), "$text-error" if bad else "$text-muted"))
        notice.display = bool(text)

    # --- the session ---------------------------------------------------------------------------------------

    async def begin(self, session: Session, store: Store, conversation: str | None) -> None:
        """The session is there; `conversation` is to be opened, or a new one."""
        self.session, self.store = session, store
        if conversation:
            try:
                session.open(conversation)
            except RvchatError as error:
                self.tell(str(error), bad=True)
        if self.state.activity == "starting":
            self.state = replace(self.state, activity="no model")
        await self.refresh_conversation(fresh=True)

    async def refresh_conversation(self, *, fresh: bool = False) -> None:
        """Shows the open conversation as it is now."""
        session = self.session
        if session is None:
            return
        conversation = session.conversation
        fresh = fresh or conversation.id != self._shown
        self._shown = conversation.id
        self.query_one("#title", Static).update(Content(one_line(conversation.title or "New conversation", 200)))
        branch = [self._live.now(message) for message in conversation.branch()]
        await self.transcript.show(branch, lambda i: _sibling(conversation, i), fresh=fresh)
        for message in branch:
            view = self.transcript.view(message.id) if message.id in self._live else None
            if view is not None:  # what came while the views were made
                view.show(self._live.now(message))

    # --- events --------------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        """A batch of events, in order."""
        began = perf_counter()
        state = self.state
        for event in events:
            state = state.after(event)
            self._live.take(event)
            self._show(event)
        self.state = state
        self.call_after_refresh(lambda: self._on_shown(perf_counter() - began))

    def _show(self, event: Event) -> None:
        match event:
            case TextDelta(answer_id, text):
                if (view := self.transcript.view(answer_id)) is not None:
                    view.add_text(text)
            case ReasoningDelta(answer_id, text):
                if (view := self.transcript.view(answer_id)) is not None:
                    view.add_reasoning(text)
            case ToolCalled(answer_id, call):
                if (view := self.transcript.view(answer_id)) is not None:
                    view.add_call(call)
            case Queued() | Titled():
                self._refresh()
            case Finished(_, answer):
                self._end(self.transcript.view(answer.id))
            case Failed(_, answer, message, hint):
                self._end(self.transcript.view(answer.id))
                self.tell(_sentence(message, hint), bad=True)
            case ModelReady(model):
                words = [] if model.chats else ["This model is not tuned for chat: it continues a plain transcript."]
                self.tell(" ".join([*words, model.notice] if model.notice else words))
            case LoadFailed(message, hint, cancelled):
                self.tell("Loading was stopped." if cancelled else _sentence(message, hint), bad=not cancelled)
            case Notice(text):
                self.tell(text)
            case _:
                pass

    def _end(self, view: MessageView | None) -> None:
        if view is not None and self.session is not None:
            self._refresh()

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

    # --- intents -------------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    def send(self, event: Prompt.Sent) -> None:
        if not self._ask(lambda session: session.send(event.text)):
            self.prompt.give_back(event.text)

    def _ask(self, what: Callable[[Session], object]) -> bool:
        """Asks the session for an answer and says on the screen where it refuses."""
        if self.session is None:
            self.tell("Still starting; send it again in a moment.")
            return False
        try:
            what(self.session)
        except RvchatError as error:
            self.tell(str(error), bad=True)
            return False
        self.tell("")
        self.transcript.follow()
        return True

    def action_stop(self) -> None:
        """Esc: ends the answer, else the loading, else goes back to the input."""
        session = self.session
        if session is not None and self.state.answering:
            session.stop()
        elif session is not None and self.state.loading:
            session.cancel_load()
        elif not self.prompt.has_focus:
            self.prompt.focus()
        else:
            self.tell("")

    async def action_new(self) -> None:
        if self.session is not None:
            self.session.new()
            self.state = replace(self.state, stats=None, used=None)
            await self.refresh_conversation(fresh=True)
            self.prompt.focus()

    def action_retry(self) -> None:
        self._ask(lambda session: session.regenerate())

    def action_follow(self) -> None:
        self.transcript.follow()

    def action_page(self, direction: int) -> None:
        self.transcript.scroll_relative(y=direction * max(self.transcript.size.height - 2, 1), animate=False)


def _sibling(conversation: Conversation, message_id: str) -> tuple[int, int]:
    siblings = [m.id for m in conversation.siblings(message_id)]
    return siblings.index(message_id) + 1, len(siblings)


def _sentence(message: str, hint: str) -> str:
    return f"{message}. {hint}" if hint else message
