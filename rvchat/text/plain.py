"""The format for a pretrained model, which has learnt no chat format: a transcript with the names of the speakers.

The model goes on with the transcript, and is stopped where it lets the next speaker begin.
"""

from __future__ import annotations

import re

from rvchat.text import control
from rvchat.text.messages import Messages, Said, check, refuse
from rvchat.text.prompt import Prompt, PromptWriter

STOPS = (control.EOS, control.TURN_END_3, control.TURN_END)

_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
STOP_TEXTS = tuple(f"\n{name}:" for name in ("User", "Assistant", "System"))

# What a transcript begins with when nobody said what it is; without it a small model tends to write a web page.
OPENING = "A conversation between a user and a helpful, knowledgeable assistant."

_LOOKS_LIKE_SPEAKER = re.compile(r"^(?=(?:User|Assistant|System)[^\S\n]*:)", re.MULTILINE | re.IGNORECASE)


def render(messages: Messages, *, add_generation_prompt: bool = True, continue_final: bool = False) -> Prompt:
    """Each message is a part of its own, so that a longer conversation only appends.

    A line that looks like the name of a speaker is moved in by a space: the names are all the structure there is.
    Raises BadInputError for tools and media, which a transcript cannot hold.
    """
    out = PromptWriter()
    out.control(control.BOS)
    said = [_check(message) for message in check(messages)]
    final = said.pop() if continue_final and said else None
    if continue_final and (final is None or final.role != "assistant"):
        raise refuse(final.where if final else "messages[-1]", "only an answer can be continued")
    opening = OPENING
    if said and said[0].is_system:
        opening = _text(said.pop(0)) or OPENING
    out.text(f"{opening}\n\n")
    for message in said:
        out.cut()
        out.text(_line(message))
    if final is not None:
        out.cut()
        out.text(_line(final).rstrip("\n") + _blank_end(final))
    elif add_generation_prompt:
        out.cut()
        out.text("Assistant:")
    return out.prompt()


def _check(said: Said) -> Said:
    if said.role == "tool" or said.calls or said.responses:
        raise refuse(said.where, "a transcript for a pretrained model has no tools")
    for part in said.parts:
        if part.kind != "text":
            raise refuse(said.where, f"a transcript for a pretrained model cannot hold {part.kind}")
    return said


def _raw(said: Said) -> str:
    return "".join(part.text for part in said.parts)


def _text(said: Said) -> str:
    return _LOOKS_LIKE_SPEAKER.sub(" ", _raw(said).strip())


def _line(said: Said) -> str:
    text = _text(said)
    return f"{_SPEAKERS[said.role]}: {text}\n" if text else f"{_SPEAKERS[said.role]}:\n"


def _blank_end(said: Said) -> str:
    """The blanks at the end of what is continued: a new line has to begin where the model began it."""
    raw = _raw(said)
    return raw[len(raw.rstrip()) :] if raw.strip() else ""
