"""The store: every conversation in one SQLite file, or in memory where there is no disk to be had."""

from __future__ import annotations

import builtins
import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rvchat.errors import BadInputError, StoreError
from rvchat.store import rows, schema, search
from rvchat.store.files import explained, opened
from rvchat.store.live import Writer, is_alive, leftovers
from rvchat.store.rows import Summary
from rvchat.store.search import Hit
from rvchat.types import Conversation, Message

KEEP_DELETED = 30 * 86400.0  # seconds that a deleted conversation can be brought back

_LIST = "`rvchat history list` shows them"
_CHANGEABLE = frozenset({"title", "pinned", "model", "system", "sampling", "max_new_tokens", "thinking"})


class Store:
    """Conversations, kept. Every method may be called from any thread and is done when it returns; what fails is a
    StoreError, after which the file holds what it held before.

    There is one connection, behind a lock: a write takes a millisecond. Other processes are SQLite's business.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None, problem: str | None = None) -> None:
        self.path = path
        self.problem = problem
        self._db = connection
        self._lock = threading.RLock()
        self._depth = 0
        self._writer = Writer(path) if path is not None else None

    @classmethod
    def open(cls, path: Path) -> Store:
        """The store in the file `path`: made if it is not there, brought up to date if it is older.

        StoreError: it cannot be opened, is damaged, or is newer than this program; it has not been changed.
        """
        with explained(path):
            return cls(opened(path), path)

    @classmethod
    def memory(cls, problem: str | None = None) -> Store:
        """A store that is gone when the program ends. `problem`: why it is not on disk, for the user."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA foreign_keys = ON")
        schema.migrate(connection, None)
        return cls(connection, None, problem)

    @classmethod
    def open_or_memory(cls, path: Path) -> Store:
        """`open`, or where that is refused a store in memory whose `problem` says why."""
        try:
            return cls.open(path)
        except StoreError as error:
            return cls.memory(str(error))

    def close(self) -> None:
        with self._lock, explained(self.path):
            try:
                self._db.close()
            finally:
                if self._writer is not None:
                    self._writer.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def conversation(self, conversation_id: str) -> Conversation:
        """The whole tree. StoreError: there is no such conversation."""
        with self._reading():
            found = self._db.execute(
                f"SELECT seq, {rows.CONVERSATION} FROM conversation WHERE id = ?", (conversation_id,)
            ).fetchone()
            if found is None:
                raise _unknown(conversation_id)
            messages = self._db.execute(
                f"SELECT {rows.MESSAGE} FROM message WHERE conversation = ? ORDER BY seq", (found[0],)
            )
            try:
                return rows.conversation(found[1:], tuple(map(rows.message, messages)))
            except ValueError as error:
                raise StoreError(f"Conversation {conversation_id} in {self.path} is damaged: {error}") from error

    def list(
        self, query: str | None = None, *, deleted: bool = False, limit: int | None = None
    ) -> builtins.list[Summary]:
        """Conversations, pinned ones first, then the latest first. `query`: only those that `search` would find.
        `deleted`: instead those that are deleted and can still be restored."""
        where = f"deleted IS {'NOT ' if deleted else ''}NULL"
        with self._reading():
            if query is not None and query.strip():
                where += f" AND seq IN ({','.join(map(str, search.matching(self._db, query)))})"
            found = self._db.execute(
                f"""
                SELECT {rows.SUMMARY} FROM conversation c WHERE {where}
                ORDER BY pinned DESC, changed DESC, seq DESC LIMIT ?
                """,
                (-1 if limit is None else limit,),
            )
            return [rows.summary(row) for row in found]

    def summary(self, conversation_id: str) -> Summary:
        """One line of the list. StoreError: there is no such conversation."""
        with self._reading():
            found = self._db.execute(
                f"SELECT {rows.SUMMARY} FROM conversation c WHERE id = ?", (conversation_id,)
            ).fetchone()
        if found is None:
            raise _unknown(conversation_id)
        return rows.summary(found)

    def search(self, text: str, limit: int = 50) -> builtins.list[Hit]:
        """Places where all words of `text` stand together: titles first, then messages, best match first. Case and
        accents do not matter and the last word may be a beginning; where no word matches, `text` itself is looked
        for. Deleted conversations and answers that still stream are left out."""
        with self._reading():
            return search.search(self._db, text, limit)

    def resolve(self, beginning: str) -> str:
        """The id of the conversation whose id begins so. BadInputError: there is none, or more than one."""
        with self._reading():
            found = self._db.execute(
                "SELECT id FROM conversation WHERE substr(id, 1, ?1) = ?2 ORDER BY id LIMIT 2",
                (len(beginning), beginning),
            ).fetchall()
        if not found or not beginning:
            raise BadInputError(f"There is no conversation {beginning}", _LIST)
        if len(found) > 1 and found[0][0] != beginning:
            raise BadInputError(f"Several conversations have an id that begins with {beginning}", "Give more of the id")
        return str(found[0][0])

    # --- writing -----------------------------------------------------------------------------------------------

    def create(self, conversation: Conversation) -> None:
        """Keeps a conversation with all its messages. StoreError: its id is taken, or its tree has a gap."""
        with self._writing():
            if self._seq(conversation.id) is not None:
                raise StoreError(f"There already is a conversation {conversation.id}")
            self._insert(conversation)

    def merge(self, conversation: Conversation) -> Literal["added", "extended", "restored", "present"]:
        """Keeps a conversation, or those of its messages that the one with its id lacks. What is here stays as it is,
        but for the active leaf, which follows the new messages unless the user has gone on since; and what was
        deleted comes back."""
        with self._writing():
            seq = self._seq(conversation.id)
            if seq is None:
                self._insert(conversation)
                return "added"
            restored = (
                conversation.deleted is None
                and self._db.execute(
                    "UPDATE conversation SET deleted = NULL WHERE seq = ? AND deleted IS NOT NULL", (seq,)
                ).rowcount
            )
            have = {found for (found,) in self._db.execute("SELECT id FROM message WHERE conversation = ?", (seq,))}
            missing = [message for message in rows.ordered(conversation.messages) if message.id not in have]
            if not missing:
                return "restored" if restored else "present"
            for message in missing:
                self._insert_message(seq, message)
            (leaf,) = self._db.execute("SELECT leaf_id FROM conversation WHERE seq = ?", (seq,)).fetchone()
            if leaf is None or leaf in {message.id for message in conversation.messages}:
                if conversation.leaf_id is not None:
                    self._known_message(seq, conversation.leaf_id)
                self._db.execute("UPDATE conversation SET leaf_id = ? WHERE seq = ?", (conversation.leaf_id, seq))
            self._touch(seq, conversation.changed)
            return "restored" if restored else "extended"

    def add(self, conversation_id: str, message: Message) -> None:
        """Keeps a new message and makes it the active leaf. A conversation that was deleted comes back: nobody wants
        purged what is being talked of. StoreError: its id is taken, or its parent is not here."""
        with self._writing():
            seq = self._known(conversation_id)
            if message.parent_id is not None:
                self._known_message(seq, message.parent_id)
            self._insert_message(seq, message)
            self._db.execute("UPDATE conversation SET leaf_id = ? WHERE seq = ?", (message.id, seq))
            self._goes_on(seq, message.created)

    def update(self, message: Message) -> None:
        """Keeps what has become of a message; its place, role and date stay. StoreError: there is no such message."""
        with self._writing():
            found = self._db.execute("SELECT conversation, status FROM message WHERE id = ?", (message.id,)).fetchone()
            if found is None:
                raise StoreError(f"There is no message {message.id} to update")
            columns = ", ".join(f"{name} = ?" for name in rows.CHANGEABLE)
            self._db.execute(
                f"UPDATE message SET {columns}, writer = ? WHERE id = ?",
                (*rows.message_row(message)[-len(rows.CHANGEABLE) :], self._writer_of(message), message.id),
            )
            if message.status == "streaming" != found[1]:  # an answer goes on
                self._goes_on(found[0], time.time())

    def set_leaf(self, conversation_id: str, message_id: str | None) -> None:
        """Makes the branch that ends in `message_id` the active one."""
        with self._writing():
            seq = self._known(conversation_id)
            if message_id is not None:
                self._known_message(seq, message_id)
            self._db.execute("UPDATE conversation SET leaf_id = ? WHERE seq = ?", (message_id, seq))

    def change(self, conversation_id: str, **fields: Any) -> Summary:
        """Sets any of title, pinned, model, system, sampling, max_new_tokens, thinking."""
        if not fields.keys() <= _CHANGEABLE:
            raise TypeError(f"a conversation has no setting {', '.join(sorted(fields.keys() - _CHANGEABLE))}")
        with self._writing():
            seq = self._known(conversation_id)
            for name, value in fields.items():
                self._db.execute(f"UPDATE conversation SET {name} = ? WHERE seq = ?", (rows.column(value), seq))
            return self.summary(conversation_id)

    def delete(self, conversation_id: str) -> None:
        """Puts a conversation away; `restore` brings it back until `purge` takes it."""
        with self._writing():
            self._db.execute(
                "UPDATE conversation SET deleted = coalesce(deleted, ?) WHERE seq = ?",
                (time.time(), self._known(conversation_id)),
            )

    def restore(self, conversation_id: str) -> None:
        with self._writing():
            self._db.execute("UPDATE conversation SET deleted = NULL WHERE seq = ?", (self._known(conversation_id),))

    def purge(self, older_than: float = KEEP_DELETED) -> int:
        """Removes for good what was deleted more than `older_than` seconds ago. Returns how many conversations."""
        with self._writing():
            return self._db.execute("DELETE FROM conversation WHERE deleted < ?", (time.time() - older_than,)).rowcount

    def recover(self) -> int:
        """Answers that a process which is gone left streaming become stopped. Returns how many; those of a process
        that lives, this one among them, go on."""
        if self.path is None or self._writer is None:
            return 0
        with self._writing():
            streaming = "SELECT DISTINCT writer FROM message WHERE status = 'streaming'"
            writers = {name for (name,) in self._db.execute(streaming)} | set(leftovers(self.path))
            gone = [name for name in writers - {self._writer.name} if name is None or not is_alive(self.path, name)]
            stopped = 0
            for name in gone:
                stopped += self._db.execute(
                    "UPDATE message SET status = 'stopped', writer = NULL WHERE status = 'streaming' AND writer IS ?",
                    (name,),
                ).rowcount
            return stopped

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Writes within reach the disk together, or none of them. Other processes and threads wait: keep it short."""
        with self._writing():
            yield

    # --- inside ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, explained(self.path):
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction, or a part of the one that runs, that can fail by itself."""
        with self._lock, explained(self.path):
            # The lock to write is taken at once: a reader that turns writer could meet another and neither go on.
            begin, end, undo = "BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"]
            if self._depth:
                self._still_open()
                name = f"level{self._depth}"
                begin, end, undo = f"SAVEPOINT {name}", f"RELEASE {name}", [f"ROLLBACK TO {name}", f"RELEASE {name}"]
            self._db.execute(begin)
            self._depth += 1
            try:
                yield
                self._still_open()
                self._db.execute(end)
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it already
                    for statement in undo:
                        self._db.execute(statement)
                raise
            finally:
                self._depth -= 1

    def _still_open(self) -> None:
        if not self._db.in_transaction:
            raise StoreError(f"A failed write to {self.path} has taken back all that was written together with it")

    def _seq(self, conversation_id: str) -> int | None:
        found = self._db.execute("SELECT seq FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
        return None if found is None else int(found[0])

    def _known(self, conversation_id: str) -> int:
        seq = self._seq(conversation_id)
        if seq is None:
            raise _unknown(conversation_id)
        return seq

    def _known_message(self, seq: int, message_id: str) -> None:
        # Looked for here: SQLite would find a gap at the end of the transaction only, and undo all of it.
        found = self._db.execute("SELECT 1 FROM message WHERE conversation = ? AND id = ?", (seq, message_id))
        if found.fetchone() is None:
            raise StoreError(f"There is no message {message_id} in this conversation")

    def _touch(self, seq: int, moment: float) -> None:
        self._db.execute("UPDATE conversation SET changed = max(changed, ?) WHERE seq = ?", (moment, seq))

    def _goes_on(self, seq: int, moment: float) -> None:
        self._db.execute("UPDATE conversation SET deleted = NULL WHERE seq = ? AND deleted IS NOT NULL", (seq,))
        self._touch(seq, moment)

    def _insert(self, conversation: Conversation) -> None:
        messages = rows.ordered(conversation.messages)
        row = rows.conversation_row(conversation)
        marks = ", ".join("?" * len(row))
        seq = self._db.execute(f"INSERT INTO conversation ({rows.CONVERSATION}) VALUES ({marks})", row).lastrowid
        assert seq is not None
        for message in messages:
            self._insert_message(seq, message)
        if conversation.leaf_id is not None:
            self._known_message(seq, conversation.leaf_id)

    def _insert_message(self, seq: int, message: Message) -> None:
        row = (*rows.message_row(message), seq, self._writer_of(message))
        marks = ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO message ({rows.MESSAGE}, conversation, writer) VALUES ({marks})", row)

    def _writer_of(self, message: Message) -> str | None:
        return self._writer.claim() if self._writer is not None and message.status == "streaming" else None


def _unknown(conversation_id: str) -> StoreError:
    return StoreError(f"There is no conversation {conversation_id}", _LIST)
