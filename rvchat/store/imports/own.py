"""rvchat's own export, as `docs/export.schema.json` describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rvchat.errors import BadInputError
from rvchat.store.export.own import FORMAT, VERSION
from rvchat.store.imports.draft import Node, NotAConversationError, newest_leaf, tree
from rvchat.store.values import conversation_of
from rvchat.types import Conversation, Message

_ID = re.compile(r"[\w.:-]{1,200}")


def recognises(entry: Mapping[str, Any]) -> bool:
    return entry.get("format") == FORMAT


def entries(document: Mapping[str, Any]) -> list[Any]:
    """The conversations of a file, unread. BadInputError: a later format, or none."""
    version, found = document.get("version"), document.get("conversations")
    if not isinstance(version, int) or version > VERSION:
        raise BadInputError(f"this export has version {version}; version {VERSION} can be read", "Update rvchat")
    if not isinstance(found, list):
        raise BadInputError("this export has no list of conversations")
    return found


def read(entry: Mapping[str, Any]) -> Conversation:
    """The conversation as it was. An answer that was being written when it was exported is stopped."""
    try:
        conversation = conversation_of(entry)
    except ValueError as error:
        raise NotAConversationError(str(error)) from error
    for id in (conversation.id, *(message.id for message in conversation.messages)):
        if not _ID.fullmatch(id):
            raise NotAConversationError(f"{id[:40]!r} is no id")
    given: dict[str, Message] = {}
    for message in conversation.messages:
        given.setdefault(message.id, message)
    nodes = tree(Node(m.id, m.parent_id, m.role, m.content, created=m.created) for m in given.values())
    messages = tuple(
        replace(
            given[node.id],
            parent_id=node.parent,
            status="stopped" if given[node.id].status == "streaming" else given[node.id].status,
        )
        for node in nodes
    )
    leaf = conversation.leaf_id
    if leaf is not None and leaf not in given:
        leaf = newest_leaf(nodes)
    return replace(conversation, messages=messages, leaf_id=leaf)
