"""What goes on, as events tell it, kept apart from how the screen says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rvchat.store.printable import one_line
from rvchat.types import (
    Event,
    Failed,
    Finished,
    LoadFailed,
    Loading,
    ModelInfo,
    ModelReady,
    Prefill,
    Progress,
    Queued,
    ReasoningDelta,
    Stats,
    TextDelta,
    ToolCalled,
    Unloaded,
)

_STAGES = {
    "open": "opening",
    "vocabulary": "reading the vocabulary",
    "read": "reading weights",
    "quantise": "quantising",
    "keep": "keeping a copy",
    "place": "placing weights",
    "compile": "compiling",
}


@dataclass(frozen=True, slots=True)
class State:
    """`activity` is what goes on now, in a word or three. `fraction` of it is done, None where that is not known.
    `coming` is the model that is being loaded.

    `answering` are the answers asked for and not ended, in that order. `stats` are of the answer made last, and `used`
    is how many tokens of the model's window the conversation took then.
    """

    model: ModelInfo | None = None
    activity: str = "starting"
    loading: bool = False
    coming: str = ""
    fraction: float | None = None
    answering: tuple[str, ...] = ()
    stats: Stats | None = None
    used: int | None = None

    @property
    def busy(self) -> bool:
        return self.loading or bool(self.answering)

    def after(self, event: Event, loaded: ModelInfo | None) -> State:
        """The state once `event` has happened. `loaded`: the model that the session has: one that is being loaded, or
        was not after all, may have cost the one before."""
        match event:
            case Loading(stage, fraction, name):
                activity = _STAGES.get(stage, stage)
                return replace(self, model=loaded, activity=activity, loading=True, coming=name, fraction=fraction)
            case ModelReady(model):
                return replace(self, model=model, loading=False)._resting()
            case LoadFailed() | Unloaded():
                return replace(self, model=loaded, loading=False)._resting()
            case Queued(_, answer):
                return replace(self, answering=(*self.answering, answer.id))._resting()
            case Prefill(answer_id, done, total):
                return self._at(answer_id, "reading", done / total if 0 < done < total else None)
            case ReasoningDelta(answer_id, _):
                return self._at(answer_id, "thinking")
            case TextDelta(answer_id, _) | ToolCalled(answer_id, _):
                return self._at(answer_id, "answering")
            case Progress(_, stats):
                return replace(self, stats=stats, used=stats.prompt_tokens + stats.new_tokens)
            case Finished(_, answer) | Failed(_, answer):
                rest = tuple(a for a in self.answering if a != answer.id)
                state = replace(self, answering=rest)._resting()
                if answer.stats is None:
                    return state
                return replace(state, stats=answer.stats, used=answer.stats.prompt_tokens + answer.stats.new_tokens)
            case _:
                return self

    def _at(self, answer_id: str, activity: str, fraction: float | None = None) -> State:
        """An answer is being made; a straggler of one that has ended says nothing."""
        if answer_id not in self.answering:
            return self
        return replace(self, activity=activity, loading=False, fraction=fraction)

    def _resting(self) -> State:
        if self.loading:
            return self
        activity = "waiting" if self.answering else "ready" if self.model else "no model"
        return replace(self, activity=activity, fraction=None)


def label(model: str, limit: int) -> str:
    """What a model is called on the screen: of a path its last part, of a script that it is one."""
    kind, _, path = model.partition(":")
    name = "scripted" if kind == "scripted" and path else model.rstrip("/").rpartition("/")[2]
    return one_line(name, limit)


def seconds(value: float) -> str:
    """A duration in as few characters as say it: "0.4 s", "12 s", "3 min 20 s"."""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 59.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def tokens(value: int) -> str:
    """A count of tokens: "812", "3.2k", "128k"."""
    if value < 1000:
        return str(value)
    return f"{value / 1000:.1f}k" if value < 99_950 else f"{round(value / 1000)}k"


def statistics(stats: Stats) -> str:
    """What an answer cost, in one line."""
    parts = []
    if (speed := stats.tokens_per_second) is not None:
        parts.append(f"{speed:.1f} tok/s")
    parts.append(f"{stats.new_tokens:,} tokens")
    if stats.ttft_s:
        parts.append(f"first after {seconds(stats.ttft_s)}")
    prompt = f"{stats.prompt_tokens:,} read"
    if stats.reused_tokens:
        prompt += f" ({stats.reused_tokens:,} from before)"
    parts.append(prompt)
    return " · ".join(parts)
