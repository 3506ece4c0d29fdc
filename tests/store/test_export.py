"""What was said leaves in six forms, whole where that is promised and as text everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt

from rvchat.errors import BadInputError
from rvchat.store import Store
from rvchat.store.export import FORMATS, export
from rvchat.store.imports import Found, read
from rvchat.types import Conversation, Message, Stats, ToolCall

Talk = Callable[..., Conversation]
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "export.schema.json").read_text(encoding="utf-8"))

HOSTILE = (
    "</script><script>document.title='owned'</script> <img src=x onerror=alert(1)> [bold]x[/] \x1b[2J\x9b31m \x07\n\n"
    "![pixel](https://evil.example/p.png) [bank](https://evil.example/) [x](javascript:alert(1)) <https://example.org>\n\n"
    "שלום עולם \u202eoverride\u202c 👩‍💻 é\n\n"
    "```python\nprint('</pre></code><b>')\n```\n\n"
    '```"><b>\nstill code'
)


def written(conversation: Conversation, format: str) -> str:
    return "".join(export([conversation], format))


def test_json_is_lossless_and_is_what_the_schema_says(tmp_path: Path, everything: Conversation) -> None:
    text = written(everything, "json")
    jsonschema.validate(json.loads(text), SCHEMA)
    (tmp_path / "export").write_text(text, encoding="utf-8")
    assert [item.conversation for item in read(tmp_path / "export") if isinstance(item, Found)] == [everything]


def test_the_schema_names_every_key_that_is_written(everything: Conversation) -> None:
    def names(value: Any, schema: dict[str, Any]) -> None:
        while "$ref" in schema or "anyOf" in schema:
            schema = schema["anyOf"][0] if "anyOf" in schema else SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        if isinstance(value, dict) and "properties" in schema:
            assert value.keys() == schema["properties"].keys() or value.keys() <= {
                "name",
                "arguments",
                "raw",
                "id",
                "result",
            }
            for key, item in value.items():
                names(item, schema["properties"][key])
        elif isinstance(value, list) and "items" in schema:
            for item in value:
                names(item, schema["items"])

    names(json.loads(written(everything, "json")), SCHEMA)


def test_the_schema_refuses_what_is_something_else() -> None:
    for wrong in (
        {},
        {"format": "other", "version": 1, "conversations": []},
        {"format": "rvchat", "version": 1, "conversations": [{}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_json_holds_control_characters_where_no_terminal_obeys_them(talk: Talk) -> None:
    text = written(talk(answer=HOSTILE), "json")
    assert json.loads(text)["conversations"][0]["messages"][1]["content"] == HOSTILE
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_unknown_keys_are_ignored(tmp_path: Path, talk: Talk) -> None:
    document = json.loads(written(talk(), "json"))
    document["later"] = document["conversations"][0]["later"] = document["conversations"][0]["messages"][0]["later"] = [
        1
    ]
    document["conversations"][0]["sampling"]["later"] = 3
    path = tmp_path / "export"
    path.write_text(json.dumps(document))
    assert [item.conversation for item in read(path) if isinstance(item, Found)] == [talk()]


def test_an_answer_that_was_being_written_comes_in_stopped(store: Store, tmp_path: Path, talk: Talk) -> None:
    store.create(talk())
    store.add("c1", Message("x", "c1-a", "assistant", "Half", 2000.0, status="streaming"))
    path = tmp_path / "export"
    path.write_text("".join(export([store.conversation("c1")], "json")))
    (item,) = read(path)
    assert isinstance(item, Found)
    assert [m.status for m in item.conversation.messages] == ["complete", "complete", "stopped"]


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "json"])
def test_nothing_in_an_export_is_obeyed_by_a_terminal(talk: Talk, everything: Conversation, format: str) -> None:
    conversation = replace(talk(question=HOSTILE, answer=HOSTILE), title=HOSTILE, system=HOSTILE, model=HOSTILE)
    answer = replace(
        conversation.messages[1],
        reasoning=HOSTILE,
        model=HOSTILE,
        status="failed",
        error=HOSTILE,
        tool_calls=(ToolCall(HOSTILE, {"a": HOSTILE}, id=HOSTILE, result=HOSTILE), ToolCall("f", {}, raw=HOSTILE)),
    )
    conversation = replace(conversation, messages=(conversation.messages[0], answer))
    text = "".join(export([conversation, everything], format))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "[2J" in text
    assert "👩‍💻" in text or format in ("openwebui", "jsonl")


@pytest.mark.parametrize("format", FORMATS)
def test_half_a_character_does_not_stop_an_export(talk: Talk, format: str) -> None:
    bad = "half \ud83d of it"
    conversation = talk("c1", bad, bad)
    call = ToolCall(bad, {bad: [bad]}, result=bad)
    answer = replace(conversation.messages[1], reasoning=bad, model=bad, tool_calls=(call, ToolCall("f", {}, raw=bad)))
    conversation = replace(conversation, title=bad, system=bad, messages=(conversation.messages[0], answer))
    text = written(conversation, format)
    assert "half \ufffd of it" in text.encode().decode()


def test_plain_text_says_who_said_what(everything: Conversation, talk: Talk) -> None:
    text = "".join(export([everything, talk()], "txt"))
    assert text == (
        "Every field\n===========\n1970-01-01 00:00 UTC · gemma · from other\n\nSystem prompt:\n    You add.\n\n"
        "You, 1970-01-01 00:00 UTC:\n[text: sum.txt]\n2 + 2?\n\n"
        "gemma, 1970-01-01 00:00 UTC:\n4\n[Stopped]\n\n"
        "Tool, 1970-01-01 00:00 UTC:\n4\n"
        "\n" + "-" * 72 + "\n\n"
        "Title of c1\n===========\n1970-01-01 00:16 UTC\n\n"
        "You, 1970-01-01 00:16 UTC:\nWhy is the sky blue?\n\nm, 1970-01-01 00:16 UTC:\nLight scatters.\n"
    )


def test_without_a_title_the_first_question_is_the_heading(talk: Talk) -> None:
    untitled = replace(talk(question="Why\nis *it* blue?"), title="")
    assert written(untitled, "md").startswith("# Why is \\*it\\* blue?\n")
    assert written(Conversation("c", "", 0.0, 0.0), "txt").startswith("Untitled\n")


def test_thoughts_calls_and_endings_are_in_plain_text(everything: Conversation) -> None:
    text = written(replace(everything, leaf_id="a1"), "txt")
    assert "[Thought for 2 s]\n    A sum.\n" in text
    assert '[tool call] add({"a": 2, "b": [2.5, null, "x"]})\n→ 4\n' in text
    assert "[tool call] run(2+2)\n" in text
    assert "[Failed: out of memory]\n" in text


def test_markdown_keeps_the_words_and_quotes_the_thoughts(everything: Conversation) -> None:
    text = written(replace(everything, leaf_id="a1", title="*Every* <field>"), "md")
    assert text.startswith("# \\*Every\\* \\<field\\>\n\n*1970-01-01 00:00 UTC · gemma · from other*\n")
    assert "\n> **System prompt**\n>\n> You add.\n" in text
    assert "\n## gemma\n\n> **Thought for 2 s**\n>\n> A sum.\n\nLet me see.\n" in text
    assert '```\nadd({"a": 2, "b": [2.5, null, "x"]})\n→ 4\n```' in text
    assert "\n*Failed: out of memory*\n" in text


@pytest.mark.parametrize("fence", ["```", "~~~", "`````", "   ```", "```python"])
def test_a_fence_left_open_does_not_swallow_what_follows(talk: Talk, fence: str) -> None:
    first = talk(answer=f"Look:\n{fence}\ncode\n``` x\n~~~ y")
    more = Message("m", "c1-a", "user", "Go on", 1002.0)
    text = written(replace(first, messages=(*first.messages, more), leaf_id="m"), "md")
    headings = [t for t in MarkdownIt().parse(text) if t.type == "heading_open"]
    assert len(headings) == 4  # the title and three messages


def test_a_code_block_in_markdown_is_exactly_its_source(talk: Talk) -> None:
    code = "def f():\n\treturn '`'  # ```\n\n"
    (block,) = [t for t in MarkdownIt().parse(written(talk(answer=f"~~~python\n{code}~~~"), "md")) if t.type == "fence"]
    assert block.content == code


def test_jsonl_is_what_the_chat_api_takes(everything: Conversation, talk: Talk) -> None:
    lines = [json.loads(line) for line in export([replace(everything, leaf_id="a1"), talk()], "jsonl")]
    assert lines[0] == {
        "messages": [
            {"role": "system", "content": "You add."},
            {"role": "user", "content": "2 + 2?"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": "A sum.",
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a":2,"b":[2.5,null,"x"]}'},
                    },
                    {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": "2+2"}},
                ],
            },
            {"role": "tool", "content": "4", "tool_call_id": "t1"},
        ],
        "model": "gemma",
    }
    assert [message["role"] for message in lines[1]["messages"]] == ["user", "assistant"]


def test_a_tool_message_answers_the_call_before_it(talk: Talk) -> None:
    first = talk()
    asks = replace(first.messages[1], content="", tool_calls=(ToolCall("f", {}, id="x"), ToolCall("g", {})))
    results = [Message(f"r{n}", asks.id if n == 0 else "r0", "tool", str(n), 1002.0) for n in range(2)]
    (line,) = export([replace(first, messages=(first.messages[0], asks, *results), leaf_id="r1")], "jsonl")
    messages = json.loads(line)["messages"]
    assert [message.get("tool_call_id") for message in messages] == [None, None, "x", "call_1"]


def same(there: Conversation, here: Conversation) -> None:
    """Branches, words, thoughts and models are those of before, whatever their ids."""

    def shape(conversation: Conversation) -> list[Any]:
        place = {m.id: index for index, m in enumerate(conversation.messages)}
        return [
            (
                *(place.get(m.parent_id or ""), m.role, m.content, m.reasoning, int(m.created)),
                m.model if m.role == "assistant" else None,
                [(c.name, c.arguments, c.raw, c.id, c.result) for c in m.tool_calls],
            )
            for m in conversation.messages
        ]

    assert shape(there) == shape(here)
    assert [m.content for m in there.branch()] == [m.content for m in here.branch()]
    assert (there.title, there.system, there.pinned, int(there.created)) == (
        here.title,
        here.system,
        here.pinned,
        int(here.created),
    )


def test_openwebui_keeps_branches_thoughts_and_models(tmp_path: Path, everything: Conversation, talk: Talk) -> None:
    everything = replace(everything, messages=everything.messages[:4])  # it has no messages of role system
    branches = talk("c2", question="Tell me <b> & co", answer="> quoted\n\n</details> a &lt; b")
    second = replace(
        branches.messages[1], id="c2-b", content="Other", reasoning="> why\n\n</details> &amp;", model="other"
    )
    branches = replace(branches, messages=(*branches.messages, second))
    path = tmp_path / "chats.json"
    path.write_text("".join(export([everything, branches], "openwebui")), encoding="utf-8")
    (one, two) = read(path)
    assert isinstance(one, Found)
    assert isinstance(two, Found)
    assert one.program == "openwebui"
    same(one.conversation, everything)
    same(two.conversation, branches)
    chat = json.loads(path.read_text(encoding="utf-8"))[1]["chat"]
    assert chat["models"] == ["m", "other"]
    assert chat["history"]["messages"]["c2-q"]["childrenIds"] == ["c2-a", "c2-b"]
    assert [message["id"] for message in chat["messages"]] == ["c2-q", "c2-a"]


def test_no_conversations_are_still_a_file_of_their_kind() -> None:
    assert json.loads("".join(export([], "json")))["conversations"] == []
    assert json.loads("".join(export([], "openwebui"))) == []
    assert "".join(export([], "jsonl")) == "".join(export([], "txt")) == "".join(export([], "md")) == ""
    assert "".join(export([], "html")).endswith("</html>\n")


def test_a_form_that_does_not_exist_is_said() -> None:
    with pytest.raises(BadInputError, match="pdf"):
        export([], "pdf")


# --- HTML ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would make of a page: its tags with attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page(conversation: Conversation) -> Page:
    return Page(written(conversation, "html"))


def test_a_page_has_no_tag_but_ours_and_asks_for_nothing(talk: Talk) -> None:
    conversation = replace(talk(question=HOSTILE, answer=HOSTILE), title=HOSTILE, system=HOSTILE, model=HOSTILE)
    answer = replace(
        conversation.messages[1],
        reasoning=HOSTILE,
        model=HOSTILE,
        tool_calls=(ToolCall(HOSTILE, {HOSTILE: 1}, result=HOSTILE),),
    )
    found = page(replace(conversation, messages=(conversation.messages[0], answer)))
    assert {tag for tag, _ in found.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "header", "article", "h1", "h2", "p", "div"),
        *("details", "summary", "pre", "code", "span", "a"),
    }
    names = {name for _, attributes in found.tags for name in attributes}
    assert names <= {"lang", "charset", "http-equiv", "content", "name", "class", "href", "rel", "dir"}
    links = [attributes for tag, attributes in found.tags if tag == "a"]
    assert {link["href"] for link in links} == {"https://evil.example/", "https://example.org"}
    assert {link["rel"] for link in links} == {"noopener noreferrer nofollow"}
    policy = next(a["content"] or "" for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for shown in (
        "</script><script>document.title='owned'</script>",
        "<img src=x onerror=alert(1)>",
        "[bold]x[/] [2J31m",
        "[image: pixel] (https://evil.example/p.png)",
        "bank (https://evil.example/)",
        "[x](javascript:alert(1))",
        "שלום עולם override 👩‍💻 é",
        "print('</pre></code><b>')",
        "still code",
    ):
        assert shown in found.text, shown


def test_code_is_coloured_and_stays_exactly_its_source(talk: Talk) -> None:
    code = "\n\ndef f(x):\n    return '<&>'  # ok\n\n"
    source = written(talk(answer=f"```python\n{code}```"), "html")
    assert '<span class="k">def</span>' in source
    block = source[source.index("<pre") : source.index("</pre>")]
    assert Page(block).text == code
    for language in ("nosuchlanguage", "", "python" + "x" * 500, "<b>"):
        assert "return '&lt;&amp;&gt;'" in written(talk(answer=f"```{language}\n{code}```"), "html").replace(
            "&#x27;", "'"
        )


def test_deep_lists_lose_no_words(talk: Talk) -> None:
    answer = "\n".join("  " * depth + f"- level{depth}" for depth in range(30))
    assert [word for word in page(talk(answer=answer)).text.split() if "level" in word] == [
        f"level{n}" for n in range(30)
    ]


def test_links_of_other_kinds_are_words(talk: Talk) -> None:
    answer = "[a](ftp://x/y) [b](tel:1) [c](//evil.example) [d](x.html) [e](mailto:a@b.example) [f](data:text/html,x) [g](HTTPS://q)"
    found = page(talk(answer=answer))
    assert [a["href"] for t, a in found.tags if t == "a"] == ["mailto:a@b.example", "HTTPS://q"]
    for words in (
        "a (ftp://x/y)",
        "b (tel:1)",
        "c (//evil.example)",
        "d (x.html)",
        "e (mailto:a@b.example)",
        "[f](data:text/html,x)",
    ):
        assert words in found.text


def test_what_a_person_typed_stands_line_for_line(talk: Talk) -> None:
    found = page(talk(question="# not a heading\n  * nor a list <i>\n\n    as typed"))
    assert "# not a heading\n  * nor a list <i>\n\n    as typed" in found.text


def test_thoughts_are_folded_and_figures_shown(everything: Conversation) -> None:
    source = written(replace(everything, leaf_id="a1"), "html")
    assert '<details>\n<summary>Thought for 2 s</summary>\n<div class="plain">A sum.</div>\n</details>' in source
    assert "Failed: out of memory · 7 tokens, 3.0 tokens/s · 1970-01-01 00:00 UTC" in source
    assert "<details open" not in source


def test_a_page_of_all_conversations_has_each_under_its_heading(talk: Talk) -> None:
    found = Page("".join(export([talk("a"), talk("b")], "html")))
    assert [t for t, _ in found.tags].count("h1") == 2
    assert [t for t, _ in found.tags].count("style") == 1


def test_statistics_of_one_token_have_no_speed(talk: Talk) -> None:
    first = talk()
    answer = replace(first.messages[1], stats=Stats(new_tokens=1))
    assert "1 token · " in written(replace(first, messages=(first.messages[0], answer)), "html")
