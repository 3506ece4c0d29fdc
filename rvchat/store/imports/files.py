"""From a file or folder to the conversations in it."""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rvchat.errors import BadInputError
from rvchat.store.files import MAGIC
from rvchat.store.imports import chatgpt, claude, llm, lmstudio, openai, openwebui, own, sharegpt
from rvchat.store.imports.draft import Draft, NotAConversationError, string
from rvchat.types import Conversation

LARGEST = 1 << 29  # bytes of a file; as values it takes several times as much memory


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation, and its id in the file. `program` is what wrote the file."""

    program: str
    id: str
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class Skipped:
    """A conversation that could not be read, and why. `id` is its own or its place in the file, from 1."""

    file: Path
    id: str
    reason: str


def read(path: Path, *, now: float | None = None) -> Iterator[Found | Skipped]:
    """What is in a file. `now` (seconds since the epoch) stands where there is no date.

    BadInputError: it cannot be read, or holds no conversations in a form that is known; says why without the path.
    """
    now = time.time() if now is None else now
    try:
        if path.stat().st_size > LARGEST:
            raise BadInputError(f"it is larger than the {LARGEST >> 20} MiB that can be read")
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
        if start == MAGIC:
            for found in llm.read(path):
                yield _finished(path, found, now)
        elif start.startswith(b"PK\x03\x04"):
            raise BadInputError("it is a zip archive", "Unpack it, and import the conversations.json in it")
        else:
            yield from _read_json(path, now)
    except OSError as error:
        raise BadInputError(f"it cannot be read: {error.strerror or error}") from error


def _read_json(path: Path, now: float) -> Iterator[Found | Skipped]:
    is_ours, entries = _entries(_text(path))
    known = is_ours
    unknown: list[Skipped] = []
    for number, entry in entries:
        if isinstance(entry, str):
            unknown.append(Skipped(path, number, entry))
            continue
        name = next((id for key in ("conversation_id", "id", "uuid") if (id := string(entry.get(key)))), number)
        try:
            found = _conversation(path, number, entry, is_ours, now)
        except NotAConversationError as error:
            known = True
            yield Skipped(path, name, str(error))
        except RecursionError:
            unknown.append(Skipped(path, name, "nested too deeply"))
        else:
            known = known or found is not None
            if found is None:
                unknown.append(Skipped(path, name, "no conversation in a form that is known"))
            else:
                yield found
    if not known:
        raise BadInputError(unknown[0].reason if len(unknown) == 1 else "nothing in it is a conversation that is known")
    yield from unknown


def _text(path: Path) -> str:
    """The file as text. BadInputError: it is none."""
    data = path.read_bytes()
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise BadInputError(f"it is neither a database nor text in UTF-8 (byte {error.start})") from error


def _entries(text: str) -> tuple[bool, list[tuple[str, Mapping[str, Any] | str]]]:
    """Whether this is an export of rvchat, and its entries, each with its place from 1. An entry that is no object is
    the reason why. BadInputError: the file is not JSON."""
    try:
        document = _json(text)
    except ValueError as error:
        return False, _lines(text, f"it is not JSON: {error}")
    except RecursionError:
        return False, _lines(text, "its JSON is nested too deeply")
    is_ours = isinstance(document, dict) and own.recognises(document)
    if is_ours:
        document = own.entries(document)
    elif isinstance(document, list) and document and all(isinstance(m, dict) and "role" in m for m in document):
        document = [{"messages": document}]  # one conversation without anything around it
    found = document if isinstance(document, list) else [document]
    return is_ours, [
        (str(number), entry if isinstance(entry, dict) else "not an object") for number, entry in enumerate(found, 1)
    ]


def _lines(text: str, problem: str) -> list[tuple[str, Mapping[str, Any] | str]]:
    """JSON, an object a line. BadInputError: not a single line is; `problem` says what the whole is not."""
    found: list[tuple[str, Mapping[str, Any] | str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                entry = _json(line)
            except (ValueError, RecursionError):
                entry = None
            found.append((str(number), entry if isinstance(entry, dict) else "unreadable JSON line"))
    if not any(isinstance(entry, dict) for _, entry in found):
        raise BadInputError(problem)
    return found


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda _: None)


def _conversation(path: Path, number: str, entry: Mapping[str, Any], is_ours: bool, now: float) -> Found | None:
    """The conversation in one entry; None if no reader knows its shape."""
    if is_ours:
        conversation = own.read(entry)
        return Found("rvchat", conversation.id, conversation)
    if chatgpt.recognises(entry):
        draft = chatgpt.read(entry)
    elif claude.recognises(entry):
        draft = claude.read(entry)
    elif lmstudio.recognises(entry):
        draft = lmstudio.read(entry, path.name, _folder(path))
    elif openwebui.recognises(entry):
        draft = openwebui.read(entry)
    elif sharegpt.recognises(entry):
        draft = sharegpt.read(entry)
    elif openai.recognises(entry):
        draft = openai.read(entry, int(number))
    else:
        return None
    return Found(draft.program, draft.id, draft.conversation(now))


def _folder(path: Path) -> str:
    """LM Studio's groups are folders below its `conversations`."""
    parts = path.absolute().parent.parts
    if "conversations" not in parts:
        return ""
    return "/".join(parts[len(parts) - parts[::-1].index("conversations") :])


def _finished(path: Path, found: Draft | tuple[str, str], now: float) -> Found | Skipped:
    if isinstance(found, tuple):
        return Skipped(path, *found)
    try:
        return Found(found.program, found.id, found.conversation(now))
    except NotAConversationError as error:
        return Skipped(path, found.id, str(error))
