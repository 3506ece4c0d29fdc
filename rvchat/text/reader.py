"""What the model says, as it says it: answer, reasoning and tool calls, told apart by control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rvchat.text import control
from rvchat.text.calls import CallBody, MalformedCallError
from rvchat.text.loops import LoopGuard, LoopWatch
from rvchat.text.segments import AnswerText, ReasoningText
from rvchat.text.tokenizer import Tokenizer
from rvchat.types import ToolCall

Kind = Literal["answer", "reasoning", "tool_call"]

_ENDS = frozenset((control.EOS, control.TURN_END, control.RESPONSE, control.TURN_END_3))
_NEW_TURNS = frozenset((control.TURN, control.TURN_3))


@dataclass(frozen=True, slots=True)
class Delta:
    """Something new to show, never taken back. A tool call comes once it is whole: `call`, and in `text` how the model
    wrote it."""

    kind: Kind
    text: str
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole of what was said.

    `content` is trimmed, and so are the thoughts: `reasoning` are those that are not empty, a blank line between.
    `ended_by` is the control token or the stop string that ended it, "loop", or None where it just stops. `errors`, in
    order: "unclosed_reasoning", "unclosed_tool_call" (the call is whole, only its end is missing),
    "incomplete_tool_call" and "bad_tool_call" (no call was read; `unread` has what was written), "unexpected_turn".
    `held` is what was still held back when the reading ended, and was not in any delta before.
    """

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    ended_by: str | None
    errors: list[str]
    unread: list[str] = field(default_factory=list)
    held: list[Delta] = field(default_factory=list)


class OutputReader:
    """Reads one answer. `feed` takes token ids, by which alone it tells a control token from text that spells one;
    `feed_text` takes text in which control tokens that are written out count as such.

    `in_reasoning`: the prompt ended inside a thought. `stop`: texts that end the answer and are not part of it.
    `loops`: when repetition ends it; None never. `begun`: what the answer goes on from. What follows joins it without a
    seam; it is in the reply and in no delta, and is no part of a loop: one asks for more of an answer that was one.

    However the output is cut, the reply is the same. The deltas of a kind, joined, are the reply's; blanks that may
    turn out to be its end are held back. After the end nothing more is read.
    """

    def __init__(
        self,
        tok: Tokenizer,
        in_reasoning: bool = False,
        stop: Sequence[str] = (),
        *,
        loops: LoopGuard | None = LoopGuard(),  # noqa: B008 - a frozen value
        begun: Iterable[int] = (),
    ) -> None:
        self._tok = tok
        self._stream = tok.stream()
        self._answer = AnswerText(stop)
        self._reasoning = ReasoningText()
        self._call: CallBody | None = None
        self._loops: LoopWatch | None = None
        self._written = ""  # the beginning of what may become a control token, when reading text
        self._deltas: list[Delta] = []
        self._calls: list[ToolCall] = []
        self._errors: list[str] = []
        self._unread: list[str] = []
        self._ended_by: str | None = None
        self._reply: Reply | None = None
        if in_reasoning:
            self._reasoning.open(labelled=False)
        self.feed(begun)
        self._loops = LoopWatch(loops) if loops else None

    @property
    def ended_by(self) -> str | None:
        """What ended the answer; None while it goes on."""
        return self._ended_by

    def feed(self, ids: Iterable[int]) -> list[Delta]:
        """Reads the next token ids and returns what they add."""
        self._text(self._take_written())
        run: list[int] = []
        for number in ids:
            if self._done:
                break
            name = self._tok.control_name(number)
            if name is None:
                run.append(number)
                continue
            self._text(self._stream.feed(run) + self._stream.finish())
            run.clear()
            self._control(name)
        self._text(self._stream.feed(run))
        return self._take_deltas()

    def feed_text(self, text: str) -> list[Delta]:
        """Reads the next text and returns what it adds."""
        self._text(self._stream.finish())
        text = self._take_written() + text
        at = 0
        for found in self._markers.finditer(text):
            self._text(text[at : found.start()])
            self._control(found[0])
            at = found.end()
        rest = text[at:]
        start = rest.rfind("<")
        if start >= 0 and rest[start:] in self._marker_starts:
            rest, self._written = rest[:start], rest[start:]
        self._text(rest)
        return self._take_deltas()

    def finish(self) -> Reply:
        """The output has ended. Can be asked again."""
        if self._reply is None:
            self._text(self._take_written() + self._stream.finish())
            self._close()
            self._reply = Reply(
                self._answer.content,
                self._reasoning.content,
                self._calls,
                self._ended_by,
                self._errors,
                self._unread,
                self._take_deltas(),
            )
        return self._reply

    @property
    def _done(self) -> bool:
        return self._ended_by is not None or self._reply is not None

    def _text(self, text: str) -> None:
        if not text or self._done:
            return
        looped = False
        if self._loops:
            text, looped = self._loops.take(text)
        if self._call is not None:
            self._call.text(text)
        elif self._reasoning.is_open:
            self._show("reasoning", self._reasoning.feed(text))
        else:
            self._show("answer", self._answer.feed(text))
            if self._answer.stopped_by is not None:
                self._end(self._answer.stopped_by)
        if looped and not self._done:
            self._end("loop")

    def _control(self, name: str) -> None:
        if self._done:
            return
        if name in _ENDS:
            self._end(name)
        elif name in _NEW_TURNS:
            self._end(name)
            self._errors.append("unexpected_turn")
        elif name == control.THOUGHT:
            self._close(thought_goes_on=True)
            self._reasoning.open()
        elif name == control.CALL:
            self._close()
            self._call = CallBody()
        elif name == control.THOUGHT_END:
            if self._call is None:
                self._show("reasoning", self._reasoning.close())
        elif name == control.CALL_END:
            if self._call is not None:
                self._read_call(self._call, whole=True)
        elif self._call is not None:
            if name == control.QUOTE:
                self._call.quote()
            else:
                self._call.text(name)
        if self._loops and not self._done and self._loops.take(name)[1]:
            self._end("loop")

    def _end(self, reason: str) -> None:
        self._close()
        self._ended_by = reason

    def _close(self, thought_goes_on: bool = False) -> None:
        """Whatever is open ends here, although its own end was not seen."""
        if self._call is not None:
            self._read_call(self._call, whole=False)
        if self._reasoning.is_open:
            if not thought_goes_on:
                self._errors.append("unclosed_reasoning")
            self._show("reasoning", self._reasoning.close(cut_off=not thought_goes_on))
        self._show("answer", self._answer.release())

    def _read_call(self, body: CallBody, *, whole: bool) -> None:
        self._call = None
        try:
            calls = body.calls()
        except MalformedCallError:
            self._errors.append("bad_tool_call" if whole else "incomplete_tool_call")
            self._unread.append(body.written)
            return
        if not whole:
            self._errors.append("unclosed_tool_call")
        self._calls += calls
        self._deltas += [Delta("tool_call", body.written, call) for call in calls]

    def _show(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if self._deltas and self._deltas[-1].kind == kind:
            text = self._deltas.pop().text + text
        self._deltas.append(Delta(kind, text))

    def _take_deltas(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _take_written(self) -> str:
        written, self._written = self._written, ""
        return written

    @cached_property
    def _marker_names(self) -> list[str]:
        return [name for name in self._tok.control if name.startswith("<") and not name.startswith("<unused")]

    @cached_property
    def _markers(self) -> re.Pattern[str]:
        names = sorted(self._marker_names, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    @cached_property
    def _marker_starts(self) -> frozenset[str]:
        return frozenset(name[:size] for name in self._marker_names for size in range(1, len(name)))
