"""Changes to the tree of a conversation, as values."""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import replace

from rvchat.errors import BadInputError
from rvchat.store.printable import printable
from rvchat.types import Conversation, Message

TITLE_LENGTH = 60


def new_id() -> str:
    return secrets.token_hex(16)


def message(conversation: Conversation, message_id: str) -> Message:
    """The message of that id. Raises BadInputError where the conversation has none."""
    for candidate in reversed(conversation.messages):
        if candidate.id == message_id:
            return candidate
    raise BadInputError(f"there is no message {message_id} in the conversation {conversation.id}")


def has(conversation: Conversation, message_id: str) -> bool:
    return any(m.id == message_id for m in conversation.messages)


def appended(conversation: Conversation, *messages: Message) -> Conversation:
    """With these messages at the end of the tree, the last of them its leaf. One that was deleted is so no more."""
    return replace(
        conversation,
        deleted=None,
        messages=(*conversation.messages, *messages),
        leaf_id=messages[-1].id,
        changed=max(conversation.changed, messages[-1].created),
    )


def updated(conversation: Conversation, changed: Message) -> Conversation:
    """With the message of the same id replaced."""
    return replace(conversation, messages=tuple(changed if m.id == changed.id else m for m in conversation.messages))


def joined(conversation: Conversation, stored: Conversation, own: Set[str]) -> Conversation:
    """With the messages of `stored`, but for those in `own`, which are newer here. What is open stays open."""
    known = {m.id for m in conversation.messages}
    newer = {m.id: m for m in stored.messages if m.id not in own}
    messages = (
        *(newer.get(m.id, m) for m in conversation.messages),
        *(m for m in stored.messages if m.id not in known),
    )
    return replace(conversation, messages=messages, changed=max(conversation.changed, stored.changed))


def path_to(conversation: Conversation, message_id: str | None) -> tuple[Message, ...]:
    """The messages from the first to that one."""
    return replace(conversation, leaf_id=message_id).branch()


def children(conversation: Conversation, message_id: str) -> list[Message]:
    return [m for m in conversation.messages if m.parent_id == message_id]


def latest_leaf(conversation: Conversation, message_id: str) -> str:
    """The end of the branch that goes on from a message, by the newest child each time."""
    seen = {message_id}
    at = message_id
    while below := [m for m in children(conversation, at) if m.id not in seen]:
        at = below[-1].id
        seen.add(at)
    return at


def first_words(text: str) -> str:
    """A title out of the beginning of a text: its first words, on one line."""
    words = " ".join(printable(text).split())
    if len(words) <= TITLE_LENGTH:
        return words
    whole, _, _ = words[: TITLE_LENGTH + 1].rpartition(" ")
    return (whole if len(whole) > TITLE_LENGTH // 2 else words[:TITLE_LENGTH]) + "…"
