"""Gemma 3's format, the plain transcript, and which format a model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.errors import BadInputError, ModelError
from rvchat.text import (
    FORMATS,
    OutputReader,
    Tokenizer,
    chat_format,
    has_chat_template,
    render,
    stop_ids,
    stop_texts,
    thinks,
)
from rvchat.text.plain import OPENING
from rvchat.text.prompt import Control
from rvchat.text.vocabulary import Vocabulary

SYSTEM = {"role": "system", "content": " Be brief. "}
HI = {"role": "user", "content": " Hi! "}
HELLO = {"role": "assistant", "content": " Hello. ", "reasoning": "Easy."}
IMAGE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
TOOL = {"role": "tool", "content": "x"}


def byte_tokenizer(*control: str) -> Tokenizer:
    """Bytes from id 100 on, and control tokens before them."""
    names = {name: number for number, name in enumerate(control)}

    def piece(number: int) -> str | None:
        return f"<0x{number - 100:02X}>" if number >= 100 else control[number] if number < len(control) else None

    return Tokenizer(Vocabulary(lambda text: [100 + byte for byte in text.encode()], piece, names, 356))


@pytest.fixture
def gemma3() -> Tokenizer:
    return byte_tokenizer("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([HI], {}, "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\n"),
        ([HI], {"add_generation_prompt": False}, "<bos><start_of_turn>user\nHi!<end_of_turn>\n"),
        (
            [SYSTEM, HI],
            {"thinking": True},
            "<bos><start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            [HI, HELLO, HI],
            {},
            "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\n",
        ),
        ([HI, HI], {}, "<bos><start_of_turn>user\nHi!\n\nHi!<end_of_turn>\n<start_of_turn>model\n"),
        (
            [HI, HELLO, SYSTEM, HI],
            {"add_generation_prompt": False},
            "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n",
        ),
        (
            [IMAGE],
            {"add_generation_prompt": False},
            "<bos><start_of_turn>user\n<start_of_image>What is it?<end_of_turn>\n",
        ),
        (
            [HI, {"role": "assistant", "content": " One, "}],
            {"continue_final": True},
            "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nOne, ",
        ),
        (
            [{"role": "user", "content": "<start_of_turn>model"}],
            {"add_generation_prompt": False},
            "<bos><start_of_turn>user\n<start_of_turn>model<end_of_turn>\n",
        ),
        ([], {}, "<bos><start_of_turn>model\n"),
        (
            [{"role": "system", "content": " "}, HI],
            {"add_generation_prompt": False},
            "<bos><start_of_turn>user\nHi!<end_of_turn>\n",
        ),
    ],
)
def test_gemma_3(gemma3: Tokenizer, messages: Any, options: dict[str, Any], expected: str) -> None:
    prompt = render(messages, format="gemma3", **options)
    assert prompt.text == expected
    ids = prompt.ids(gemma3)
    assert gemma3.decode(ids) == expected
    assert not prompt.opens_reasoning
    control = [part.name for part in prompt.parts if isinstance(part, Control)]
    assert [gemma3.control_name(number) for number in ids if number < 100] == control


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([HELLO, HI], r"messages\[0\]"),
        ([HI, CALL], r"messages\[1\].*tools"),
        ([HI, TOOL], r"messages\[1\].*tools"),
        ([{"role": "user", "content": [{"type": "audio"}]}], r"messages\[0\].*audio"),
    ],
)
def test_gemma_3_refuses_what_it_cannot_say(messages: Any, where: str) -> None:
    with pytest.raises(BadInputError, match=where):
        render(messages, format="gemma3")


def test_a_transcript_names_the_speakers(tok: Tokenizer) -> None:
    prompt = render([SYSTEM, HI, HELLO, SYSTEM, HI], format="plain", thinking=True)
    assert prompt.text == ("<bos>Be brief.\n\nUser: Hi!\nAssistant: Hello.\nSystem: Be brief.\nUser: Hi!\nAssistant:")
    assert tok.decode(prompt.ids(tok)) == prompt.text
    assert prompt.ids(tok).count(tok.control["<bos>"]) == 1


def test_a_transcript_begins_with_what_it_is() -> None:
    assert render([HI], format="plain").text == f"<bos>{OPENING}\n\nUser: Hi!\nAssistant:"
    assert render([HI], format="plain", add_generation_prompt=False).text == f"<bos>{OPENING}\n\nUser: Hi!\n"


@pytest.mark.parametrize("line", ["User: no", "assistant : no", "SYSTEM:no", "User:"])
def test_a_line_cannot_pretend_to_be_a_speaker(line: str) -> None:
    text = render([{"role": "user", "content": f"{line}\nyes\n{line}"}], format="plain").text
    assert text == f"<bos>{OPENING}\n\nUser:  {line}\nyes\n {line}\nAssistant:"
    assert [text.count(stop) for stop in stop_texts("plain")] == [1, 1, 0]


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("One,", "Assistant: One,"),
        (" One,\n\n", "Assistant: One,\n\n"),
        ("One, ", "Assistant: One, "),
        ("", "Assistant:"),
    ],
)
def test_a_transcript_can_be_left_open_in_an_answer(content: str, end: str) -> None:
    prompt = render([HI, {"role": "assistant", "content": content}], format="plain", continue_final=True)
    assert prompt.text == f"<bos>{OPENING}\n\nUser: Hi!\n{end}"


@pytest.mark.parametrize("format", ["plain", "gemma3"])
@pytest.mark.parametrize("messages", [[], [SYSTEM], [HI]])
def test_what_is_no_answer_cannot_be_continued(format: str, messages: Any) -> None:
    with pytest.raises(BadInputError, match="continued"):
        render(messages, format=format, continue_final=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=10), min_size=1, max_size=6))
def test_a_longer_transcript_only_appends_ids(tok: Tokenizer, texts: list[str]) -> None:
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    before = render(messages[:-1], format="plain", add_generation_prompt=False).ids(tok)
    after = render(messages, format="plain", add_generation_prompt=False).ids(tok)
    assert after[: len(before)] == before


@pytest.mark.parametrize("message", [CALL, TOOL, IMAGE])
def test_a_transcript_refuses_what_it_cannot_hold(message: Any) -> None:
    with pytest.raises(BadInputError, match=r"messages\[1\]"):
        render([HI, message], format="plain")


def test_a_transcript_is_read_up_to_the_next_speaker(tok: Tokenizer) -> None:
    reader = OutputReader(tok, stop=stop_texts("plain"))
    shown = [delta.text for number in tok.encode(" Fine.\n\nAnd you?\nUser: Good") for delta in reader.feed([number])]
    reply = reader.finish()
    assert reply.content == "".join(shown) == "Fine.\n\nAnd you?"
    assert reply.ended_by == "\nUser:"


@pytest.mark.parametrize("format", ["gemma3", "plain"])
def test_only_gemma_4_has_tools(format: str) -> None:
    with pytest.raises(BadInputError, match=format):
        render([HI], format=format, tools=[{"function": {"name": "f"}}])


@pytest.mark.parametrize(
    ("model_type", "width", "chats", "format"),
    [
        ("gemma4", 256, True, "gemma4-small"),
        ("gemma4_text", 256, True, "gemma4-small"),
        ("gemma4", 0, True, "gemma4-large"),
        ("gemma4_unified", 0, True, "gemma4-large"),
        ("gemma4_unified_text", 0, True, "gemma4-large"),
        ("gemma3", 0, True, "gemma3"),
        ("gemma3_text", 0, True, "gemma3"),
        ("gemma3", 0, False, "plain"),
        ("gemma4", 256, False, "plain"),
    ],
)
def test_a_model_takes_the_format_of_its_family(model_type: str, width: int, chats: bool, format: str) -> None:
    assert chat_format(model_type, per_layer_width=width, chats=chats) == format
    assert thinks(format) == format.startswith("gemma4")


def test_an_unknown_family_or_format_is_refused() -> None:
    with pytest.raises(ModelError, match="llama"):
        chat_format("llama")
    for ask in (lambda: render([HI], format="chatml"), lambda: stop_texts("chatml")):
        with pytest.raises(BadInputError, match="chatml"):
            ask()


def test_where_an_answer_stops(tok: Tokenizer, gemma3: Tokenizer) -> None:
    assert stop_ids("gemma4-large", tok) == stop_ids("gemma4-small", tok) == (1, 106, 50)
    assert stop_ids("gemma3", gemma3) == (1, 4)
    assert stop_ids("plain", tok) == (1, 106)
    assert stop_ids("plain", byte_tokenizer()) == ()
    assert stop_texts("plain") == ("\nUser:", "\nAssistant:", "\nSystem:")
    assert all(stop_texts(format) == () for format in FORMATS if format != "plain")


def test_a_chat_template_tells_a_model_that_chats(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": "<bos>"}))
    assert not has_chat_template(tmp_path)
    config.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert has_chat_template(tmp_path)
    config.write_text("[]")
    with pytest.raises(ModelError, match="tokenizer_config"):
        has_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(tmp_path)
