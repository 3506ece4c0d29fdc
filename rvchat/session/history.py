"""What the session asks of a store, and how it writes there: at once, in order, and again when the disk refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rvchat.errors import StoreError
from rvchat.session.draft import Draft
from rvchat.types import Conversation, Message

CHECKPOINT_S = 0.5
RETRY_S = 3.0
WAITED = 4.0  # times as long as the last try took
NAMED = 5

SAVED = "The conversation is saved again, all of it."


def lost(names: Sequence[str], problem: StoreError) -> str:
    """What is said at the end of conversations that could not be saved."""
    which = ", ".join(f"“{name}”" for name in names[:NAMED]) + (
        f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    )
    return f"Not saved completely: {which}. {problem}"


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
    def recover(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Write:
    """One write. `replaces` names what a later write of the same name makes superfluous, if anything."""

    run: Callable[[], object]
    replaces: str | None = None


class Ledger:
    """Writes conversations to the store, in order, from any thread.

    A write that fails is kept with those that follow it in the same conversation, and all are tried again every few
    seconds and at that conversation's next write, so that a disk that has room again has everything. `notify` hears
    when that begins for a conversation and when it is over.

    The answer that is being made is checkpointed every half second by a thread of its own: also when no token comes,
    and without the engine waiting for the disk. The same thread tries again what was refused.
    """

    def __init__(self, store: History, notify: Callable[[str], None]) -> None:
        self._store = store
        self._notify = notify
        self._lock = threading.RLock()
        self._pending: dict[str, list[_Write]] = {}
        self._problems: dict[str, StoreError] = {}
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

    def unsaved(self) -> Mapping[str, StoreError]:
        """The conversations for which the store is behind, with what it said last."""
        return self._problems.copy()  # without the lock, which a store that is being waited for keeps long

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
        self.update(conversation_id, message)

    def close(self) -> None:
        """Tries once more what could not be written; `unsaved` has what is lost."""
        self._closing.set()
        self._wake.set()
        self._thread.join()
        self._retry()

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
            self._wake.set()
            return (
                f"The conversation could not be saved: {str(problem).rstrip('.')}. It goes on in memory, "
                "and is written as soon as that works again."
            )
        return SAVED if problem is None and was_behind else ""

    def _drain(self, conversation_id: str) -> StoreError | None:
        writes = self._pending[conversation_id]
        while writes:
            try:
                writes[0].run()
            except StoreError as error:
                self._problems[conversation_id] = error
                return error
            del writes[0]
        del self._pending[conversation_id]
        self._problems.pop(conversation_id, None)
        return None

    def _retry(self) -> str:
        """Tries everything again that was refused. Returns what the user should know of it."""
        saved = False
        for conversation_id in self.unsaved():
            with self._lock:  # not held throughout: a store that is locked takes long to refuse
                saved |= conversation_id in self._pending and self._drain(conversation_id) is None
        return SAVED if saved else ""

    def _checkpoint(self) -> None:
        written: Message | None = None
        again = 0.0
        while True:
            self._wake.wait()
            if self._closing.wait(CHECKPOINT_S):
                return
            notices: list[str] = []
            with self._lock:
                if self._draft is not None:
                    conversation_id, draft = self._draft
                    message = draft.message()
                    if message != written:
                        notices.append(self._apply(conversation_id, self._updating(message)))
                        written = message
            if (began := time.monotonic()) >= again:
                notices.append(self._retry())
                ended = time.monotonic()
                # A store that another program locks is waited for each time, and others wait meanwhile.
                again = ended + max(RETRY_S, WAITED * (ended - began))
            with self._lock:
                if self._draft is None and not self._pending:
                    self._wake.clear()
            for notice in filter(None, notices):
                self._notify(notice)

    def _updating(self, message: Message) -> _Write:
        return _Write(lambda: self._store.update(message), replaces=message.id)
