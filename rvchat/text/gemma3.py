"""Gemma 3's chat format.

A turn is `<start_of_turn>role`, a newline, the text, `<end_of_turn>` and a newline. There is no role for the system:
its text stands before the first words of the user. The format has no thoughts and no tools.
"""

from __future__ import annotations

from collections.abc import Iterator

from rvchat.text import control
from rvchat.text.messages import Messages, Said, check, refuse
from rvchat.text.prompt import Prompt, PromptWriter

STOPS = (control.EOS, control.TURN_END_3)

_ROLES = {"system": "user", "developer": "user", "user": "user", "assistant": "model"}


def render(messages: Messages, *, add_generation_prompt: bool = True, continue_final: bool = False) -> Prompt:
    """Neighbours of one role share a turn, a blank line between them, as the format wants user and model to alternate.

    Raises BadInputError for what it cannot say: tools, media that are not images, an answer before any question.
    """
    out = PromptWriter()
    out.control(control.BOS)
    turns = list(_turns(check(messages)))
    if turns and turns[0][0] == "model":
        raise refuse(turns[0][1][0].where, "Gemma 3's format cannot begin with an answer", "Begin with the user.")
    if continue_final and not (turns and turns[-1][0] == "model"):
        raise refuse("messages[-1]", "only an answer can be continued")
    for index, (role, members) in enumerate(turns):
        is_open = continue_final and index == len(turns) - 1
        out.control(control.TURN_3)
        out.text(f"{role}\n")
        for number, said in enumerate(members):
            if number:
                out.text("\n\n")
            _content(out, said, is_open and number == len(members) - 1)
        if not is_open:
            out.control(control.TURN_END_3)
            out.text("\n")
    if add_generation_prompt and not continue_final:
        out.control(control.TURN_3)
        out.text("model\n")
    return out.prompt()


def _turns(messages: list[Said]) -> Iterator[tuple[str, list[Said]]]:
    role, members = "", list[Said]()
    for said in messages:
        if said.role == "tool" or said.calls or said.responses:
            raise refuse(said.where, "Gemma 3's format has no tools", "Continue it with a Gemma 4 model.")
        if said.is_system and not any(part.text.strip() for part in said.parts):
            continue  # it has no turn of its own to be empty in
        if _ROLES[said.role] != role:
            if members:
                yield role, members
            role, members = _ROLES[said.role], []
        members.append(said)
    if members:
        yield role, members


def _content(out: PromptWriter, said: Said, is_open: bool) -> None:
    for part in said.parts:
        if part.kind == "text":
            out.text(part.text.lstrip() if is_open else part.text.strip())
        elif part.kind == "image":
            out.media("image", control.IMAGE_3)
        else:
            raise refuse(said.where, f"Gemma 3's format cannot hold {part.kind}")
