"""The tables, and how a file of an earlier version becomes one of this version.

`MIGRATIONS` only ever grows at its end: what has run on somebody's conversations is never edited. All that are missing
run in one transaction, after the file has been copied.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rvchat.errors import StoreError

APPLICATION_ID = 0x52564348  # "RVCH", so that another program's database is not taken for ours


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    statements: tuple[str, ...]


_TABLE_OF_MIGRATIONS = """
    CREATE TABLE migration (seq INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, applied REAL NOT NULL) STRICT
"""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "0001_conversations",
        (
            # Both references to a message wait for the end of the transaction: a conversation names its leaf, and the
            # leaf its conversation.
            """
            CREATE TABLE conversation (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                title TEXT NOT NULL,
                created REAL NOT NULL,
                changed REAL NOT NULL,
                pinned INTEGER NOT NULL DEFAULT 0,
                model TEXT,
                system TEXT NOT NULL DEFAULT '',
                sampling TEXT NOT NULL DEFAULT '{}',
                max_new_tokens INTEGER,
                thinking INTEGER NOT NULL DEFAULT 0,
                leaf_id TEXT REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
                deleted REAL,
                origin TEXT
            ) STRICT
            """,
            """
            CREATE TABLE message (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                conversation INTEGER NOT NULL REFERENCES conversation(seq) ON DELETE CASCADE,
                parent_id TEXT,
                role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
                content TEXT NOT NULL,
                created REAL NOT NULL,
                reasoning TEXT NOT NULL DEFAULT '',
                reasoning_s REAL,
                tool_calls TEXT,
                attachments TEXT,
                status TEXT NOT NULL CHECK (status IN ('streaming', 'complete', 'stopped', 'failed')),
                finish TEXT,
                error TEXT,
                model TEXT,
                sampling TEXT,
                stats TEXT,
                writer TEXT,
                UNIQUE (conversation, id),
                FOREIGN KEY (conversation, parent_id) REFERENCES message(conversation, id)
                    DEFERRABLE INITIALLY DEFERRED
            ) STRICT
            """,
            "CREATE INDEX message_parent ON message(conversation, parent_id)",
            "CREATE INDEX conversation_leaf ON conversation(leaf_id)",
            "CREATE INDEX message_streaming ON message(writer) WHERE status = 'streaming'",
        ),
    ),
    Migration(
        "0002_search",
        (
            # An answer that still streams is left out, so that a checkpoint costs nothing here.
            """
            CREATE VIEW searchable AS SELECT seq, content FROM message WHERE status <> 'streaming'
            """,
            """
            CREATE VIRTUAL TABLE title_fts USING fts5(
                title, content='conversation', content_rowid='seq', tokenize='unicode61 remove_diacritics 2')
            """,
            """
            CREATE VIRTUAL TABLE message_fts USING fts5(
                content, content='searchable', content_rowid='seq', tokenize='unicode61 remove_diacritics 2')
            """,
            """
            CREATE TRIGGER title_added AFTER INSERT ON conversation BEGIN
                INSERT INTO title_fts(rowid, title) VALUES (new.seq, new.title);
            END
            """,
            """
            CREATE TRIGGER title_gone AFTER DELETE ON conversation BEGIN
                INSERT INTO title_fts(title_fts, rowid, title) VALUES ('delete', old.seq, old.title);
            END
            """,
            """
            CREATE TRIGGER title_changed AFTER UPDATE OF title ON conversation BEGIN
                INSERT INTO title_fts(title_fts, rowid, title) VALUES ('delete', old.seq, old.title);
                INSERT INTO title_fts(rowid, title) VALUES (new.seq, new.title);
            END
            """,
            """
            CREATE TRIGGER content_added AFTER INSERT ON message WHEN new.status <> 'streaming' BEGIN
                INSERT INTO message_fts(rowid, content) VALUES (new.seq, new.content);
            END
            """,
            """
            CREATE TRIGGER content_gone AFTER DELETE ON message WHEN old.status <> 'streaming' BEGIN
                INSERT INTO message_fts(message_fts, rowid, content) VALUES ('delete', old.seq, old.content);
            END
            """,
            # One trigger for both halves: of two, SQLite does not say which comes first.
            """
            CREATE TRIGGER content_changed AFTER UPDATE OF content, status ON message BEGIN
                INSERT INTO message_fts(message_fts, rowid, content)
                    SELECT 'delete', old.seq, old.content WHERE old.status <> 'streaming';
                INSERT INTO message_fts(rowid, content)
                    SELECT new.seq, new.content WHERE new.status <> 'streaming';
            END
            """,
            "INSERT INTO title_fts(title_fts) VALUES ('rebuild')",
            "INSERT INTO message_fts(message_fts) VALUES ('rebuild')",
        ),
    ),
)


def applied(connection: sqlite3.Connection) -> list[str]:
    """Names of the migrations this file has seen, in order; empty for a file without tables."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'").fetchone()
    if known is None:
        return []
    return [name for (name,) in connection.execute("SELECT name FROM migration ORDER BY seq")]


def check(connection: sqlite3.Connection, path: Path | None, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """How many of `migrations` the file has seen. Writes nothing.

    StoreError: another program's database, or one that a newer rvchat has changed.
    """
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return 0
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program", "Move it away, or name another folder with --data")
    seen = applied(connection)
    ours = [m.name for m in migrations]
    if seen != ours[: len(seen)]:
        newest = next((name for name in reversed(seen) if name not in ours), seen[-1])
        raise StoreError(
            f"{path} was written by a newer rvchat (it has {newest}, this one knows up to {ours[-1]}); "
            "it has not been touched",
            "Update rvchat, or name another folder with --data",
        )
    return len(seen)


def migrate(connection: sqlite3.Connection, path: Path | None, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Brings the file up to date in one transaction. `path` None: in memory.

    StoreError: a migration failed; the file is as it was, and the message names its copy.
    """
    if check(connection, path, migrations) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    copy: Path | None = None
    try:
        done = check(connection, path, migrations)  # again: another process may have been here before the lock
        missing = migrations[done:]
        if done and missing and path is not None:
            copy = _copy(path, missing[0].name)
        if not done:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(_TABLE_OF_MIGRATIONS)
        for migration in missing:
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute("INSERT INTO migration(name, applied) VALUES (?, ?)", (migration.name, time.time()))
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error) and copy is not None:
            raise StoreError(
                f"{path} could not be brought up to date: {error}; it is as it was",
                f"A copy from before is at {copy}; please report this",
            ) from error
        raise


def _copy(path: Path, before: str) -> Path:
    """A whole copy of the file beside it, made by SQLite so that what is still in the log is in it."""
    target = path.with_name(f"{path.name}.before-{before}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.before-{before}-{number}")
    target.touch(mode=0o600)
    source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        copy = sqlite3.connect(target)
        try:
            source.backup(copy)
        finally:
            copy.close()
    except BaseException:
        target.unlink(missing_ok=True)  # half a copy would pass for a whole one
        raise
    finally:
        source.close()
    return target
