"""Gemma 4's chat format.

A turn is `<|turn>role`, a newline, the text, `<turn|>` and a newline; a thought stands between `<|channel>thought` and
`<channel|>`; calls and the answers of tools stay inside the model's turn, which goes on after them. The three large
models (12B, 26B-A4B, 31B) are told with an empty thought that they should not think; the two small ones (E2B, E4B) are
not. After Google's chat templates of 2026-07-09, with one defect left out: what the model said before it called a tool
stays before the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rvchat.text import control
from rvchat.text.gemma4_values import ValueWriter
from rvchat.text.messages import Call, Messages, Part, Said, check, refuse
from rvchat.text.prompt import Prompt, PromptWriter

STOPS = (control.EOS, control.TURN_END, control.RESPONSE)


@dataclass(frozen=True, slots=True)
class Options:
    tools: Sequence[Any] = ()
    thinking: bool = False
    add_generation_prompt: bool = True
    preserve_thinking: bool = False
    continue_final: bool = False


def render(messages: Messages, options: Options, *, large: bool) -> Prompt:
    return _Renderer(options, large).render(check(messages))


class _Renderer:
    def __init__(self, options: Options, large: bool) -> None:
        self.options, self.large = options, large
        self.out = PromptWriter()
        self.values = ValueWriter(self.out)

    def render(self, messages: list[Said]) -> Prompt:
        self.out.control(control.BOS)
        rest = self._head(messages)
        last_user = max((index for index, said in enumerate(rest) if said.role == "user"), default=-1)
        steps = _steps(rest, last_user, self.options.preserve_thinking)
        final = _answer(steps.pop() if steps else None) if self.options.continue_final else None
        state = "closed"  # or "called": calls wait for their answers; "answered": the model goes on after answers
        for index, step in enumerate(steps):
            following = steps[index + 1].role if index + 1 < len(steps) else final.role if final else None
            state = self._step(step, steps[index - 1].role if index else None, following)
        if final is not None:
            return self._continue(final, steps[-1].role if steps else None)
        if self.options.add_generation_prompt:
            if state == "closed":
                self._open("model")
                self._no_thought()
            elif state == "answered" and self.options.thinking:
                self._open_thought()
                return self.out.prompt(opens_reasoning=True)
        return self.out.prompt()

    def _head(self, messages: list[Said]) -> list[Said]:
        """The first system turn, which holds the switch for thinking and the tools; what it leaves is returned."""
        system = messages[0] if messages and messages[0].is_system else None
        if not (system or self.options.thinking or self.options.tools):
            return messages
        self._open("system")
        if self.options.thinking:
            self.out.control(control.THINK)
            self.out.text("\n")
        if system:
            for part in system.parts:
                if part.kind != "text":
                    raise refuse(system.where, f"the first system message cannot hold {part.kind}")
                # A list of parts is told apart by a space after each, content that is text by nothing.
                self.out.text(part.text.strip() + (" " if system.in_list else ""))
        for index, tool in enumerate(self.options.tools):
            self.out.control(control.TOOL)
            self.values.declaration(f"tools[{index}]", tool)
            self.out.control(control.TOOL_END)
        self._close()
        return messages[1:] if system else messages

    def _step(self, step: _Step, before: str | None, after: str | None) -> str:
        said, is_model = step.said, step.role == "assistant"
        if is_model and before == "assistant":
            self.out.cut()
        else:
            self._open("model" if is_model else step.role)
        if step.thought:
            self._open_thought()
            self.out.text(f"{step.thought}\n")
            self.out.control(control.THOUGHT_END)
        for call in said.calls:
            self._call(call)
        answered = self._responses(step)
        has_content = self._content(said.parts, is_model)
        if said.calls and not answered:
            self.out.control(control.RESPONSE)
            return "called"
        goes_on = is_model and after == "assistant"
        waits = answered and not has_content and after is None
        if not (goes_on or waits):
            self._close()
        return "answered" if waits else "closed"

    def _continue(self, final: _Step, before: str | None) -> Prompt:
        """The last message again, left open at its very end."""
        said = final.said
        text = "".join(_without_thoughts(part.text) for part in said.parts if part.kind == "text").lstrip()
        if before == "assistant":
            self.out.cut()
        else:
            self._open("model")
        if said.reasoning:
            self._open_thought()
            self.out.text(said.reasoning)
            if not text:
                return self.out.prompt(opens_reasoning=True)
            self.out.text("\n")
            self.out.control(control.THOUGHT_END)
        elif before != "assistant":
            self._no_thought()
        self.out.text(text)
        return self.out.prompt()

    def _call(self, call: Call) -> None:
        self.out.control(control.CALL)
        self.out.text(f"call:{call.name}{{")
        self.values.entries(call.arguments)
        self.out.text("}")
        self.out.control(control.CALL_END)

    def _responses(self, step: _Step) -> bool:
        for response in step.said.responses:
            self._response(response.name, response.value)
        if step.said.responses:
            return True
        for tool in step.answers:
            called = [call.name for call in step.said.calls if call.id == tool.call_id]
            self._response(called[-1] if called else tool.name, tool.value)
            self._media(tool.parts)
        return bool(step.answers)

    def _response(self, name: str, value: Any) -> None:
        self.out.control(control.RESPONSE)
        self.out.text(f"response:{name}{{")
        self.values.entries(value if isinstance(value, Mapping) else {"value": value})
        self.out.text("}")
        self.out.control(control.RESPONSE_END)

    def _content(self, parts: tuple[Part, ...], is_model: bool) -> bool:
        has_content = False
        for part in parts:
            if part.kind == "text":
                text = (_without_thoughts(part.text) if is_model else part.text).strip()
                self.out.text(text)
                has_content = has_content or bool(text)
            else:
                self._media((part,))
                has_content = True
        return has_content

    def _media(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if part.kind != "text":
                self.out.media(part.kind, control.PLACEHOLDERS[part.kind])

    def _open(self, role: str) -> None:
        self.out.control(control.TURN)
        self.out.text(f"{role}\n")

    def _close(self) -> None:
        self.out.control(control.TURN_END)
        self.out.text("\n")

    def _open_thought(self) -> None:
        self.out.control(control.THOUGHT)
        self.out.text(f"{control.THOUGHT_LABEL}\n")

    def _no_thought(self) -> None:
        if self.large and not self.options.thinking:
            self._open_thought()
            self.out.control(control.THOUGHT_END)


@dataclass(frozen=True, slots=True)
class _Step:
    """A message with what belongs to it: the thought that is still to be told, and the messages of tools after it."""

    said: Said
    thought: str = ""
    answers: tuple[Said, ...] = ()

    @property
    def role(self) -> str:
        return self.said.role


def _answer(step: _Step | None) -> _Step:
    """`step`, which is to be continued."""
    if step is None:
        raise refuse("messages[-1]", "there is no answer to continue")
    if step.role != "assistant" or step.said.calls or step.said.responses:
        raise refuse(step.said.where, "only an answer without tool calls can be continued")
    return step


def _steps(messages: list[Said], last_user: int, preserve_thinking: bool) -> list[_Step]:
    """`messages` without those of tools, which go to the calls before them; one that answers no call is dropped.

    Thoughts are told again only until the user speaks next, or, with `preserve_thinking`, where they led to a call.
    """
    steps: list[_Step] = []
    for index, said in enumerate(messages):
        if said.role == "tool":
            continue
        thought = said.reasoning if index > last_user or (preserve_thinking and said.calls) else ""
        end = index + 1
        while said.calls and end < len(messages) and messages[end].role == "tool":
            end += 1
        answers = tuple(messages[index + 1 : end])
        if said.calls and _has_content(said):
            steps.append(_Step(replace(said, calls=(), responses=()), thought))
            steps.append(_Step(replace(said, parts=()), "", answers))
        else:
            steps.append(_Step(said, thought, answers))
    return steps


def _has_content(said: Said) -> bool:
    return any(part.kind != "text" or _without_thoughts(part.text).strip() for part in said.parts)


def _without_thoughts(text: str) -> str:
    """`text` without the thoughts that are written out in it; one that never closes takes the rest along."""
    return "".join(part.partition(control.THOUGHT)[0] for part in text.split(control.THOUGHT_END))
