"""Text to token ids and back."""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from rvchat.errors import ModelError
from rvchat.text.stream import TokenStream, decode_bytes
from rvchat.text.vocabulary import SPACE, Vocabulary, read_gguf, read_json

REMEMBERED = 4_000_000  # characters of text whose ids are kept; about 4 MB of ids

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_UNUSED = re.compile(r"<unused\d+>")


class Tokenizer:
    """The vocabulary of one model. Safe to use from several threads.

    Text becomes control tokens only where `control=True` says so; nothing is added, not even `<bos>`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces: dict[int, str | bytes] = {}
        self._names = {number: name for name, number in vocabulary.control.items()}
        self._remembered: OrderedDict[str, array[int]] = OrderedDict()
        self._remembered_size = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """From a tokenizer.json, a model folder that has one, or a .gguf file. Raises ModelError."""
        path = Path(path).expanduser()
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path} does not exist", "A model needs its tokenizer.json beside its config.json.")
        if path.suffix == ".json":
            return cls(read_json(path))
        from rvchat.engine.gguf import GGUF  # brings numpy, which a tokenizer.json does without

        return cls(read_gguf(path, GGUF.open(path).metadata))

    @property
    def control(self) -> dict[str, int]:
        """The control tokens: what they are called, and their ids."""
        return self._vocabulary.control

    @property
    def size(self) -> int:
        """Ids are below this."""
        return self._vocabulary.size

    def control_id(self, name: str) -> int:
        """The id of a control token. Raises ModelError where the vocabulary has none of that name."""
        try:
            return self._vocabulary.control[name]
        except KeyError:
            raise ModelError(
                f"This model's vocabulary has no control token {name}",
                "Its chat format must be another; a pretrained model takes the format plain.",
            ) from None

    def control_name(self, number: int) -> str | None:
        """What the control token of that id is called; None where the id is ordinary text."""
        return self._names.get(number)

    def encode(self, text: str, control: bool = False) -> list[int]:
        """The ids of `text`. Control tokens written out in it are recognised only with `control`; without it they are
        spelled like any other text. A lone surrogate, which no text holds, becomes U+FFFD."""
        text = _without_surrogates(text)
        if not control:
            return self._vocabulary.encode(text)
        ids: list[int] = []
        at = 0
        for found in self._control_pattern.finditer(text):
            number = self._vocabulary.control.get(found[0])
            if number is not None:
                ids += self._vocabulary.encode(text[at : found.start()])
                ids.append(number)
                at = found.end()
        return ids + self._vocabulary.encode(text[at:])

    def encode_part(self, text: str) -> list[int]:
        """`encode` of one part of a prompt, remembered: a conversation that has grown by a message asks again for all
        that came before it."""
        with self._lock:
            if (known := self._remembered.get(text)) is not None:
                self._remembered.move_to_end(text)
                return known.tolist()
        ids = self.encode(text)
        with self._lock:
            if text not in self._remembered and len(text) <= REMEMBERED:
                self._remembered[text] = array("I", ids)
                self._remembered_size += len(text)
                while self._remembered_size > REMEMBERED:
                    self._remembered_size -= len(self._remembered.popitem(last=False)[0])
        return ids

    def decode(self, ids: Iterable[int], skip_control: bool = False) -> str:
        """The text of `ids`. A run of byte pieces that is not UTF-8 becomes one U+FFFD a byte, as in Hugging Face
        tokenizers. Ids that the vocabulary does not have stand for nothing."""
        out: list[str] = []
        run = bytearray()
        for number in ids:
            if skip_control and number in self._names:
                continue
            piece = self.piece(number)
            if isinstance(piece, bytes):
                run += piece
                continue
            if run:
                out.append(decode_bytes(run))
                run.clear()
            out.append(piece)
        return "".join(out) + decode_bytes(run)

    def stream(self, skip_control: bool = False) -> TokenStream:
        """Decodes ids as they come."""
        return TokenStream(self.piece, self._names if skip_control else ())

    def piece(self, number: int) -> str | bytes:
        """What an id stands for: text with its spaces, or one byte of a character that has no piece of its own."""
        piece = self._pieces.get(number)
        if piece is None:
            spelled = self._vocabulary.piece(number) if 0 <= number < self._vocabulary.size else None
            if spelled is None:
                return ""
            byte = _BYTE.fullmatch(spelled)
            piece = bytes([int(byte[1], 16)]) if byte else spelled.replace(SPACE, " ")
            self._pieces[number] = piece
        return piece

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        names = [name for name in self._vocabulary.control if not _UNUSED.fullmatch(name)]
        names.sort(key=len, reverse=True)  # the longest of several that begin alike
        return re.compile("|".join([*map(re.escape, names), _UNUSED.pattern]))


def _without_surrogates(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
