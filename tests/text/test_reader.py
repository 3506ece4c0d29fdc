"""Reading what a model says: the published cases however they are cut, and what must hold for any output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.text import Delta, LoopGuard, OutputReader, Reply, Tokenizer

CaseSet = tuple[Tokenizer, Callable[[str], dict[str, Any]]]

PIECES = [
    *("<|channel>", "<channel|>", "thought\n", "thought", "<|tool_call>", "<tool_call|>", 'call:f{a:<|"|>x<|"|>}'),
    *("call:g{", "}", '<|"|>', "<|tool_response>", "<turn|>", "<|turn>", "<eos>", "<pad>", "<", "<|", "<|chan"),
    *("Hello", " world", "\n", "\n\n", " ", "é🙂", "\nUser:", "\nUs", "END", "EN"),
]


def summary(reply: Reply) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
    return {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "tool_calls": calls,
        "ended_by": reply.ended_by,
        "errors": reply.errors,
    }


def shown(deltas: Sequence[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def read(reader: OutputReader, parts: Sequence[str]) -> tuple[list[Delta], Reply]:
    """What reading `parts` gives, checked for agreeing with itself."""
    deltas = [delta for part in parts for delta in reader.feed_text(part)]
    reply = reader.finish()
    deltas += reply.held
    assert shown(deltas, "answer") == reply.content
    assert shown(deltas, "reasoning") == reply.reasoning
    assert [delta.call for delta in deltas if delta.kind == "tool_call"] == reply.tool_calls
    return deltas, reply


def test_every_case_is_read_as_expected_however_it_is_cut(case_set: CaseSet) -> None:
    tok, cases = case_set
    for case in cases("parse")["cases"]:
        text = case["text"]
        expected = {key: case["expected"][key] for key in ("content", "reasoning", "tool_calls", "ended_by", "errors")}
        cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
        for parts in cuts:
            _, reply = read(OutputReader(tok, in_reasoning=case["start_in_reasoning"]), parts)
            assert summary(reply) == expected, (case["name"], parts[:2])


def test_nothing_is_shown_before_it_is_safe(case_set: CaseSet) -> None:
    tok, cases = case_set
    for case in cases("parse")["cases"]:
        reader = OutputReader(tok, in_reasoning=case["start_in_reasoning"])
        answer = reasoning = calls = 0
        for letter, (safe_answer, safe_reasoning, safe_calls) in zip(case["text"], case["trace"], strict=True):
            deltas = reader.feed_text(letter)
            answer += len(shown(deltas, "answer"))
            reasoning += len(shown(deltas, "reasoning"))
            calls += sum(delta.kind == "tool_call" for delta in deltas)
            assert answer <= safe_answer, case["name"]
            assert reasoning <= safe_reasoning, case["name"]
            assert calls <= safe_calls, case["name"]


def test_every_case_of_ids_is_read_as_expected_however_it_is_cut(case_set: CaseSet) -> None:
    tok, cases = case_set
    for case in cases("parse")["token_cases"]:
        ids = case["ids"]
        for parts in ([[number] for number in ids], *([ids[:at], ids[at:]] for at in range(len(ids) + 1))):
            reader = OutputReader(tok, in_reasoning=case["start_in_reasoning"])
            for part in parts:
                reader.feed(part)
            assert summary(reader.finish()) == case["expected"], case["name"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.booleans(), st.data())
def test_any_cut_of_any_output_gives_the_same_reply(
    tok: Tokenizer, pieces: list[str], in_reasoning: bool, data: st.DataObject
) -> None:
    text = "".join(pieces)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    cut = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    stop = ("\nUser:", "END", "ND")
    _, whole = read(OutputReader(tok, in_reasoning, stop), [text])
    _, parts = read(OutputReader(tok, in_reasoning, stop), cut)
    _, letters = read(OutputReader(tok, in_reasoning, stop), list(text))
    assert summary(whole) == summary(parts) == summary(letters)
    assert whole.unread == parts.unread == letters.unread


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.data())
def test_ids_and_written_out_text_are_read_alike(tok: Tokenizer, pieces: list[str], data: st.DataObject) -> None:
    ids = [number for piece in pieces for number in tok.encode(piece, control=piece in tok.control)]
    at = data.draw(st.integers(0, len(ids)))
    by_id = OutputReader(tok)
    deltas = by_id.feed(ids[:at]) + by_id.feed(ids[at:])
    reply = by_id.finish()
    assert shown([*deltas, *reply.held], "answer") == reply.content
    one_by_one = OutputReader(tok)
    for number in ids:
        one_by_one.feed([number])
    assert summary(one_by_one.finish()) == summary(reply)
    text = "".join(pieces)
    if tok.encode(text, control=True) == ids:  # no control token came about between two pieces, or inside one
        assert summary(read(OutputReader(tok), [text])[1]) == summary(reply)


def test_a_quoted_control_token_is_text_when_read_by_id(tok: Tokenizer) -> None:
    text = "Write <|tool_call>call:f{}<tool_call|> or <turn|>."
    reader = OutputReader(tok)
    reader.feed(tok.encode(text))
    assert summary(reader.finish()) == summary(Reply(text, "", [], None, []))


def test_half_a_character_is_never_shown(tok: Tokenizer) -> None:
    ids = tok.encode("\U0001fae8 ok \U0001faf7")
    assert len(ids) > 8
    reader = OutputReader(tok)
    texts = [shown(reader.feed([number]), "answer") for number in ids]
    assert not any("\ufffd" in text for text in texts)
    assert "".join(texts) == reader.finish().content == "\U0001fae8 ok \U0001faf7"


def test_bytes_that_never_become_a_character_are_replaced(tok: Tokenizer) -> None:
    ids = tok.encode("\U0001fae8")
    reader = OutputReader(tok)
    reader.feed(ids[:-1])
    assert reader.finish().content == "\ufffd" * 3


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "errors"),
    [
        ("<|channel>thought\none<channel|>A<|channel>thought\n <channel|>B", "one", "AB", []),
        ("<|channel>thought\none<channel|>A<|channel>thought\ntwo<channel|>B", "one\n\ntwo", "AB", []),
        ("<|channel>thought\none<|channel>thought\ntwo<channel|>B", "one\n\ntwo", "B", []),
        ("<|channel>tho", "", "", ["unclosed_reasoning"]),
        ("<|channel>thought", "", "", ["unclosed_reasoning"]),
        ("<|channel>tho<channel|>", "tho", "", []),
        ("<|channel>thought\nwhy<|tool_call>call:f{}<tool_call|>", "why", "", ["unclosed_reasoning"]),
        ('a<pad><bos><|think|><|"|><tool_response|>b', "", "ab", []),
        ("a<tool_call|><channel|>b", "", "ab", []),
    ],
)
def test_thoughts_and_stray_tokens(tok: Tokenizer, text: str, reasoning: str, content: str, errors: list[str]) -> None:
    _, reply = read(OutputReader(tok), [text])
    assert (reply.reasoning, reply.content, reply.errors) == (reasoning, content, errors)


@pytest.mark.parametrize(
    ("text", "calls", "errors", "unread"),
    [
        ("<|tool_call>call:f{a:1", [], ["incomplete_tool_call"], ["call:f{a:1"]),
        ('<|tool_call>call:f{a:<|"|>x', [], ["incomplete_tool_call"], ['call:f{a:<|"|>x']),
        ("<|tool_call>call:f{a:1<turn|>", [], ["incomplete_tool_call"], ["call:f{a:1"]),
        ("<|tool_call>", [], ["incomplete_tool_call"], [""]),
        ("<|tool_call>call:f{a:1}<|tool_call>call:f{a:1}<tool_call|>", ["f", "f"], ["unclosed_tool_call"], []),
        ("<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>", ["f", "f"], [], []),
        ("<|tool_call>f{}<tool_call|>Hm.", [], ["bad_tool_call"], ["f{}"]),
        ("<|tool_call>call:f{}<|channel>thought\nx<channel|>", ["f"], ["unclosed_tool_call"], []),
        ('<|tool_call>call:f{a:<|"|><pad><|"|>}<tool_call|>', ["f"], [], []),
    ],
)
def test_calls_that_are_not_whole(
    tok: Tokenizer, text: str, calls: list[str], errors: list[str], unread: list[str]
) -> None:
    _, reply = read(OutputReader(tok), [text])
    assert [call.name for call in reply.tool_calls] == calls
    assert reply.errors == errors
    assert reply.unread == unread


def test_a_call_comes_once_it_is_whole_as_it_was_written(tok: Tokenizer) -> None:
    reader = OutputReader(tok)
    assert reader.feed_text('<|tool_call>call:f{a:<|"|>x<|"|>}') == []
    (delta,) = reader.feed_text("<tool_call|>")
    assert delta.kind == "tool_call"
    assert delta.text == 'call:f{a:<|"|>x<|"|>}'
    assert delta.call is not None
    assert delta.call.arguments == {"a": "x"}


def test_the_end_is_told_as_soon_as_it_is_read_and_nothing_is_read_after_it(tok: Tokenizer) -> None:
    reader = OutputReader(tok)
    reader.feed_text("Done.")
    assert reader.ended_by is None
    reader.feed_text("<turn|> more")
    assert reader.ended_by == "<turn|>"
    assert reader.feed_text("more") == []
    assert reader.feed(tok.encode("more")) == []
    reply = reader.finish()
    assert reply.content == "Done."
    assert reader.finish() is reply
    assert reader.feed_text("more") == []


def test_what_was_held_back_comes_with_the_reply(tok: Tokenizer) -> None:
    reader = OutputReader(tok, stop=("STOP",))
    assert shown(reader.feed_text("x ST"), "answer") == "x"
    assert reader.finish().held == [Delta("answer", " ST")]


def test_a_stop_text_is_held_back_found_across_parts_and_left_out(tok: Tokenizer) -> None:
    reader = OutputReader(tok, stop=("STOP", ""))
    assert shown(reader.feed_text("one ST"), "answer") == "one"
    assert shown(reader.feed_text("AND S"), "answer") == " STAND"
    assert reader.feed_text("TOP two") == []
    reply = reader.finish()
    assert (reply.content, reply.ended_by) == ("one STAND", "STOP")


def test_a_stop_text_in_a_thought_or_a_call_does_not_stop(tok: Tokenizer) -> None:
    text = '<|channel>thought\nSTOP<channel|><|tool_call>call:f{a:<|"|>STOP<|"|>}<tool_call|>Go STOP on'
    _, reply = read(OutputReader(tok, stop=("STOP",)), [text])
    assert (reply.reasoning, reply.content, reply.ended_by) == ("STOP", "Go", "STOP")
    assert reply.tool_calls[0].arguments == {"a": "STOP"}


def test_gemma_3_ends_its_turns_its_own_way() -> None:
    from rvchat.text.vocabulary import Vocabulary

    names = {"<start_of_turn>": 0, "<end_of_turn>": 1}
    vocabulary = Vocabulary(
        lambda text: [10 + ord(c) for c in text], lambda n: chr(n - 10) if n > 9 else None, names, 300
    )
    reader = OutputReader(Tokenizer(vocabulary))
    reader.feed([10 + ord("a"), 1, 10 + ord("b")])
    assert summary(reader.finish()) == summary(Reply("a", "", [], "<end_of_turn>", []))
    reader = OutputReader(Tokenizer(vocabulary))
    reader.feed_text("a<start_of_turn>user")
    assert reader.finish().errors == ["unexpected_turn"]


@pytest.mark.parametrize(
    "block", ["I am stuck. ", "\n", "ha", "A longer paragraph that says one thing, and says it again.\n\n" * 3]
)
def test_an_answer_that_goes_in_circles_ends_as_a_loop(tok: Tokenizer, block: str) -> None:
    text = "It begins well enough, and then: " + block * (4000 // len(block) + 10)
    _, reply = read(OutputReader(tok), [text])
    assert reply.ended_by == "loop"
    assert len(reply.content) < 2200
    _, letters = read(OutputReader(tok), list(text))
    assert summary(letters) == summary(reply)
    reader = OutputReader(tok, loops=None)
    reader.feed_text(text)
    assert reader.finish().ended_by is None


def test_what_it_goes_on_from_is_joined_and_no_part_of_a_loop(tok: Tokenizer) -> None:
    begun = "Well: " + "again " * 500
    reader = OutputReader(tok, begun=tok.encode(begun))
    assert reader.ended_by is None
    assert shown(reader.feed_text("and on."), "answer") == " and on."
    assert reader.finish().content == begun + "and on."
    again = OutputReader(tok, begun=tok.encode(begun))
    again.feed_text("again " * 500)
    assert again.ended_by == "loop"


@pytest.mark.parametrize(
    ("before", "errors"),
    [("<|channel>thought\n", ["unclosed_reasoning"]), ("<|tool_call>call:f{a:", ["incomplete_tool_call"])],
)
def test_a_thought_or_a_call_that_goes_in_circles_ends_as_a_loop(
    tok: Tokenizer, before: str, errors: list[str]
) -> None:
    reader = OutputReader(tok)
    reader.feed_text(before + "wait, no. " * 300)
    reply = reader.finish()
    assert (reply.ended_by, reply.errors) == ("loop", errors)


def test_tokens_that_show_nothing_end_as_a_loop_too(tok: Tokenizer) -> None:
    for token in ("<pad>", "<|channel>thought\n<channel|>"):
        reader = OutputReader(tok)
        reader.feed(tok.encode(token * 1000, control=True))
        assert reader.ended_by == "loop", token
        assert reader.finish().content == ""


def test_how_much_repetition_is_a_loop_can_be_set(tok: Tokenizer) -> None:
    text = "again and " * 20
    assert read(OutputReader(tok), [text])[1].ended_by is None
    strict = LoopGuard(period=20, count=3, length=30)
    assert read(OutputReader(tok, loops=strict), [text])[1].ended_by == "loop"


def test_a_drawn_line_and_a_table_are_no_loop(tok: Tokenizer) -> None:
    rows = "".join(f"| {number:>4} | {number * number:>6} |\n" for number in range(400))
    text = "-" * 500 + "\n" + "|---" * 100 + "\n" + rows
    assert read(OutputReader(tok), [text])[1].ended_by is None
