"""What the session asks of a store, and how it writes there: at once, in order, and again when the disk refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rvchat.errors import StoreError
from rvchat.session.draft import Draft
from rvchat.types import Conversation, Message

CHECKPOINT_S = 0.5


class History(Protocol):
    """The part of rvchat.store's Store that the session uses. Every method may raise StoreError."""

    @property
    def problem(self) -> str | None: ...
    def create(self, conversation: Conversation) -> None: ...
    def conversation(self, conversation_id: str) -> Conversation: ...
    def add(self, conversation_id: str, message: Message) -> None: ...
    def update(self, message: Message) -> None: ...
    def set_leaf(self, conversation_id: str, message_id: str) -> None: ...
    def change(self, conversation_id: str, **fields: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Write:
    """One write. `replaces` names what a later write of the same name makes superfluous, if anything."""

    run: Callable[[], object]
    replaces: str | None = None


class Ledger:
    """Writes conversations to the store, in order, from any thread.

    A write that fails is kept with those that follow it in the same conversation, and all are tried again at that
    conversation's next write, so that a disk that has room again has everything. `notify` hears when that begins for a
    conversation and when it is over.

    The answer that is being made is checkpointed every half second by a thread of its own: also when no token comes,
    and without the engine waiting for the disk.
    """

    def __init__(self, store: History, notify: Callable[[str], None]) -> None:
        self._store = store
        self._notify = notify
        self._lock = threading.RLock()
        self._pending: dict[str, list[_Write]] = {}
        self._draft: tuple[str, Draft] | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._checkpoint, name="rvchat-checkpoint", daemon=True)
        self._thread.start()

    def create(self, conversation: Conversation) -> None:
        self._write(conversation.id, _Write(lambda: self._store.create(conversation)))

    def add(self, conversation_id: str, message: Message) -> None:
        self._write(conversation_id, _Write(lambda: self._store.add(conversation_id, message)))

    def update(self, conversation_id: str, message: Message) -> None:
        self._write(conversation_id, self._updating(message))

    def set_leaf(self, conversation_id: str, message_id: str) -> None:
        self._write(conversation_id, _Write(lambda: self._store.set_leaf(conversation_id, message_id)))

    def change(self, conversation_id: str, **fields: Any) -> None:
        self._write(conversation_id, _Write(lambda: self._store.change(conversation_id, **fields)))

    def unsaved(self, conversation_id: str) -> bool:
        """Whether the store is behind for that conversation."""
        with self._lock:
            return conversation_id in self._pending

    def watch(self, conversation_id: str, draft: Draft) -> None:
        """Checkpoints the draft until its message is settled."""
        with self._lock:
            self._draft = (conversation_id, draft)
        self._wake.set()

    def settle(self, conversation_id: str, message: Message) -> None:
        """The answer as it ended. No checkpoint of it is written after this."""
        with self._lock:
            if self._draft is not None and self._draft[1].id == message.id:
                self._draft = None
                self._wake.clear()
        self.update(conversation_id, message)

    def close(self) -> int:
        """Tries once more what could not be written; returns how many conversations are still behind."""
        self._closing.set()
        self._wake.set()
        self._thread.join()
        with self._lock:
            for conversation_id in list(self._pending):
                self._drain(conversation_id)
            return len(self._pending)

    def _write(self, conversation_id: str, write: _Write) -> None:
        with self._lock:
            notice = self._apply(conversation_id, write)
        if notice:
            self._notify(notice)

    def _apply(self, conversation_id: str, write: _Write) -> str:
        """Writes, or keeps for later. Returns what the user should know of it; empty for nothing. Needs the lock."""
        was_behind = conversation_id in self._pending
        writes = self._pending.setdefault(conversation_id, [])
        if write.replaces is not None:
            writes[:] = [w for w in writes if w.replaces != write.replaces]
        writes.append(write)
        problem = self._drain(conversation_id)
        if problem is not None and not was_behind:
            return (
                f"The conversation could not be saved: {str(problem).rstrip('.')}. It goes on in memory, "
                "and is written as soon as that works again."
            )
        if problem is None and was_behind:
            return "The conversation is saved again, all of it."
        return ""

    def _drain(self, conversation_id: str) -> StoreError | None:
        writes = self._pending[conversation_id]
        while writes:
            try:
                writes[0].run()
            except StoreError as error:
                return error
            del writes[0]
        del self._pending[conversation_id]
        return None

    def _checkpoint(self) -> None:
        written: Message | None = None
        while True:
            self._wake.wait()
            if self._closing.wait(CHECKPOINT_S):
                return
            notice = ""
            with self._lock:
                if self._draft is not None:
                    conversation_id, draft = self._draft
                    message = draft.message()
                    if message != written:
                        notice = self._apply(conversation_id, self._updating(message))
                        written = message
            if notice:
                self._notify(notice)

    def _updating(self, message: Message) -> _Write:
        return _Write(lambda: self._store.update(message), replaces=message.id)
