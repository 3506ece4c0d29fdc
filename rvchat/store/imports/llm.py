"""The SQLite log of the command `llm`, in both its generations: `threads` of hashed messages, and `responses`.

The file is another program's and may be open there: it is copied with its log, and the copy is opened for reading.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rvchat.errors import BadInputError
from rvchat.store.imports.draft import (
    Draft,
    Node,
    NotAConversationError,
    call,
    iso,
    joined,
    mapping,
    mappings,
    parsed,
    string,
    whole,
)
from rvchat.types import Attachment, Role, Stats

Row = Mapping[str, Any]
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}


class Log:
    """The tables of one log, read whole. A table that this version of llm does not have is empty."""

    def __init__(self, db: sqlite3.Connection) -> None:
        db.row_factory = sqlite3.Row
        # A view or a virtual table would run what its maker wrote.
        self._tables = {
            name
            for name, sql in db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
            if not str(sql).upper().startswith("CREATE VIRTUAL")
        }
        self._db = db

    def has(self, *tables: str) -> bool:
        return self._tables.issuperset(tables)

    def rows(self, table: str) -> list[Row]:
        if table not in self._tables:
            return []
        return [dict(row) for row in self._db.execute(f"SELECT * FROM {table} ORDER BY rowid")]

    def grouped(self, table: str, key: str) -> dict[Any, list[Row]]:
        groups: dict[Any, list[Row]] = {}
        for row in self.rows(table):
            groups.setdefault(row.get(key), []).append(row)
        return groups


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the file, for reading. BadInputError: it is no database."""
    with tempfile.TemporaryDirectory(prefix="rvchat-import-") as folder:
        copy = Path(folder) / "log.db"
        shutil.copyfile(path, copy)
        log = path.with_name(f"{path.name}-wal")
        if log.is_file():
            shutil.copyfile(log, copy.with_name("log.db-wal"))
        db = sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            yield db
        except sqlite3.Error as error:
            raise BadInputError(f"this database cannot be read: {error}") from error
        finally:
            db.close()


def read(path: Path) -> Iterator[Draft | tuple[str, str]]:
    """Conversations, and (id, reason) of those that cannot be read. BadInputError: not a log of llm."""
    with opened(path) as db:
        log = Log(db)
        if not (log.has("threads", "messages", "parts") or log.has("conversations", "responses")):
            raise BadInputError("this database is no log of llm")
        yield from _Threads(log).drafts()
        yield from _Responses(log).drafts()


class _Threads:
    """The new generation: messages are kept once, by hash, and threads are tips among them."""

    def __init__(self, log: Log) -> None:
        self._threads = {string(row["id"]): row for row in log.rows("threads")}
        self._messages = {string(row["hash"]): row for row in log.rows("messages")}
        self._parts = log.grouped("parts", "message_hash")
        self._turns = log.grouped("turns", "thread_id")
        self._fragments = {row["id"]: string(row.get("content")) for row in log.rows("fragments")}
        self._attachments = {row["id"]: row for row in log.rows("attachments")}

    def drafts(self) -> Iterator[Draft | tuple[str, str]]:
        families = self._families()
        for name, thread in self._threads.items():
            try:
                yield self._draft(name, thread, families[name])
            except NotAConversationError as error:
                yield name, str(error)

    def _families(self) -> dict[str, list[str]]:
        """For each thread all that are forks of one another, itself among them."""
        near: dict[str, list[str]] = {name: [] for name in self._threads}
        for name, thread in self._threads.items():
            source = string(thread.get("forked_from"))
            if source in near:
                near[name].append(source)
                near[source].append(name)
        families: dict[str, list[str]] = {}
        for name in near:
            if name not in families:
                family = families[name] = [name]
                for member in family:  # grows while it is walked
                    for other in near[member]:
                        if other not in families:
                            families[other] = family
                            family.append(other)
        return families

    def _draft(self, name: str, thread: Row, family: list[str]) -> Draft:
        tip = string(thread.get("tip_message_hash"))
        turns = sorted(self._turns.get(name, []), key=lambda turn: string(turn.get("id")))
        dates = [date for turn in turns if (date := iso(turn.get("datetime_utc"))) is not None]
        draft = Draft(
            "llm",
            id=name,
            title=string(thread.get("name")),
            created=min(dates, default=iso(thread.get("datetime_utc"))),
            model=string(turns[-1].get("model")) if turns else None,
            leaf=tip,
            forked_from=string(thread.get("forked_from")),
        )
        ends = [tip]  # the thread's own branch first, so that the others are its alternatives
        by_hash: dict[str, Row] = {}
        for member in [name, *(other for other in family if other != name)]:
            ends.append(string(self._threads[member].get("tip_message_hash")))
            for turn in self._turns.get(member, []):
                end = string(turn.get("tip_message_hash"))
                ends.append(end)
                by_hash.setdefault(end, turn)
                by_hash.setdefault(string(turn.get("parent_message_hash")), turn)
        seen: set[str] = set()
        for end in ends:
            chain: list[Node] = []
            at = end
            while at in self._messages and at not in seen:
                seen.add(at)
                chain.append(self._node(at, by_hash.get(at, {})))
                at = string(self._messages[at].get("parent_hash"))
            draft.nodes.extend(reversed(chain))
            if draft.system is None:
                draft.system = joined(self._text(node.id) for node in reversed(chain) if node.dropped) or None
        return draft

    def _text(self, hash: str) -> str:
        return joined(self._text_of(part) for part in self._parts_of(hash) if part.get("type") == "text")

    def _parts_of(self, hash: str) -> list[Row]:
        return sorted(self._parts.get(hash, []), key=lambda part: whole(part.get("position")))

    def _text_of(self, part: Row) -> str:
        if text := string(part.get("text")):
            return text
        pieces = mappings(_payload(part).get("text_ref"))
        return "".join(
            string(piece["literal"]) if "literal" in piece else self._fragments.get(whole(piece.get("fragment")), "")
            for piece in pieces
        )

    def _node(self, hash: str, turn: Row) -> Node:
        message = self._messages[hash]
        role = string(message.get("role"))
        node = Node(hash, string(message.get("parent_hash")) or None, _ROLES.get(role, "user"))
        node.created = iso(turn.get("datetime_utc"))
        if role not in _ROLES:
            if role != "system":
                raise NotAConversationError(f"a message has the role {role[:40] or 'none'}")
            node.dropped = True
            return node
        parts = self._parts_of(hash)
        results = [string(_payload(part).get("output")) for part in parts if part.get("type") == "tool_result"]
        node.text = joined((self._text(hash), *results))
        node.reasoning = joined(string(part.get("text")) for part in parts if part.get("type") == "reasoning")
        for part in parts:
            payload = _payload(part)
            if part.get("type") == "tool_call":
                name = payload.get("name") or part.get("tool_name")
                node.tool_calls.append(call(name, payload.get("arguments"), payload.get("tool_call_id")))
            elif part.get("type") == "attachment":
                found = self._attachments.get(mapping(payload.get("attachment")).get("id"), {})
                node.attachments.append(_attachment(found))
        if node.role == "assistant":
            node.model = string(turn.get("model")) or None
            node.stats = _stats(turn) if turn else None
        return node


