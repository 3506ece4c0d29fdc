"""The tokenizer of the scripted engine: bytes and control tokens, by the ids that Gemma 4's vocabulary gives them."""

from __future__ import annotations

from rvchat.session.scripted import VOCABULARY
from rvchat.text.tokenizer import Tokenizer
from rvchat.text.vocabulary import Vocabulary

FIRST_BYTE = 238
"""The id of `<0x00>`; the other bytes follow in order."""

# From the published tokenizer.json of Gemma 4.
CONTROL = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<mask>": 4,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
    "<|image>": 255999,
    "<|audio>": 256000,
    "<|image|>": 258880,
    "<|audio|>": 258881,
    "<image|>": 258882,
    "<audio|>": 258883,
    "<|video|>": 258884,
}


def byte_tokenizer() -> Tokenizer:
    """Every byte of the text one token; never a control token but where it is asked for."""
    return Tokenizer(Vocabulary(encode=_encode, piece=_piece, control=CONTROL, size=VOCABULARY))


def _encode(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode("utf-8", errors="replace")]


def _piece(number: int) -> str | None:
    byte = number - FIRST_BYTE
    if 0 <= byte < 256:
        return f"<0x{byte:02X}>"
    return next((piece for piece, control in CONTROL.items() if control == number), None)
