"""Values that every room shares: what the engine is asked and answers, what a conversation is, what happens in it.

All are frozen. Nothing here imports another room, jax, Textual or SQLite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# --- what the engine is asked, and what it answers -------------------------------------------------------------

FinishReason = Literal["stop", "length", "context", "memory", "cancelled"]

LONGEST_ANSWER = 1 << 30
"""Tokens that may be asked for: more than any context has, and a number that files can hold."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 takes the likeliest; `top_k` 0, `top_p` 1, `min_p` 0 and
    `repetition_penalty` 1 switch that filter off. `seed` None draws a fresh one for each answer."""

    temperature: float = 1.0
    top_k: int = 64
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_k", self.top_k, 0, 1 << 30),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
        ):
            if not low <= value <= high:  # also false for NaN
                raise ValueError(f"{name} is {value}; it must be between {low} and {high}")


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids to continue. `stop_ids` empty means none: whoever asks passes the model's.

    `max_new_tokens` None goes on until a stop id or the end of the context. `cancel`, when set by any thread, ends
    the answer between two calls to the device. `on_prefill(done, total)` hears how far reading the prompt is.
    """

    ids: Sequence[int]
    sampling: Sampling = Sampling()
    max_new_tokens: int | None = None
    stop_ids: Sequence[int] = ()
    cancel: threading.Event | None = field(default=None, compare=False)
    on_prefill: Callable[[int, int], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stats:
    """What an answer cost so far. Tokens are counted, times are seconds.

    `reused_tokens` of the prompt were not read again. `ttft_s` is from the request to the first token; `prefill_s`
    and `decode_s` are the time spent reading the prompt and making tokens.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, None before there are two tokens to time."""
        return (self.new_tokens - 1) / self.decode_s if self.new_tokens > 1 and self.decode_s > 0 else None


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New ids, and why the answer ended if it did. A stop id is not in `ids`."""

    ids: tuple[int, ...]
    finish: FinishReason | None
    stats: Stats


# --- a conversation --------------------------------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]
MessageStatus = Literal["streaming", "complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model wrote. rvchat shows it and runs none.

    What another program's conversation adds: `raw`, the arguments as written where they are no JSON object (`arguments`
    is then empty), the call's `id`, and its `result` where that is kept with the call rather than in a message of role
    tool."""

    name: str
    arguments: dict[str, Any]
    raw: str = ""
    id: str = ""
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something sent with a message in another program. Its `name` is shown and never opened, whether it is a file's
    name or an address; `kind` is image, audio, video, text or file; `text` is what the program had read from it."""

    kind: str
    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an imported conversation comes from: the program, and what only that program knows about it."""

    program: str
    id: str = ""
    folder: str = ""
    archived: bool = False
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the tree. Times are seconds since the epoch; `parent_id` None is a first message.

    `finish` says why an answer ended; `model` and `sampling` are what made it. A failed answer says why in `error`.
    """

    id: str
    parent_id: str | None
    role: Role
    content: str
    created: float
    reasoning: str = ""
    reasoning_s: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    status: MessageStatus = "complete"
    finish: str | None = None
    error: str | None = None
    model: str | None = None
    sampling: Sampling | None = None
    stats: Stats | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A tree of messages seen from one leaf. `messages` holds the whole tree, parents before children."""

    id: str
    title: str
    created: float
    changed: float
    messages: tuple[Message, ...] = ()
    leaf_id: str | None = None
    pinned: bool = False
    model: str | None = None
    system: str = ""
    sampling: Sampling = Sampling()
    max_new_tokens: int | None = None
    thinking: bool = False
    deleted: float | None = None
    origin: Origin | None = None

    def branch(self) -> tuple[Message, ...]:
        """The messages from the first to the active leaf, as the reader sees them."""
        by_id = {m.id: m for m in self.messages}
        path: list[Message] = []
        at = self.leaf_id
        while at is not None and at in by_id:
            path.append(by_id.pop(at))  # popping survives a cycle in an imported file
            at = path[-1].parent_id
        return tuple(reversed(path))

    def siblings(self, message_id: str) -> tuple[Message, ...]:
        """The alternatives at the place of `message_id`, itself among them, oldest first."""
        parent = next(m.parent_id for m in self.messages if m.id == message_id)
        return tuple(m for m in self.messages if m.parent_id == parent)


# --- what happens ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is loaded, in words for the screen. `chats` is false for a pretrained model, which continues a
    plain transcript. `context` is in tokens. `memory`: bytes of the device's memory that it holds, 0 where there is
    none to speak of."""

    name: str
    weights: str
    format: str
    context: int
    chats: bool
    thinks: bool
    notice: str = ""
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Loading:
    """A stage of loading a model: read, quantise, place, compile. `fraction` is 0 to 1, None where it is not known.
    `model`: the name that is being loaded."""

    stage: str
    fraction: float | None
    model: str = ""


@dataclass(frozen=True, slots=True)
class ModelReady:
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Loading ended without a model. `cancelled` when the user asked for that."""

    message: str
    hint: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Unloaded:
    """There is no model any more, because the user asked for that; its memory is free."""


@dataclass(frozen=True, slots=True)
class Queued:
    """An answer was asked for: `answer` is its message, still empty, already on disk."""

    conversation_id: str
    answer: Message


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens have been read."""

    answer_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    answer_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    answer_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    answer_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Progress:
    """Statistics while an answer streams, a few times a second."""

    answer_id: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer ended, by itself or stopped: `answer` is the whole message as it is on disk."""

    conversation_id: str
    answer: Message


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ended in an error; what was said before it is kept in `answer`. `bad_input`: the fault is in what was
    asked, such as a question longer than the context."""

    conversation_id: str
    answer: Message
    message: str
    hint: str
    bad_input: bool = False


@dataclass(frozen=True, slots=True)
class Titled:
    conversation_id: str
    title: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know that stops nothing: messages left out, history kept in memory only."""

    text: str


Event = (
    Loading
    | ModelReady
    | LoadFailed
    | Unloaded
    | Queued
    | Prefill
    | ReasoningDelta
    | TextDelta
    | ToolCalled
    | Progress
    | Finished
    | Failed
    | Titled
    | Notice
)
