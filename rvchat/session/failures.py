"""What a failure means to the person who sees it."""

from __future__ import annotations

from rvchat.errors import OutOfMemoryError, RvchatError
from rvchat.types import Stats

_SMALLER_WEIGHTS = "load the model with smaller weights (--weights int8 or int4)"


def explain(error: Exception, stats: Stats | None = None) -> tuple[str, str]:
    """One sentence that says what went wrong and one that says what to do. `stats`: how far the answer had come."""
    if isinstance(error, OutOfMemoryError) or _out_of_memory(error):
        hint = error.hint if isinstance(error, RvchatError) else ""
        message = error.message if isinstance(error, RvchatError) else "The device ran out of memory"
        return message, hint or memory_hint(stats)
    if isinstance(error, RvchatError):
        return error.message, error.hint
    name = type(error).__name__
    first = (str(error).strip() or name).splitlines()[0]
    return f"{name}: {first}" if first != name else name, "The log has the whole of it."


def memory_hint(stats: Stats | None) -> str:
    """The settings that would have fitted, with the figures as far as they are known."""
    if stats is None or not stats.new_tokens:
        return f"Begin a new conversation, which needs less, or {_SMALLER_WEIGHTS}."
    room = stats.prompt_tokens + stats.new_tokens
    return (
        f"{room} tokens fitted: set the maximum length to {stats.new_tokens} or less, "
        f"start a new conversation, or {_SMALLER_WEIGHTS}."
    )


def _out_of_memory(error: Exception) -> bool:
    # XLA says so in words alone, in an error class that only jax has.
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
