"""From a conversation to the ids an engine is asked to continue, and the reader of what it answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rvchat.session.model import Model
from rvchat.session.tree import first_words
from rvchat.text import OutputReader, fit, render
from rvchat.types import Message, Sampling

ANSWER_ROOM = 1024

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer is made from. `before` are the messages from the first to the question; `begun` is the answer
    so far where it is to go on."""

    before: tuple[Message, ...]
    system: str
    sampling: Sampling
    max_new_tokens: int | None
    thinking: bool
    begun: Message | None = None


@dataclass(frozen=True, slots=True)
class Prompted:
    """`ids` to continue; `left_out` did not fit. `begun_ids` are what the reader has to hear first where an answer goes
    on: the answer so far, or its thought so far."""

    ids: tuple[int, ...]
    in_reasoning: bool
    begun_ids: tuple[int, ...]
    left_out: tuple[Message, ...]


def ask(model: Model, asked: Asked) -> Prompted:
    """The prompt, with as many of the latest messages as leave room for an answer.

    Raises TooLongError where not even the last question fits."""
    told = _told(asked, tools=model.info.thinks)  # the formats in which a model can think are those that have tools
    room = min(asked.max_new_tokens or ANSWER_ROOM, max(1, model.info.context // 4))
    limit = model.info.context - room
    options: dict[str, Any] = {
        "format": model.info.format,
        "thinking": asked.thinking and model.info.thinks,
        "continue_final": asked.begun is not None,
    }
    fitted = fit([as_dict(m) for m in told], model.tokenizer, limit=limit, **options)
    prompt = render(fitted.messages, **options)
    begun = asked.begun
    written = "" if begun is None else begun.reasoning if prompt.opens_reasoning else begun.content
    return Prompted(
        ids=tuple(prompt.ids(model.tokenizer)),
        in_reasoning=prompt.opens_reasoning,
        begun_ids=tuple(model.tokenizer.encode(written)),
        left_out=tuple(told[index] for index in fitted.dropped),
    )


def reader_for(model: Model, prompt: Prompted) -> OutputReader:
    """A reader that has heard the answer so far, so that what follows joins it without a seam."""
    return OutputReader(
        model.tokenizer, in_reasoning=prompt.in_reasoning, stop=model.stop_texts, begun=prompt.begun_ids
    )


def as_dict(message: Message) -> dict[str, Any]:
    """A message as rvchat.text takes it."""
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    texts = [f"{attached.name}:\n{attached.text}" for attached in message.attachments if attached.text]
    if texts:
        told["content"] = "\n\n".join([message.content, *texts]).strip()
    if message.reasoning:
        told["reasoning"] = message.reasoning
    calls = [call for call in message.tool_calls if _TOOL_NAME.fullmatch(call.name)]
    if calls:
        told["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    results = [{"name": call.name, "response": call.result} for call in calls if call.result is not None]
    if results:
        told["tool_responses"] = results
    return told


def _told(asked: Asked, *, tools: bool) -> list[Message]:
    """The messages that the model is to see: none that say nothing, and without `tools` none of tools."""
    messages = [m for m in asked.before if m.content or m.attachments or (tools and (m.tool_calls or m.role == "tool"))]
    if not tools:
        messages = [replace(m, tool_calls=()) for m in messages if m.role != "tool"]
    if asked.system.strip():
        messages.insert(0, Message(id="", parent_id=None, role="system", content=asked.system, created=0.0))
    return messages if asked.begun is None else [*messages, asked.begun]


def left_out(messages: Sequence[Message]) -> str:
    """What is said when a conversation no longer fits."""
    first = first_words(messages[0].content)
    if len(messages) == 1:
        return f"The conversation no longer fits into the window: the model does not see “{first}”."
    last = first_words(messages[-1].content)
    return (
        f"The conversation no longer fits into the window: the model does not see {len(messages)} earlier messages, "
        f"from “{first}” to “{last}”."
    )
