"""Where a vocabulary comes from: a published tokenizer.json, or the header of a GGUF file.

Both end as one byte-pair encoder of the `tokenizers` library that never recognises a control token in text, and a table
of the control tokens. A SentencePiece vocabulary in GGUF has scores and no merges; its merges follow from the scores.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from rvchat.errors import ModelError

SPACE = "\u2581"  # how the vocabulary spells a space; text that has this sign itself cannot be told from one

# GGUF's kinds of pieces
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

_HTML_TAG = re.compile(r"</?(?!(?:pad|eos|bos|unk|mask)>)[a-z]+[1-6]?>")
_PART_END = re.compile(r"\w(?=[ \n])")
_PART = 4096
# Of Gemma's pieces the longest has 93 characters.
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`encode` turns text into ids and recognises no control token; `piece` is how an id is spelled, None where the
    vocabulary has none; `control` are the control tokens by their spelling; ids are below `size`."""

    encode: Callable[[str], list[int]]
    piece: Callable[[int], str | None]
    control: dict[str, int]
    size: int


def read_json(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer.json. Raises ModelError where it is not a byte-pair encoder with byte fallback."""
    with _library(f"{path} is not a tokenizer.json"):
        encoder = tokenizers.Tokenizer.from_file(str(path))
    model = encoder.model
    if not (isinstance(model, models.BPE) and model.byte_fallback):
        raise ModelError(f"{path} holds a {type(model).__name__} tokenizer without byte fallback", _HINT)
    control = {
        token.content: number
        for number, token in encoder.get_added_tokens_decoder().items()
        if token.special or not _is_text(token.content)
    }
    return _vocabulary(encoder, control)


def read_gguf(path: Path, metadata: dict[str, Any]) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata, `tokenizer.ggml.*`: SentencePiece scores ("llama") or merges
    ("gemma4"). Raises ModelError where there is none, or one of another kind."""
    family = metadata.get("tokenizer.ggml.model")
    if family not in ("llama", "gemma4"):
        raise ModelError(f"{path} has a vocabulary of kind {family!r}", _HINT)
    try:
        pieces = [piece.decode().replace(" ", SPACE) for piece in metadata["tokenizer.ggml.tokens"]]
        kinds = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
        if len(kinds) != len(pieces):
            raise ValueError(f"it has {len(pieces):,} pieces and the kinds of {len(kinds):,}")
        if family == "llama":
            merges = merges_of_scores(pieces, kinds, [float(score) for score in metadata["tokenizer.ggml.scores"]])
        else:
            merges = [_merge(merge.decode()) for merge in metadata["tokenizer.ggml.merges"]]
        ids = {piece: number for number, piece in enumerate(pieces)}
        unknown = next((piece for piece, kind in zip(pieces, kinds, strict=True) if kind == UNKNOWN), "<unk>")
    except KeyError as error:
        raise ModelError(f"{path} has a vocabulary without {error.args[0]}", "Fetch the file again.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"The vocabulary of {path} is damaged: {error}", "Fetch the file again.") from error
    with _library(f"The vocabulary of {path} is damaged"):  # merges that name no piece
        model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = normalizers.Replace(" ", SPACE)
    # A converter marks the control tokens that a program may want to show as user-defined, too.
    defined = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == USER_DEFINED]
    texts = {piece for piece in defined if _is_text(piece)} if family == "llama" else {*filter(_is_run, defined)}
    encoder.add_tokens([_added(piece, special=False) for piece in texts if not _is_run(piece)])
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind in (CONTROL, UNKNOWN)]
    control += [piece for piece in defined if piece not in texts]
    return _vocabulary(encoder, {piece: ids[piece] for piece in control})


@contextlib.contextmanager
def _library(wrong: str) -> Iterator[None]:
    """What the library raises, as a ModelError that begins with what is wrong. It raises nothing narrower than
    Exception, and of a file that makes its Rust code panic not even that."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(f"{wrong}: {error}", "Fetch the file again.") from error


def merges_of_scores(pieces: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary, most urgent first: every way to put a piece together from two others,
    the piece with the best score first. Runs of one blank come before everything, the longest first, as SentencePiece
    takes them out of the text before it merges anything."""
    known = set(pieces)

    def halve(piece: str, into: list[tuple[str, str]]) -> None:
        if len(piece) > _LONGEST:
            raise ValueError(f"a piece has {len(piece):,} characters")
        for at in range(len(piece) - 1, 0, -1):
            left = piece[:at]
            if left in known:
                right = piece[at:]
                if right in known:
                    into.append((left, right))

    runs: list[tuple[str, str]] = []
    merges: list[tuple[str, str]] = []
    normal = [number for number, kind in enumerate(kinds) if kind == NORMAL]
    normal.sort(key=scores.__getitem__, reverse=True)
    for number in normal:
        halve(pieces[number], merges)
    for piece, kind in zip(pieces, kinds, strict=True):
        if kind == USER_DEFINED and _is_run(piece):
            halve(piece, runs)
    runs.sort(key=lambda merge: (len(merge[0]), len(merge[1])), reverse=True)
    return runs + merges


_HINT = "rvchat reads the vocabularies of Gemma 3 and Gemma 4."


def _merge(text: str) -> tuple[str, str]:
    left, blank, right = text.partition(" ")
    if not blank or " " in right:
        raise ValueError(f"a merge is {text!r}")
    return left, right


def _is_run(piece: str) -> bool:
    return len(set(piece)) == 1 and piece[0] in f"\n\t{SPACE}"


def _is_text(piece: str) -> bool:
    """Whether an added token stands for text that anyone may write: a run of blanks, an HTML tag. All others, unused
    ones and image marks among them, are kept out of reach of text."""
    return _is_run(piece.replace(" ", SPACE)) or _HTML_TAG.fullmatch(piece) is not None


def _added(piece: str, *, special: bool) -> AddedToken:
    return AddedToken(piece, special=special, normalized=False)


def _vocabulary(encoder: tokenizers.Tokenizer, control: dict[str, int]) -> Vocabulary:
    encoder.no_padding()
    encoder.no_truncation()
    encoder.add_special_tokens([_added(piece, special=True) for piece in control])
    encoder.encode_special_tokens = True  # that is: spell control tokens out, like any other text

    def encode(text: str) -> list[int]:
        with _library("The model's vocabulary cannot be used"):
            return [number for part in _parts(text) for number in encoder.encode(part, add_special_tokens=False).ids]

    size = encoder.get_vocab_size()
    if size and encoder.id_to_token(size - 1) is None:  # ids with gaps
        size = 1 + max(encoder.get_vocab().values())
    return Vocabulary(encode, encoder.id_to_token, control, size)


def _parts(text: str) -> Iterable[str]:
    """`text` in parts that no piece of the vocabulary reaches across: cut after a word and before a blank. The encoder
    keeps a heap of the whole of what it is given, so that short parts take half the time."""
    at = 0
    while len(text) - at > _PART and (cut := _PART_END.search(text, at + _PART)):
        yield text[at : cut.end()]
        at = cut.end()
    yield text[at:]
