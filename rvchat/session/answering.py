"""One answer: from the messages before it to the message that it becomes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rvchat.errors import BadInputError, EngineError
from rvchat.session.draft import Draft
from rvchat.session.failures import explain, memory_hint
from rvchat.session.model import Model
from rvchat.session.prompting import Asked, ask, reader_for
from rvchat.text import Delta, Reply
from rvchat.types import (
    Event,
    Message,
    MessageStatus,
    Notice,
    Prefill,
    Progress,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCall,
    ToolCalled,
)

log = logging.getLogger(__name__)

PROGRESS_S = 0.25

Emit = Callable[[Event], None]
LeftOut = Callable[[Sequence[Message]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The message as it ended, and for a failure what to say of it and whether what was asked is to blame."""

    answer: Message
    message: str = ""
    hint: str = ""
    bad_input: bool = False


class Answering:
    """An answer that was asked for. `make` runs on the engine thread; everything else is for any thread."""

    def __init__(self, conversation_id: str, answer: Message, asked: Asked) -> None:
        self.conversation_id = conversation_id
        self.id = answer.id
        self.draft = Draft(answer)
        self.cancel = threading.Event()
        self.done = threading.Event()
        self.running = False
        self.outcome: Outcome | None = None
        self._asked = asked

    def end(self, outcome: Outcome) -> bool:
        """Decides how it ends. False where that was decided before. Needs the session's lock, under which it is also
        decided that it begins: what has ended is never made."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        return True

    def stopped(self) -> Outcome:
        """How it ends when nothing more is made of it."""
        return Outcome(replace(self.draft.message(), status="stopped", finish="cancelled"))

    def failed(self, message: str, hint: str) -> Outcome:
        error = f"{message}. {hint}" if hint else message
        return Outcome(replace(self.draft.message(), status="failed", finish=None, error=error), message, hint)

    def make(self, model: Model, emit: Emit, left_out: LeftOut) -> Outcome:
        """Asks the engine and takes what comes. Whatever goes wrong becomes a failed answer, never an exception.

        `left_out` hears which messages the prompt does without, for want of room."""
        self.draft.made_by(model.info.name, self._asked.sampling)
        try:
            return self._make(model, emit, left_out)
        except Exception as error:
            log.warning("answer %s failed", self.id, exc_info=error)
            failed = self.failed(*explain(error, self.draft.message().stats))
            return replace(failed, bad_input=isinstance(error, BadInputError))

    def _make(self, model: Model, emit: Emit, left_out: LeftOut) -> Outcome:
        prompt = ask(model, self._asked)
        left_out(prompt.left_out)
        reader = reader_for(model, prompt)
        request = Request(
            ids=prompt.ids,
            sampling=self._asked.sampling,
            max_new_tokens=self._asked.max_new_tokens,
            stop_ids=model.stop_ids,
            cancel=self.cancel,
            on_prefill=lambda done, total: emit(Prefill(self.id, done, total)),
        )
        finish: str | None = None
        said = time.monotonic()
        chunks = model.generate(request)
        try:
            for chunk in chunks:
                self.draft.made(chunk.stats)
                self._take(reader.feed(chunk.ids), emit)
                finish = "loop" if reader.ended_by == "loop" else "stop" if reader.ended_by else chunk.finish
                if finish is not None:
                    break
                if time.monotonic() - said >= PROGRESS_S:
                    said = time.monotonic()
                    emit(Progress(self.id, chunk.stats))
        finally:
            chunks.close()
            self._take(_kept(reader.finish(), whole=finish == "stop"), emit)
        if finish is None:
            raise EngineError("The engine ended the answer without saying why")
        if remark := self._remark(finish):
            emit(Notice(remark))
        status: MessageStatus = "stopped" if finish == "cancelled" else "complete"
        return Outcome(replace(self.draft.message(), status=status, finish=finish))

    def _take(self, deltas: Iterable[Delta], emit: Emit) -> None:
        for delta in deltas:
            if delta.kind == "answer":
                self.draft.answer(delta.text)
                emit(TextDelta(self.id, delta.text))
            elif delta.kind == "reasoning":
                self.draft.reasoning(delta.text)
                emit(ReasoningDelta(self.id, delta.text))
            elif delta.call is not None:
                self.draft.call(delta.call)
                emit(ToolCalled(self.id, delta.call))

    def _remark(self, finish: str) -> str:
        """What else is to be said of this end."""
        if finish == "loop":
            return "The answer went round in circles and was ended."
        if finish == "memory":
            return f"The memory for the conversation is full. {memory_hint(self.draft.message().stats)}"
        return ""


def _kept(reply: Reply, whole: bool) -> list[Delta]:
    """What the reader had held back. Of an answer that is not `whole`, half a character is left out: it would stand
    as a sign of its own in the middle of what is continued. A call that could not be read is kept as it was written."""
    deltas = [Delta("tool_call", text, ToolCall("", {}, raw=text)) for text in reply.unread]
    for delta in reply.held:
        text = delta.text if whole or delta.kind == "tool_call" else delta.text.rstrip("\ufffd").rstrip()
        if text:
            deltas.append(replace(delta, text=text))
    return deltas
