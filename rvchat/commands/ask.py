"""`rvchat ask`: one question, one answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rvchat.commands.terminal import print_json, say
from rvchat.commands.working import working
from rvchat.config import Paths
from rvchat.errors import BadInputError
from rvchat.settings import Settings
from rvchat.types import Message


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and how. None: as the user's settings say."""

    prompt: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    thinking: bool = False


def run(question: Question, settings: Settings, *, paths: Paths, model: str, weights: str, as_json: bool) -> int:
    """Answers on standard output, as it comes or as one JSON object; returns the exit code."""
    sampling = settings.sampling
    if question.temperature is not None:
        sampling = replace(sampling, temperature=question.temperature)
    if question.seed is not None:
        sampling = replace(sampling, seed=question.seed)
    with working(paths, weights) as work:
        loaded = work.load(model)
        if question.thinking and not loaded.thinks:
            say(f"{loaded.name} is no model that thinks before it answers.")
        work.session.change(
            system=settings.system if question.system is None else question.system,
            sampling=sampling,
            max_new_tokens=question.max_tokens or settings.max_new_tokens,
            thinking=question.thinking or settings.thinking,
        )
        answer = work.take(work.session.send(question.prompt), quiet=as_json)
        if as_json:
            print_json(described(work.session.conversation.id, answer))
        if answer.status == "failed":
            return BadInputError.exit_code if work.bad_input else 1
        return 130 if answer.status == "stopped" else 0


def described(conversation_id: str, answer: Message) -> dict[str, Any]:
    """The answer as `--json` gives it."""
    stats = answer.stats
    speed = stats.tokens_per_second if stats is not None else None
    return {
        "conversation": conversation_id,
        "id": answer.id,
        "model": answer.model,
        "content": answer.content,
        "reasoning": answer.reasoning,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in answer.tool_calls],
        "status": answer.status,
        "finish": answer.finish,
        "error": answer.error,
        "seed": answer.sampling.seed if answer.sampling is not None else None,
        "stats": {**asdict(stats), "tokens_per_second": speed} if stats is not None else None,
    }
