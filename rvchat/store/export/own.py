"""rvchat's own JSON, which `docs/export.schema.json` describes: nothing is lost, one conversation a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rvchat.store.values import conversation_value, dumps, terminal_safe
from rvchat.types import Conversation

FORMAT = "rvchat"
VERSION = 1  # of what readers must know; keys are added without it


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    yield f'{{"format": "{FORMAT}", "version": {VERSION}, "conversations": ['
    separator = "\n"
    for conversation in conversations:
        yield separator + terminal_safe(dumps(conversation_value(conversation)))
        separator = ",\n"
    yield "\n]}\n"
