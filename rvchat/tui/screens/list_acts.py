"""What can be done with the conversations in the list."""

from __future__ import annotations

from typing import Protocol

from textual.screen import Screen

from rvchat.errors import RvchatError, StoreError
from rvchat.session.session import Session
from rvchat.store import Store
from rvchat.tui.screens.dialogs import AskLine, Pick
from rvchat.tui.widgets.list_of import Row


class Listing(Protocol):
    """The part of the chat screen that these acts use."""

    session: Session | None
    store: Store | None

    def tell(self, text: str, *, bad: bool = False) -> None: ...
    def reload_list(self) -> None: ...
    async def action_new(self) -> None: ...
    async def open(self, conversation_id: str) -> bool: ...
    async def refresh_conversation(self, *, fresh: bool = False) -> None: ...


class ListActs:
    """Rename, pin, delete, undo: of the open conversation through the session, of others through the store."""

    def __init__(self, chat: Listing, screen: Screen[None]) -> None:
        self._chat = chat
        self._screen = screen
        self._deleted: list[str] = []

    async def act(self, what: str, conversation_id: str | None) -> None:
        if self._chat.session is None or self._chat.store is None:
            return
        try:
            if what == "undo":
                await self._undo(self._chat.session, self._chat.store)
            elif conversation_id is not None:
                await self._act(what, conversation_id, self._chat.session, self._chat.store)
        except StoreError as error:
            self._chat.tell(str(error), bad=True)
        self._chat.reload_list()

    async def _act(self, what: str, conversation_id: str, session: Session, store: Store) -> None:
        match what:
            case "rename":
                self.rename(conversation_id)
            case "pin":
                pinned = not store.summary(conversation_id).pinned
                self._change(conversation_id, pinned=pinned)
                self._chat.tell("Pinned to the top." if pinned else "No longer pinned.")
            case "delete":
                name = store.summary(conversation_id).name
                if conversation_id == session.conversation.id:
                    await self._chat.action_new()
                store.delete(conversation_id)
                session.stop_in(conversation_id)  # what there is of the answer comes back with the rest
                self._deleted.append(conversation_id)
                self._chat.tell(f"Deleted “{name}”. u in the list, or /undo, brings it back.")

    def rename(self, conversation_id: str) -> None:
        """Asks for another title."""
        try:
            title = self._title(conversation_id)
        except StoreError as error:
            self._chat.tell(str(error), bad=True)
            return

        def named(title: str | None) -> None:
            if title is None:
                return
            try:
                self._change(conversation_id, title=title)
            except StoreError as error:
                self._chat.tell(str(error), bad=True)
            self._chat.reload_list()

        self._screen.app.push_screen(AskLine("Title", title), named)

    def _title(self, conversation_id: str) -> str:
        """As it is now: of the open conversation also where the store does not have it yet."""
        session, store = self._chat.session, self._chat.store
        if session is not None and conversation_id == session.conversation.id and session.conversation.title:
            return session.conversation.title
        return store.summary(conversation_id).name if store is not None else ""

    def select(self, message_id: str) -> bool:
        """Makes the branch with that message the active one. Whether it was another."""
        session = self._chat.session
        if session is None or any(message.id == message_id for message in session.conversation.branch()):
            return False
        try:
            session.select(message_id)
        except RvchatError as error:
            self._chat.tell(str(error), bad=True)
            return False
        return True

    def _change(self, conversation_id: str, **fields: object) -> None:
        session, store = self._chat.session, self._chat.store
        if session is not None and conversation_id == session.conversation.id:
            session.change(**fields)
            self._screen.run_worker(self._chat.refresh_conversation())
        elif store is not None:
            store.change(conversation_id, **fields)

    async def _undo(self, session: Session, store: Store) -> None:
        if self._deleted:
            await self._restore(self._deleted[-1], session, store)
            self._deleted.pop()  # once it is back
        else:
            self._restore_one(session, store)

    async def _restore(self, conversation_id: str, session: Session, store: Store) -> None:
        """Brings a conversation back, onto the screen where that shows none."""
        store.restore(conversation_id)
        if not session.conversation.messages:
            await self._chat.open(conversation_id)
        self._chat.tell(f"“{store.summary(conversation_id).name}” is back.")
        self._chat.reload_list()

    def _restore_one(self, session: Session, store: Store) -> None:
        """Lets the user choose among what was deleted earlier."""
        deleted = store.list(deleted=True, limit=200)
        if not deleted:
            self._chat.tell("Nothing has been deleted.")
            return

        async def picked(conversation_id: str | None) -> None:
            if conversation_id is None:
                return
            try:
                await self._restore(conversation_id, session, store)
            except StoreError as error:
                self._chat.tell(str(error), bad=True)

        rows = [Row(summary.name, summary.id) for summary in deleted]
        self._screen.app.push_screen(Pick("Bring back which conversation?", rows), picked)
