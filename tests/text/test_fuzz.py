"""A million of anything through encoding, decoding and reading: no exception, nothing broken, time in proportion."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from rvchat.text import OutputReader, Tokenizer, render
from rvchat.text.loops import LoopGuard

pytestmark = pytest.mark.long

MILLION = 1_000_000


def chunks(items: list[int], draw: random.Random, most: int) -> Iterator[list[int]]:
    at = 0
    while at < len(items):
        size = draw.randint(1, most)
        yield items[at : at + size]
        at += size


def in_proportion(work: Callable[[int], object], size: int = MILLION // 8) -> None:
    """Eight times as much takes about eight times as long; if time grew with the square it would be 64 times.

    In one try of three: in another the garbage of all tests before may be collected."""

    def seconds(size: int) -> float:
        start = time.process_time()
        work(size)
        return time.process_time() - start

    most = 24 * max(seconds(size), 0.05)
    assert any(seconds(8 * size) < most for _ in range(3))


@pytest.mark.parametrize("errors", ["surrogateescape", "replace"])
def test_a_million_random_bytes_are_encoded_and_decoded(any_tok: Tokenizer, errors: str) -> None:
    text = random.Random(1).randbytes(MILLION).decode(errors=errors)
    ids = any_tok.encode(text)
    assert not set(ids) & set(any_tok.control.values())
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert any_tok.decode(ids) == clean.replace("\u2581", " ")
    stream = any_tok.stream()
    shown = "".join(stream.feed(part) for part in chunks(ids, random.Random(2), 5)) + stream.finish()
    assert shown == clean.replace("\u2581", " ")


def test_a_million_random_bytes_as_byte_pieces(any_tok: Tokenizer) -> None:
    first = any_tok.encode("\U000f0000")[0] - 0xF3
    ids = [first + byte for byte in random.Random(3).randbytes(MILLION)]
    whole, parts = any_tok.stream(), any_tok.stream()
    expected = whole.feed(ids) + whole.finish()
    assert "".join(parts.feed(part) for part in chunks(ids, random.Random(4), 5)) + parts.finish() == expected
    expected.encode()
    assert len(any_tok.decode(ids)) == MILLION  # one replacement a byte: the run is not UTF-8


def test_a_million_random_ids_are_decoded_and_read(any_tok: Tokenizer) -> None:
    draw = random.Random(5)
    ids = [draw.randrange(-10, any_tok.size + 10) for _ in range(MILLION)]
    any_tok.decode(ids).encode()
    whole, parts = any_tok.stream(), any_tok.stream()
    expected = whole.feed(ids) + whole.finish()
    assert "".join(parts.feed(part) for part in chunks(ids, draw, 9)) + parts.finish() == expected
    pieces = [number for number in ids if isinstance(any_tok.piece(number), str)]
    assert any_tok.stream().feed(pieces) == any_tok.decode(pieces)


@pytest.mark.parametrize("seed", range(20))
def test_random_output_is_read_alike_however_it_is_cut(any_tok: Tokenizer, seed: int) -> None:
    draw = random.Random(seed)
    control = [
        any_tok.control[name]
        for name in any_tok.control
        if name not in ("<eos>", "<turn|>", "<|turn>", "<|tool_response>")
    ]
    kinds = [
        lambda: draw.randrange(any_tok.size),
        lambda: draw.randrange(238, 494),  # bytes
        lambda: draw.choice(control),
        lambda: draw.choice(any_tok.encode("thought\n call:f{a:1,b:[x]}")),
    ]
    ends = set(any_tok.control.values()) - set(control)
    ids = [number for number in (draw.choice(kinds)() for _ in range(MILLION // 20)) if number not in ends]
    whole, parts = OutputReader(any_tok), OutputReader(any_tok)
    whole.feed(ids)
    deltas = [delta for part in chunks(ids, draw, 7) for delta in parts.feed(part)]
    reply, other = whole.finish(), parts.finish()
    deltas += other.held
    assert (reply.content, reply.reasoning, reply.tool_calls, reply.errors, reply.unread, reply.ended_by) == (
        other.content,
        other.reasoning,
        other.tool_calls,
        other.errors,
        other.unread,
        other.ended_by,
    )
    assert "".join(delta.text for delta in deltas if delta.kind == "answer") == reply.content
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == reply.reasoning
    for text in (reply.content, reply.reasoning, *reply.unread):
        text.encode()


def test_any_text_of_a_million_characters_is_rendered_with_the_control_tokens_of_the_format(
    any_tok: Tokenizer,
) -> None:
    draw = random.Random(7)
    names = list(any_tok.control)
    text = "".join(draw.choice([*names, "<", "|", ">", "word ", "\n", "é"]) for _ in range(MILLION // 5))
    ids = render([{"role": "user", "content": text}], format="gemma4-large").ids(any_tok)
    control = set(any_tok.control.values())
    assert [number for number in ids if number in control] == [2, 105, 106, 105, 100, 101]


def test_time_grows_with_the_text(any_tok: Tokenizer) -> None:
    draw = random.Random(8)
    text = "".join(draw.choice(["word ", "Wörter ", "漢字", "\n", "x", "<|", "é🙂", "    "]) for _ in range(MILLION))[
        :MILLION
    ]
    in_proportion(lambda size: any_tok.encode(text[:size]))
    in_proportion(lambda size: any_tok.encode("a" * size))
    ids = any_tok.encode(text)
    in_proportion(lambda size: any_tok.decode(ids[:size]), len(ids) // 8)


@pytest.mark.parametrize(
    "block",
    [
        "word ",
        "\n",
        "<",
        "<|",
        "<|channel>",
        "<|channel>thought\n<channel|>",
        "\nUser",
        "<|tool_call>call:f{a:",
        "<|tool_call>call:f{a:1}<tool_call|>",
        "[",
        '<|"|>',
    ],
)
@pytest.mark.parametrize("before", ["", "<|channel>thought\n", "<|tool_call>call:f{a:"])
def test_time_of_reading_grows_with_the_output(any_tok: Tokenizer, before: str, block: str) -> None:
    def letters(size: int) -> None:
        reader = OutputReader(any_tok, stop=("\nUser:",), loops=None)
        reader.feed_text(before)
        for at in range(0, size, 3):
            reader.feed_text((block * 4)[at % len(block) :][:3])
        reader.finish()

    def at_once(size: int) -> None:
        reader = OutputReader(any_tok, stop=("\nUser:",), loops=LoopGuard(length=10 * MILLION))
        reader.feed_text(before + block * (size // len(block)))
        reader.finish()

    in_proportion(letters, MILLION // 40)
    in_proportion(at_once, MILLION // 8)