class _Responses:
    """The old generation: a row for each prompt with its response."""

    def __init__(self, log: Log) -> None:
        known = {row["id"] for row in log.rows("turns")}
        rows = sorted(log.rows("responses"), key=lambda row: string(row.get("id")))
        self._moved = {row.get("conversation_id") for row in rows if row["id"] in known}
        self._responses: dict[Any, list[Row]] = {}
        for row in rows:
            if row["id"] not in known:
                self._responses.setdefault(row.get("conversation_id"), []).append(row)
        self._conversations = log.rows("conversations")
        self._calls = log.grouped("tool_calls", "response_id")
        self._results = log.grouped("tool_results", "response_id")
        self._fragments = {row["id"]: string(row.get("content")) for row in log.rows("fragments")}
        self._of_prompt = log.grouped("prompt_fragments", "response_id")
        self._of_system = log.grouped("system_fragments", "response_id")
        self._attachments = {row["id"]: row for row in log.rows("attachments")}
        self._attached = log.grouped("prompt_attachments", "response_id")

    def drafts(self) -> Iterator[Draft | tuple[str, str]]:
        names = set()
        for conversation in self._conversations:
            name = string(conversation["id"])
            names.add(name)
            if responses := self._responses.get(name, []):
                yield self._draft(name, string(conversation.get("name")), responses)
            elif name not in self._moved:
                yield name, "no messages"
        for name, responses in self._responses.items():
            if name not in names:
                for response in responses:
                    yield self._draft(string(response["id"]), "", [response])

    def _draft(self, name: str, title: str, responses: list[Row]) -> Draft:
        draft = Draft("llm", id=name, title=title, model=string(responses[-1].get("model")))
        for response in responses:
            if draft.system is None:
                fragments = self._pieces(self._of_system, response["id"])
                draft.system = joined((*fragments, string(response.get("system")))) or None
            for node in self._nodes(response):
                node.parent, node.created = draft.leaf, iso(response.get("datetime_utc"))
                draft.nodes.append(node)
                draft.leaf = node.id
        return draft

    def _nodes(self, response: Row) -> Iterator[Node]:
        name = string(response["id"])
        prompt = [*self._pieces(self._of_prompt, name), string(response.get("prompt"))]
        asked = Node(f"{name}:prompt", None, "user", "\n".join(text for text in prompt if text))
        for row in self._attached.get(name, []):
            asked.attachments.append(_attachment(self._attachments.get(row.get("attachment_id"), {})))
        if asked.is_kept:
            yield asked
        for row in self._results.get(name, []):
            yield Node(f"{name}:result:{row.get('id')}", None, "tool", string(row.get("output")))
        answer = Node(name, None, "assistant", string(response.get("response")), string(response.get("reasoning")))
        answer.tool_calls = [
            call(row.get("name"), row.get("arguments"), row.get("tool_call_id")) for row in self._calls.get(name, [])
        ]
        answer.model = string(response.get("model")) or None
        answer.stats = _stats(response)
        yield answer

    def _pieces(self, table: dict[Any, list[Row]], response: str) -> list[str]:
        rows = sorted(table.get(response, []), key=lambda row: whole(row.get("order")))
        return [self._fragments.get(row.get("fragment_id"), "") for row in rows]


def _payload(part: Row) -> Mapping[str, Any]:
    return mapping(parsed(string(part.get("payload"))))


def _attachment(row: Row) -> Attachment:
    sort = string(row.get("type"))
    kind = sort.split("/")[0]
    name = string(row.get("path")) or string(row.get("url")) or sort
    return Attachment(kind if kind in ("image", "audio", "video", "text") else "file", name)


def _stats(row: Row) -> Stats:
    return Stats(prompt_tokens=whole(row.get("input_tokens")), new_tokens=whole(row.get("output_tokens")))
