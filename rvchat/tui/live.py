"""Answers while they are made, put together from events alone, so that no piece is shown twice or missed."""

from __future__ import annotations

from dataclasses import replace

from rvchat.types import Event, Failed, Finished, Message, Queued, ReasoningDelta, TextDelta, ToolCall, ToolCalled


class _Growing:
    def __init__(self, answer: Message) -> None:
        self.content = [answer.content]
        self.reasoning = [answer.reasoning]
        self.calls: list[ToolCall] = list(answer.tool_calls)


class LiveAnswers:
    """What has been said so far in each answer that has not ended."""

    def __init__(self) -> None:
        self._answers: dict[str, _Growing] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._answers

    def take(self, event: Event) -> None:
        match event:
            case Queued(_, answer):
                self._answers[answer.id] = _Growing(answer)
            case TextDelta(answer_id, text) if answer_id in self._answers:
                self._answers[answer_id].content.append(text)
            case ReasoningDelta(answer_id, text) if answer_id in self._answers:
                self._answers[answer_id].reasoning.append(text)
            case ToolCalled(answer_id, call) if answer_id in self._answers:
                self._answers[answer_id].calls.append(call)
            case Finished(_, answer) | Failed(_, answer):
                self._answers.pop(answer.id, None)
            case _:
                pass

    def now(self, message: Message) -> Message:
        """`message` as far as its events have come; as it is where it is not being made."""
        growing = self._answers.get(message.id)
        if growing is None:
            return message
        growing.content = ["".join(growing.content)]
        growing.reasoning = ["".join(growing.reasoning)]
        return replace(
            message,
            content=growing.content[0],
            reasoning=growing.reasoning[0],
            tool_calls=tuple(growing.calls),
            status="streaming",
        )
