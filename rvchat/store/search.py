"""From what a user types to a full-text query, and from a match to a snippet that is text and nothing else."""

from __future__ import annotations

import re
import secrets
import sqlite3
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from rvchat.store.printable import one_line, printable, text_of

SNIPPET_TOKENS = 16
LONGEST = 400  # characters of a search that are looked at
# Thai to Khmer, kana, Chinese characters, and Korean, whose words run into what follows them.
_NO_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One line of text around a match. `marks` are the ranges `[start, end)` of it that matched."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where a search matched: a message, or the title where `message_id` is None. `name` is the
    conversation's title, empty where it has none; `created` is when this was said, in seconds since the epoch."""

    conversation_id: str
    message_id: str | None
    name: str
    role: str | None
    created: float
    snippet: Snippet


def search(db: sqlite3.Connection, text: str, limit: int) -> list[Hit]:
    """Titles first, then messages, best match first; where no word matches, places that have `text` itself."""
    text = _typed(text)
    query = match_query(text)
    found = _by_words(db, query, limit) if query else []
    if text and _runs_on(text):
        known = {(hit.conversation_id, hit.message_id) for hit in found}
        more = (hit for hit in _by_text(db, text.split(), limit) if (hit.conversation_id, hit.message_id) not in known)
        found = sorted([*found, *more][:limit], key=lambda hit: hit.message_id is not None)
    return found or (_by_text(db, [text], limit) if text else [])


def matching(db: sqlite3.Connection, text: str) -> list[int]:
    """`seq` of the conversations where `search` would find something."""
    text = _typed(text)
    query = match_query(text)
    found: list[tuple[int]] = []
    if text and _runs_on(text):
        found = _having(db, text.split())
    if query:
        found += db.execute(
            """
            SELECT rowid FROM title_fts WHERE title_fts MATCH ?1 UNION
            SELECT conversation FROM message_fts JOIN message ON seq = message_fts.rowid WHERE message_fts MATCH ?1
            """,
            (query,),
        ).fetchall()
    if text and not found:
        found = _having(db, [text])
    return list({seq for (seq,) in found})


def _having(db: sqlite3.Connection, texts: Sequence[str]) -> list[tuple[int]]:
    return db.execute(
        f"""
        SELECT seq FROM conversation WHERE {_all("title", texts)} UNION
        SELECT conversation FROM message WHERE {_all("content", texts)} AND status <> 'streaming'
        """,
        [*map(_like, texts)],
    ).fetchall()


def _typed(text: str) -> str:
    return text_of(printable(text[:LONGEST])).strip()


def match_query(text: str) -> str | None:
    """The FTS5 query for all words of `text`, the last one as a beginning. None: nothing in it is a word.

    Every word is quoted, so that nothing a user types is syntax.
    """
    words = ['"' + word.replace('"', '""') + '"' for word in text.split() if any(map(_in_word, word))]
    return " ".join(words) + "*" if words else None


def _in_word(character: str) -> bool:
    """Whether the tokenizer unicode61 takes `character` for a part of a word."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"


def _runs_on(text: str) -> bool:
    """Whether it has letters of a script that puts no blanks between words: the tokenizer takes what stands together
    for one word, of which it finds the beginning alone."""
    return _NO_BLANKS.search(text) is not None


def _by_words(db: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    # Unguessable marks: a message that holds them cannot be made up.
    start, end = (f"\x02{secrets.token_hex(8)}\x03" for _ in range(2))
    titles = db.execute(
        """
        SELECT c.id, NULL, c.title, NULL, c.created, highlight(title_fts, 0, ?, ?)
        FROM title_fts JOIN conversation c ON c.seq = title_fts.rowid
        WHERE title_fts MATCH ? AND c.deleted IS NULL ORDER BY rank LIMIT ?
        """,
        (start, end, query, limit),
    ).fetchall()
    messages = db.execute(
        f"""
        SELECT c.id, m.id, c.title, m.role, m.created, snippet(message_fts, 0, ?, ?, '…', {SNIPPET_TOKENS})
        FROM message_fts JOIN message m ON m.seq = message_fts.rowid JOIN conversation c ON c.seq = m.conversation
        WHERE message_fts MATCH ? AND c.deleted IS NULL ORDER BY rank LIMIT ?
        """,
        (start, end, query, limit),
    ).fetchall()
    titles = titles[: max(limit // 2, limit - len(messages))]  # many titles leave room for messages
    messages = messages[: limit - len(titles)]
    return [_hit(row, snippet_of(row[5], start, end)) for row in titles + messages]


def _by_text(db: sqlite3.Connection, texts: Sequence[str], limit: int) -> list[Hit]:
    """Places that have all of `texts`."""
    last = f"?{len(texts) + 1}"
    found = db.execute(
        f"""
        SELECT * FROM (
            SELECT c.id, NULL, c.title, NULL, c.created, c.title AS content FROM conversation c
            WHERE c.deleted IS NULL AND {_all("c.title", texts)} ORDER BY c.changed DESC LIMIT {last})
        UNION ALL SELECT * FROM (
            SELECT c.id, m.id, c.title, m.role, m.created, m.content
            FROM message m JOIN conversation c ON c.seq = m.conversation
            WHERE c.deleted IS NULL AND m.status <> 'streaming' AND {_all("m.content", texts)}
            ORDER BY m.seq DESC LIMIT {last})
        LIMIT {last}
        """,
        [*map(_like, texts), limit],
    ).fetchall()
    return [_hit(row, snippet_around(row[5], texts[0])) for row in found]


def _all(column: str, texts: Sequence[str]) -> str:
    """The condition that `column` has all of `texts`, which are the first parameters."""
    return " AND ".join(f"{column} LIKE ?{number} ESCAPE '\\'" for number in range(1, len(texts) + 1))


def _like(text: str) -> str:
    return "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"


def _hit(row: tuple[str, str | None, str, str | None, float, str], snippet: Snippet) -> Hit:
    return Hit(row[0], row[1], one_line(row[2]), row[3], row[4], snippet)


def snippet_of(marked: str, start: str, end: str) -> Snippet:
    """What FTS5 gave with these marks, on one line and without control characters."""
    text: list[str] = []
    marks: list[tuple[int, int]] = []
    length = 0
    for index, piece in enumerate(marked.split(start)):
        inside, _, outside = piece.partition(end) if index else ("", "", piece)
        for part, is_match in ((inside, True), (outside, False)):
            flat = _flat(part)
            if is_match and flat:
                marks.append((length, length + len(flat)))
            text.append(flat)
            length += len(flat)
    return Snippet("".join(text), tuple(marks))


def snippet_around(content: str, text: str, *, before: int = 40, after: int = 80) -> Snippet:
    """The first place where `text` stands in `content`, in any case, with a little of what is around it."""
    found = re.search(re.escape(text), content, re.IGNORECASE)
    if found is None:
        return Snippet(_flat(content[: before + after]))
    start, end = max(0, found.start() - before), found.end() + after
    left = _flat("…" * (start > 0) + content[start : found.start()])
    match = _flat(found[0])
    right = _flat(content[found.end() : end] + "…" * (end < len(content)))
    return Snippet(left + match + right, ((len(left), len(left) + len(match)),))


def _flat(text: str) -> str:
    return "".join(" " if character.isspace() else character for character in printable(text))
