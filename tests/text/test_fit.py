"""Which messages are told when the conversation has outgrown the context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.errors import BadInputError
from rvchat.text import Tokenizer, TooLongError, fit, render

Message = dict[str, Any]


def turns(count: int, words: int = 12) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}]
    for number in range(count):
        messages.append({"role": "user", "content": f"question {number} " * words})
        messages.append({"role": "assistant", "content": f"answer {number} " * words})
    return messages


def tokens(messages: list[Message], tok: Tokenizer, **options: Any) -> int:
    return len(render(messages, format="gemma4-large", **options).ids(tok))


def test_what_fits_is_kept_whole(tok: Tokenizer) -> None:
    messages = turns(4)
    size = tokens(messages, tok)
    fitted = fit(messages, tok, limit=size, format="gemma4-large")
    assert fitted.messages == messages
    assert fitted.dropped == []
    assert fitted.tokens == size


def test_whole_turns_go_from_the_oldest_on(tok: Tokenizer) -> None:
    messages = turns(12)
    limit = tokens(messages, tok) - 1
    fitted = fit(messages, tok, limit=limit, format="gemma4-large")
    last = fitted.dropped[-1]
    assert fitted.dropped == list(range(1, last + 1))
    assert messages[last]["role"] == "assistant"
    assert fitted.messages == [messages[0], *messages[last + 1 :]]
    assert fitted.tokens == tokens(fitted.messages, tok) <= limit


def test_tools_of_a_turn_go_with_it_and_system_messages_stay(tok: Tokenizer) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": {"x": "word " * 40}}}
    messages: list[Message] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "word " * 40},
        {"role": "assistant", "content": "two"},
        {"role": "system", "content": "From now on rhyme."},
        {"role": "user", "content": "three"},
    ]
    fitted = fit(messages, tok, limit=40, format="gemma4-large")
    assert fitted.dropped == [0, 1, 2, 3]
    assert fitted.messages == messages[4:]


def test_the_same_turns_stay_away_while_the_conversation_grows(tok: Tokenizer) -> None:
    """So that ids are only appended, and what the engine has read is read again once in several turns."""
    options: dict[str, Any] = {"format": "gemma4-small", "add_generation_prompt": False}
    before: list[int] = []
    ids: list[int] = []
    changes = longer = 0
    for count in range(1, 60):
        fitted = fit(turns(count, words=3)[:-1], tok, limit=600, **options)
        now = render(fitted.messages, **options).ids(tok)
        assert len(now) == fitted.tokens <= 600
        assert fitted.dropped[: len(before)] == before, "what was dropped never comes back"
        if fitted.dropped == before:
            longer += bool(before)
            assert now[: len(ids)] == ids
        else:
            changes += 1
        before, ids = fitted.dropped, now
    assert changes > 3
    assert longer >= 2 * changes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(30, 300))
def test_the_newest_turn_is_kept_or_refused_with_both_numbers(tok: Tokenizer, sizes: list[int], limit: int) -> None:
    messages: list[Message] = [{"role": "system", "content": "S"}]
    messages += [{"role": "user", "content": "word " * size} for size in sizes]
    newest = tokens([messages[0], messages[-1]], tok)
    if newest > limit:
        with pytest.raises(TooLongError) as caught:
            fit(messages, tok, limit=limit, format="gemma4-large")
        assert (caught.value.tokens, caught.value.limit) == (newest, limit)
        assert str(newest) in str(caught.value)
        assert str(limit) in str(caught.value)
        return
    fitted = fit(messages, tok, limit=limit, format="gemma4-large")
    assert fitted.messages[0] == messages[0]
    assert fitted.messages[-1] == messages[-1]
    assert fitted.tokens == tokens(fitted.messages, tok) <= limit
    assert sorted(fitted.dropped) == fitted.dropped
    assert len(fitted.dropped) + len(fitted.messages) == len(messages)


def test_options_of_rendering_count(tok: Tokenizer) -> None:
    messages = turns(1)[:-1]
    tool = {"function": {"name": "f", "description": "word " * 50}}
    plain = fit(messages, tok, limit=1000, format="gemma4-large")
    armed = fit(messages, tok, limit=1000, format="gemma4-large", tools=[tool], thinking=True)
    assert armed.tokens == tokens(messages, tok, tools=[tool], thinking=True) > plain.tokens


def test_a_message_that_is_wrong_is_named_by_its_place(tok: Tokenizer) -> None:
    with pytest.raises(BadInputError, match=r"messages\[1\]"):
        fit([*turns(0), {"role": "nobody", "content": "x"}], tok, limit=100, format="gemma4-large")


def test_only_the_new_message_is_encoded(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Tokenizer(tok._vocabulary)
    fit(turns(30), own, limit=500, format="gemma4-large")
    asked: list[str] = []
    encode = own.encode
    monkeypatch.setattr(own, "encode", lambda text: asked.append(text) or encode(text))
    fit([*turns(30), {"role": "user", "content": "something new"}], own, limit=500, format="gemma4-large")
    assert asked == ["user\nsomething new"]
