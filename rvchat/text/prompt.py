"""What the model is told, in parts: control tokens that the format wrote, and text in which there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rvchat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Control:
    """A control token of the format, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    `parts` in order; text parts are encoded one by one and never give a control token, whatever they spell.
    `opens_reasoning`: the prompt ends inside a thought, so that the answer begins with reasoning. `media` are the kinds
    of the media parts ("image", "audio", "video") whose placeholders it holds, in order.
    """

    parts: tuple[Control | str, ...]
    opens_reasoning: bool = False
    media: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The prompt as text, control tokens written out. Not to be encoded: `ids` knows which token is which."""
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)

    def ids(self, tok: Tokenizer) -> list[int]:
        """The token ids. Parts that `tok` has encoded lately are not encoded again. Raises ModelError where its
        vocabulary has no token that the format needs."""
        ids: list[int] = []
        for part in self.parts:
            if isinstance(part, str):
                ids += tok.encode_part(part)
            else:
                ids.append(tok.control_id(part.name))
        return ids


class PromptWriter:
    """Collects the parts of a prompt. Text that follows text joins its part until `cut`."""

    def __init__(self) -> None:
        self._parts: list[Control | str] = []
        self._text: list[str] = []
        self._media: list[str] = []

    def text(self, text: str) -> None:
        self._text.append(text)

    def control(self, name: str) -> None:
        self.cut()
        self._parts.append(Control(name))

    def media(self, kind: str, name: str) -> None:
        """The placeholder `name` of a media part."""
        self._media.append(kind)
        self.control(name)

    def cut(self) -> None:
        """What follows is encoded apart from what was written, so that it cannot change those ids."""
        if text := "".join(self._text):
            self._parts.append(text)
        self._text.clear()

    def prompt(self, opens_reasoning: bool = False) -> Prompt:
        self.cut()
        return Prompt(tuple(self._parts), opens_reasoning, tuple(self._media))
