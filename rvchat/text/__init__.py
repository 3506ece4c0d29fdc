"""ids <-> text: tokenizer, chat format, incremental detokeniser, output reader. No jax."""

from __future__ import annotations

from rvchat.text.fit import Fitted, TooLongError, fit
from rvchat.text.formats import (
    FORMATS,
    chat_format,
    has_chat_template,
    render,
    stop_ids,
    stop_texts,
    thinks,
)
from rvchat.text.loops import LoopGuard
from rvchat.text.prompt import Prompt
from rvchat.text.reader import Delta, OutputReader, Reply
from rvchat.text.tokenizer import Tokenizer
from rvchat.types import ToolCall

__all__ = [
    "FORMATS",
    "Delta",
    "Fitted",
    "LoopGuard",
    "OutputReader",
    "Prompt",
    "Reply",
    "Tokenizer",
    "TooLongError",
    "ToolCall",
    "chat_format",
    "fit",
    "has_chat_template",
    "render",
    "stop_ids",
    "stop_texts",
    "thinks",
]
