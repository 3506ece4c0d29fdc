"""Which messages are told to the model when the conversation has outgrown the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rvchat.errors import BadInputError
from rvchat.text.formats import render
from rvchat.text.messages import Messages
from rvchat.text.tokenizer import Tokenizer

# When something must go, a quarter of the limit is freed at once: the same turns then stay away, and the ids the same,
# until the conversation has grown by that much again.
_SHARE = 4


class TooLongError(BadInputError):
    """What must be told to the model is longer than the limit. `tokens` and `limit` are in tokens."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"The newest message, with the system message, is {tokens:,} tokens long; there is room for {limit:,}",
            "Shorten it, or choose a larger context.",
        )
        self.tokens, self.limit = tokens, limit


@dataclass(frozen=True, slots=True)
class Fitted:
    """`messages` that fit, the indices of those that were `dropped`, and the exact number of `tokens` of the prompt."""

    messages: list[Mapping[str, Any]]
    dropped: list[int]
    tokens: int


def fit(messages: Messages, tok: Tokenizer, *, limit: int, format: str, **render_options: Any) -> Fitted:
    """The messages whose prompt has at most `limit` tokens: all system messages, the newest turn, and of the others as
    many as fit, whole turns dropped from the oldest on. A turn is a user's message with everything up to the next.

    Raises TooLongError where the newest turn alone does not fit, and what `render` raises.
    """

    turns = _turns(messages)

    def kept(first: int) -> Fitted:
        dropped = [index for turn in turns[:first] for index in turn]
        gone = set(dropped)
        rest = [message for index, message in enumerate(messages) if index not in gone]
        return Fitted(rest, dropped, len(render(rest, format=format, **render_options).ids(tok)))

    fitted = kept(0)
    if fitted.tokens > limit and len(turns) > 1:
        stride = max(1, limit // _SHARE)
        freed = -(-(fitted.tokens - limit) // stride) * stride
        target = fitted.tokens - freed
        first = bisect_left(range(len(turns) - 1), -target, key=lambda first: -kept(first).tokens)
        fitted = kept(first)
    if fitted.tokens > limit:
        raise TooLongError(fitted.tokens, limit)
    return fitted


def _turns(messages: Messages) -> list[list[int]]:
    """The indices of each turn's messages, without those of the system."""
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer"):
            continue
        if not turns or (role == "user" and any(messages[other].get("role") == "user" for other in turns[-1])):
            turns.append([])
        turns[-1].append(index)
    return turns
