"""The chat formats by name: which one a model takes, what it writes, and where the model stops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rvchat.errors import BadInputError, ModelError
from rvchat.text import gemma3, gemma4, plain
from rvchat.text.messages import Messages
from rvchat.text.prompt import Prompt

if TYPE_CHECKING:
    from rvchat.text.tokenizer import Tokenizer

FORMATS = ("gemma4-large", "gemma4-small", "gemma3", "plain")

_STOPS: Mapping[str, tuple[str, ...]] = {
    "gemma4-large": gemma4.STOPS,
    "gemma4-small": gemma4.STOPS,
    "gemma3": gemma3.STOPS,
    "plain": plain.STOPS,
}


def render(
    messages: Messages,
    *,
    format: str,
    tools: Sequence[Any] | None = None,
    thinking: bool = False,
    add_generation_prompt: bool = True,
    preserve_thinking: bool = False,
    continue_final: bool = False,
) -> Prompt:
    """The conversation as the model must see it.

    `thinking` lets a model that can think do so; the others pass it over. `add_generation_prompt` opens the model's
    turn. `preserve_thinking` tells earlier thoughts again where they led to a tool call. `continue_final` leaves the
    last message, an answer, open at its very end, so that the model goes on in it; nothing is opened after it.

    A message added at the end only appends ids to those of the same conversation without it, where neither opens the
    model's turn. Three things are not told again and so change what came before: the empty thought in the prompt of a
    large Gemma 4 that is not to think, as the published template leaves it out of the answer's turn; a thought, once
    the user has spoken after it; and the end of the model's turn, where a second answer goes on in it.

    Raises BadInputError, which names the message, for what the format cannot express: an unknown role, arguments that
    are not a dictionary, a tool's name outside `[A-Za-z0-9_.:-]`, tools or media where the format has none.
    """
    check_format(format)
    if format in ("gemma4-large", "gemma4-small"):
        options = gemma4.Options(tools or (), thinking, add_generation_prompt, preserve_thinking, continue_final)
        return gemma4.render(messages, options, large=format == "gemma4-large")
    if tools:
        raise BadInputError(f"The chat format {format} has no tools", "Use a Gemma 4 model that was trained to chat.")
    write = gemma3.render if format == "gemma3" else plain.render
    return write(messages, add_generation_prompt=add_generation_prompt, continue_final=continue_final)


def check_format(format: str) -> None:
    if format not in FORMATS:
        raise BadInputError(f"The chat format {format!r} is unknown", f"Formats are {', '.join(FORMATS)}.")


def chat_format(model_type: str, *, per_layer_width: int = 0, chats: bool = True) -> str:
    """The format of a model: `model_type` as in config.json, or the architecture of a GGUF file; `per_layer_width` of
    its per-layer embeddings, which of Gemma 4 only the small models have; `chats` false for a pretrained model."""
    if not chats:
        return "plain"
    family = model_type.removesuffix("_text")
    if family in ("gemma4", "gemma4_unified"):
        return "gemma4-small" if per_layer_width else "gemma4-large"
    if family == "gemma3":
        return "gemma3"
    raise ModelError(f"No chat format is known for the model type {model_type!r}", "Name one, or use plain.")


def has_chat_template(path: str | Path) -> bool:
    """Whether the model at `path`, a folder or a .gguf file, comes with a chat template; a pretrained one does not."""
    path = Path(path).expanduser()
    if not path.is_dir():
        from rvchat.engine.gguf import GGUF

        return bool(GGUF.open(path).metadata.get("tokenizer.chat_template"))
    if any((path / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    config = path / "tokenizer_config.json"
    try:
        return config.is_file() and bool(json.loads(config.read_bytes()).get("chat_template"))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{config} is not a JSON object: {error}", "Fetch the file again.") from error


def thinks(format: str) -> bool:
    """Whether models of this format can think before they answer."""
    return format in ("gemma4-large", "gemma4-small")


def stop_ids(format: str, tok: Tokenizer) -> tuple[int, ...]:
    """The ids that end an answer. A vocabulary that lacks one is not asked for it."""
    check_format(format)
    return tuple(tok.control[name] for name in _STOPS[format] if name in tok.control)


def stop_texts(format: str) -> tuple[str, ...]:
    """The texts that end an answer: the next speaker of a transcript."""
    check_format(format)
    return plain.STOP_TEXTS if format == "plain" else ()
