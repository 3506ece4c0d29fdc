"""The notation of tool calls: values of every kind, and what is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.text.calls import CallBody, MalformedCallError
from rvchat.text.control import QUOTE
from rvchat.text.gemma4_values import ValueWriter
from rvchat.text.prompt import Control, PromptWriter

KEYS = st.text("abcÄя_- 019", min_size=1, max_size=6).filter(lambda key: key == key.strip())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def body(text: str) -> CallBody:
    written = CallBody()
    for index, part in enumerate(text.split(QUOTE)):
        if index:
            written.quote()
        written.text(part)
    return written


def arguments(text: str) -> Any:
    (call,) = body(f"call:f{{a:{text}}}").calls()
    return call.arguments["a"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_what_the_format_writes_is_read_back(given_arguments: dict[str, Any]) -> None:
    out = PromptWriter()
    out.text("call:some.tool{")
    ValueWriter(out).entries(given_arguments)
    out.text("}")
    written = CallBody()
    for part in out.prompt().parts:
        if isinstance(part, Control):
            written.quote()
        else:
            written.text(part)
    (call,) = written.calls()
    assert call.name == "some.tool"
    assert call.arguments == given_arguments
    assert json.dumps(call.arguments, sort_keys=True) == json.dumps(given_arguments, sort_keys=True)  # 1 is not 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("1.50", 1.5),
        ("-2.5E-3", -0.0025),
        ("1e3", 1000.0),
        ("007", "007"),
        ("+1", "+1"),
        ("3.", "3."),
        ("1e999", "1e999"),
        ("\u0663", "\u0663"),
        ("True", "True"),
        ("null", None),
        ("fast-mode", "fast-mode"),
        ('"x \\"y\\" \\u0041"', 'x "y" A'),
        (f"{QUOTE}a\\n\0b{QUOTE}", "a\\n\0b"),
        (f"[ {QUOTE}{QUOTE} , 1 ]", ["", 1]),
        ('"x\\ud83d\\ude00 \\ud83d"', "x😀 \ufffd"),
        ("{}", {}),
        ("[[],[{}]]", [[], [{}]]),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = arguments(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "call:f",
        "call:{}",
        "call:f g{}",
        "call:\u0444{}",
        "f{}",
        "call:f{}x",
        "call:f{},call:g{}",
        "call:f{a}",
        "call:f{a:}",
        "call:f{:1}",
        "call:f{a:1,}",
        "call:f{a:1 b:2}",
        "call:f{a:1:2}",
        "call:f{a:two words}",
        "call:f{a:[1,]}",
        "call:f{a:[1}",
        "call:f{a:{b:1}",
        'call:f{a:"x}',
        'call:f{a:x"y"}',
        f"call:f{{a:{QUOTE}x}}",
        f"call:f{{a:x{QUOTE}y{QUOTE}}}",
        f"call:f{{a{QUOTE}:1}}",
        f'call:f{{a:"x{QUOTE}y"}}',
        f"call:f{{{QUOTE}a:1}}",
        "call:f{a:" + "9" * 5000 + "}",
        "call:f{a:" + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_what_is_no_call_is_not_made_into_one(text: str) -> None:
    with pytest.raises(MalformedCallError):
        body(text).calls()


def test_a_body_is_told_as_it_was_written() -> None:
    text = f"call:f{{a:{QUOTE}\0{QUOTE},b:{QUOTE}{QUOTE}}}"
    assert body(text).written == text
    assert body(text).calls()[0].arguments == {"a": "\0", "b": ""}


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='call:f{}[]",1a \0' + "\ue000", max_size=30))
def test_nothing_but_a_call_or_a_refusal_comes_of_any_text(text: str) -> None:
    written = body(text.replace("\ue000", QUOTE))
    try:
        assert all(call.name for call in written.calls())
    except MalformedCallError:
        assert written.written == text.replace("\ue000", QUOTE)
