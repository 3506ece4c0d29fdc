"""What can be done with one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from textual.screen import Screen

from rvchat.errors import RvchatError
from rvchat.session.session import Session
from rvchat.store.printable import one_line, printable
from rvchat.tui.screens.dialogs import Pick
from rvchat.tui.widgets.list_of import Row
from rvchat.tui.widgets.message import MessageView
from rvchat.tui.widgets.prompt import Prompt
from rvchat.tui.widgets.transcript import Transcript
from rvchat.types import Conversation, Message


class Chatting(Protocol):
    """The part of the chat screen that these acts use."""

    session: Session | None

    @property
    def transcript(self) -> Transcript: ...
    @property
    def prompt(self) -> Prompt: ...
    def tell(self, text: str, *, bad: bool = False) -> None: ...
    def ask(self, what: Callable[[Session], object]) -> bool: ...
    def copy(self, text: str) -> None: ...
    async def refresh_conversation(self, *, fresh: bool = False) -> None: ...


class MessageActs:
    """Carries out what a message's keys ask for."""

    def __init__(self, chat: Chatting, screen: Screen[None]) -> None:
        self._chat = chat
        self._screen = screen

    async def act(self, message_id: str, what: str) -> None:
        """`what` is one of MessageView.Act's."""
        session, view = self._chat.session, self._chat.transcript.view(message_id)
        if session is None or view is None or message_id not in {m.id for m in session.conversation.messages}:
            return
        match what:
            case "copy":
                self._chat.copy(view.text)
            case "copy_code":
                self._copy_code(view)
            case "edit":
                self._edit(view.message)
            case "retry":
                self._chat.ask(lambda session: session.regenerate(message_id))
            case "continue":
                self._chat.ask(lambda session: session.continue_(message_id))
            case "older":
                await self.sibling(message_id, -1)
            case "newer":
                await self.sibling(message_id, 1)
            case "unfold":
                view.action_unfold()
            case "statistics":
                view.action_statistics()

    async def sibling(self, message_id: str, by: int) -> None:
        """Shows the version of a message that was made before or after it."""
        session = self._chat.session
        if session is None:
            return
        siblings = [m.id for m in session.conversation.siblings(message_id)]
        index = siblings.index(message_id) + by
        if not 0 <= index < len(siblings):
            self._chat.tell("There is no other version that way." if len(siblings) > 1 else "There is one version.")
            return
        try:
            session.select(siblings[index])
        except RvchatError as error:
            self._chat.tell(str(error), bad=True)
            return
        focused = isinstance(self._screen.focused, MessageView)
        if focused:
            self._screen.set_focus(None)  # else Textual goes to another message when this one makes room
        await self._chat.refresh_conversation()
        view = self._chat.transcript.view(siblings[index])
        if view is not None and focused:
            view.focus()

    async def last_with_siblings(self, by: int) -> None:
        """`sibling` for the last message that has other versions."""
        session = self._chat.session
        if session is None:
            return
        conversation = session.conversation
        several = [m for m in conversation.branch() if len(conversation.siblings(m.id)) > 1]
        if several:
            await self.sibling(several[-1].id, by)
        else:
            self._chat.tell("There is one version of every message; Ctrl+R makes another answer.")

    def _edit(self, message: Message) -> None:
        if message.role != "user":
            self._chat.tell("Only questions can be edited; r makes another answer.")
            return
        self._chat.prompt.edit_message(message.id, printable(message.content))

    def _copy_code(self, view: MessageView) -> None:
        codes = view.codes
        if not codes:
            self._chat.tell("There is no code block in this message.")
        elif len(codes) == 1:
            self._chat.copy(codes[0])
        else:
            rows = [
                Row(one_line(code, 60) or "(empty)", str(n), mark=str(n + 1), second=_lines(code))
                for n, code in enumerate(codes)
            ]

            def picked(key: str | None) -> None:
                if key is not None:
                    self._chat.copy(codes[int(key)])

            self._screen.app.push_screen(Pick("Which code block?", rows, highlight=str(len(codes) - 1)), picked)


def _lines(code: str) -> str:
    count = code.count("\n") + 1
    return f"{count:,} lines" if count > 1 else "1 line"


def whole(conversation: Conversation) -> str:
    """The conversation as the reader sees it, as Markdown."""
    names = {"user": "You", "assistant": "Assistant", "system": "System", "tool": "Tool"}
    return "\n\n".join(f"## {names[m.role]}\n\n{printable(m.content)}" for m in conversation.branch())
