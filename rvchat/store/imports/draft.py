"""What a reader of another program's file finds, before it is known to make sense, and the conversation it becomes."""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rvchat.store.printable import one_line, text_of
from rvchat.store.rows import parents_first
from rvchat.store.values import LAST_MOMENT
from rvchat.types import Attachment, Conversation, Message, MessageStatus, Origin, Role, Sampling, Stats, ToolCall

_NAMESPACE = uuid.UUID("5f0d2f0e-3c35-4c3a-9d2d-6a1f7f6f3a52")


class NotAConversationError(ValueError):
    """One conversation of a file cannot be read; its text is the reason, in a few words."""


@dataclass(slots=True)
class Node:
    """One message as found. `parent` may name nothing, or lead in a circle; `dropped` keeps it out of the result."""

    id: str
    parent: str | None
    role: Role
    text: str = ""
    reasoning: str = ""
    reasoning_s: float | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    created: float | None = None
    model: str | None = None
    stats: Stats | None = None
    status: MessageStatus = "complete"
    error: str | None = None
    dropped: bool = False

    @property
    def is_kept(self) -> bool:
        return not self.dropped and bool(self.text or self.reasoning or self.tool_calls or self.attachments)


@dataclass(slots=True)
class Draft:
    """One conversation as found. `id` is the program's own, "" where it has none; `leaf` the message it was left at.

    `key` tells it from all others of that program where the id alone does not; where neither does
    (`same_by_content`), what was said decides.
    """

    program: str
    id: str = ""
    title: str | None = None
    created: float | None = None
    changed: float | None = None
    model: str | None = None
    system: str | None = None
    nodes: list[Node] = field(default_factory=list)
    leaf: str | None = None
    pinned: bool = False
    archived: bool = False
    folder: str = ""
    forked_from: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    key: str = ""
    same_by_content: bool = False

    def branch(self) -> list[Node]:
        """The kept nodes from the first to the leaf. NotAConversationError: nothing was said."""
        nodes = tree(self.nodes)
        by_id = {node.id: node for node in nodes}
        path: list[Node] = []
        at: str | None = self._leaf(nodes, nearest_kept(nodes))
        while at is not None:
            if by_id[at].is_kept:
                path.append(by_id[at])
            at = by_id[at].parent
        return path[::-1]

    def _leaf(self, nodes: list[Node], kept: Mapping[str, str | None]) -> str:
        leaf = kept.get(self.leaf or "") or newest_leaf(nodes)
        if leaf is None:
            raise NotAConversationError("no messages")
        return leaf

    def conversation(self, now: float) -> Conversation:
        """The conversation; `now` stands where the file has no date. NotAConversationError: nothing was said."""
        nodes = tree(self.nodes)
        kept = nearest_kept(nodes)
        leaf = self._leaf(nodes, kept)
        root = self._identity()
        dates = [node.created for node in nodes if node.created is not None]
        created = self.created if self.created is not None else min(dates, default=now)
        messages: dict[str, Message] = {}
        for node in nodes:
            if node.is_kept:
                parent = messages[up].id if (up := kept.get(node.parent or "")) else None
                before = messages[up].created if up else created
                messages[node.id] = _message(node, uuid.uuid5(root, text_of(node.id)).hex, parent, before)
        return Conversation(
            id=root.hex,
            title=one_line(self.title or "", 200),
            created=created,
            changed=max(created, *dates, self.changed or 0.0),
            messages=tuple(messages.values()),
            leaf_id=messages[leaf].id,
            pinned=self.pinned,
            model=self.model or None,
            system=self.system or "",
            sampling=self.sampling,
            origin=Origin(self.program, self.id, self.folder, self.archived, self.forked_from),
        )

    def _identity(self) -> uuid.UUID:
        """The same for the same conversation, whenever and from whichever file it is read."""
        key = self.key or self.id
        if key and not self.same_by_content:
            return uuid.uuid5(_NAMESPACE, text_of(f"{self.program}:{key}"))
        said = [
            [node.role, node.text, node.reasoning, [[call.name, call.arguments, call.raw] for call in node.tool_calls]]
            for node in self.nodes
        ]
        digest = hashlib.sha256(json.dumps([self.title, self.created, self.system, said]).encode()).hexdigest()
        return uuid.uuid5(_NAMESPACE, f"{self.program}:{digest}")


