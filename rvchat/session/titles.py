"""A title for a conversation, from its first question and answer."""

from __future__ import annotations

import threading

from rvchat.session.model import Model
from rvchat.session.prompting import Asked, ask, reader_for
from rvchat.store.printable import printable
from rvchat.types import Message, Request, Sampling

EXCERPT = 600
MAX_TOKENS = 32
MAX_LENGTH = 80

_ORNAMENTS = " \t*#_`\"'“”«»„."


def ask_title(model: Model, question: str, answer: str, give_way: threading.Event) -> str:
    """A few words by the model; empty where it was told to give way or said nothing that can be used."""
    instruction = (
        "Give this conversation a title of two to six words, in its own language. Write the title alone: no quotes, "
        f"no full stop.\n\nQuestion:\n{question[:EXCERPT]}\n\nAnswer:\n{answer[:EXCERPT]}"
    )
    message = Message(id="title", parent_id=None, role="user", content=instruction, created=0.0)
    asked = Asked((message,), "", Sampling(temperature=0.0), MAX_TOKENS, thinking=False)
    prompt = ask(model, asked)
    reader = reader_for(model, prompt)
    request = Request(prompt.ids, asked.sampling, MAX_TOKENS, model.stop_ids, give_way)
    chunks = model.generate(request)
    try:
        for chunk in chunks:
            reader.feed(chunk.ids)
            if reader.ended_by is not None or chunk.finish is not None:
                break
    finally:
        chunks.close()
    return "" if give_way.is_set() else cleaned(reader.finish().content)


def cleaned(text: str) -> str:
    """The first line that says something, without the ornaments that models put around a title."""
    for line in printable(text).splitlines():
        title = line.strip(_ORNAMENTS).removeprefix("Title:").strip(_ORNAMENTS)
        if title:
            return title if len(title) <= MAX_LENGTH else ""
    return ""
