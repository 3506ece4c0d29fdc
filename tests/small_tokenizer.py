"""A tokenizer for the small checkpoints of the goldens, whose vocabulary is 320."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, models

FIRST_BYTE = 40
"""The id of the byte 0; the others follow in order."""

CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>")


def small_tokenizer() -> str:
    """What stands in its tokenizer.json: bytes and a few control tokens."""
    vocabulary = {name: i for i, name in enumerate(CONTROL)}
    vocabulary |= {f"<unused{i}>": i for i in range(len(CONTROL), FIRST_BYTE)}
    vocabulary |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    return tokenizer.to_str()