def _message(node: Node, message_id: str, parent_id: str | None, before: float) -> Message:
    return Message(
        id=message_id,
        parent_id=parent_id,
        role=node.role,
        content=node.text,
        created=before if node.created is None else node.created,
        reasoning=node.reasoning,
        reasoning_s=node.reasoning_s,
        tool_calls=tuple(node.tool_calls),
        status=node.status,
        error=node.error,
        model=node.model or None,
        stats=node.stats,
        attachments=tuple(node.attachments),
    )


# --- trees -----------------------------------------------------------------------------------------------------


def tree(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, parents before children, otherwise as given. A second node of the same id is left out, a parent
    that is not there becomes none, and a circle is cut at the first of its nodes that is met."""
    by_id: dict[str, Node] = {}
    for node in nodes:
        by_id.setdefault(node.id, node)
    leads_up: set[str] = set()
    for node in by_id.values():
        path: set[str] = set()
        at = node
        while at.id not in leads_up:
            path.add(at.id)
            if at.parent not in by_id or at.parent in path:
                at.parent = None
                break
            at = by_id[at.parent]
        leads_up |= path
    return parents_first((node.id, node.parent, node) for node in by_id.values())


def nearest_kept(nodes: Iterable[Node]) -> dict[str, str | None]:
    """For each node of a `tree` itself or its nearest ancestor that is kept."""
    found: dict[str, str | None] = {}
    for node in nodes:
        found[node.id] = node.id if node.is_kept else found.get(node.parent or "")
    return found


def newest_leaf(nodes: Iterable[Node]) -> str | None:
    """The kept node of a `tree` without kept descendants that has the latest date, or is the last. None: none is."""
    leaves: dict[str, Node] = {}
    kept: dict[str, str | None] = {}
    for node in nodes:
        above = kept.get(node.parent or "")
        kept[node.id] = node.id if node.is_kept else above
        if node.is_kept:
            leaves.pop(above or "", None)
            leaves[node.id] = node
    return max(reversed(leaves.values()), key=lambda node: node.created or 0.0).id if leaves else None


# --- values ----------------------------------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in `value`; none if it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int:
    """A count, 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def seconds(value: Any, per_second: float = 1.0) -> float | None:
    """A moment from a number; None where it is no number or no moment of this era."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LAST_MOMENT * per_second:
        return None
    return value / per_second


def iso(value: Any) -> float | None:
    """A moment from ISO 8601, in UTC where it has no offset; None where it is none."""
    try:
        moment = datetime.datetime.fromisoformat(string(value))
        return seconds((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def joined(texts: Iterable[str]) -> str:
    """The texts that are not empty, with a blank line between them."""
    return "\n\n".join(text for text in texts if text)


def call(name: Any, arguments: Any, id: Any = "", result: str | None = None) -> ToolCall:
    """A tool call from arguments that may be an object, its JSON, or anything else as text."""
    raw = ""
    if isinstance(arguments, str):
        raw, arguments = arguments, parsed(arguments)
    if isinstance(arguments, dict):
        return ToolCall(string(name), arguments, "", string(id), result)
    return ToolCall(string(name), {}, raw or ("" if arguments is None else json.dumps(arguments)), string(id), result)


def parsed(text: str) -> Any:
    """What `text` says as JSON; None where it is none."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def without_think(text: str) -> tuple[str, str]:
    """Reasoning written out at the beginning of a text between <think> and </think>, and the text behind it."""
    start = len(text) - len(text.lstrip())
    if text.startswith("<think>", start) and (end := text.find("</think>", start)) > 0:
        return text[start + len("<think>") : end].strip(), text[end + len("</think>") :].strip()
    return "", text
