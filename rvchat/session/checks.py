"""What the session refuses, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rvchat.errors import BadInputError
from rvchat.session import tree
from rvchat.types import LONGEST_ANSWER, Conversation, Message

SETTINGS = frozenset({"title", "pinned", "system", "sampling", "max_new_tokens", "thinking"})


def settings(given: Mapping[str, Any]) -> None:
    """Raises BadInputError for what a conversation cannot be set to."""
    if unknown := set(given) - SETTINGS:
        raise BadInputError(f"a conversation has no {', '.join(sorted(unknown))}")
    longest = given.get("max_new_tokens")
    if longest is not None and not 1 <= longest <= LONGEST_ANSWER:
        raise BadInputError(f"the longest answer is {longest} tokens; it must be between 1 and {LONGEST_ANSWER}")


def question(text: str) -> None:
    if not text.strip():
        raise BadInputError("the question is empty")


def can_be_edited(old: Message) -> None:
    if old.role != "user":
        raise BadInputError(f"only a question can be edited, and this is a message of the {old.role}")


def can_be_made_again(old: Message) -> None:
    if old.role not in ("assistant", "user"):
        raise BadInputError(f"only an answer can be made again, and this is a message of the {old.role}")
    if old.role == "assistant" and old.parent_id is None:
        raise BadInputError("there is no question before this answer")


def can_go_on(conversation: Conversation, old: Message) -> None:
    """`old`: an answer that this session is not making."""
    if old.role != "assistant":
        raise BadInputError(f"only an answer can go on, and this is a message of the {old.role}")
    if old.status == "streaming":
        raise BadInputError(
            "another rvchat is writing this answer", "Wait until it is done, or stop it there; then go on here."
        )
    if old.tool_calls:
        raise BadInputError("an answer that asked for a tool cannot go on", "rvchat runs no tools.")
    if tree.children(conversation, old.id):
        raise BadInputError("the conversation has gone on from this answer", "Make it again instead.")
