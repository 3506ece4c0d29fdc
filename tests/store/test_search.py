"""What a user types finds what was said, is never syntax, and comes back as text with ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.store import Snippet, Store
from rvchat.types import Conversation, Message

Talk = Callable[..., Conversation]


def marked(snippet: Snippet) -> list[str]:
    return [snippet.text[start:end] for start, end in snippet.marks]


@pytest.fixture
def library(store: Store, talk: Talk) -> Store:
    store.create(talk("crème", "How do I caramelise a crème brûlée?", "With a torch, in about 40 seconds."))
    store.create(
        talk("code", "What does [bold]x[/] => y mean in C++?", "Nothing. <script>alert(1)</script> \x1b[2J is text")
    )
    store.create(talk("你好", "你好世界，今天天气怎么样？", "天气很好 👩‍💻"))
    return store


@pytest.mark.parametrize(
    ("text", "found", "marks"),
    [
        ("brulee", "crème-q", ["brûlée"]),
        ("CREME caramel", "crème-q", ["caramelise", "crème"]),
        ("torch seconds", "crème-a", ["torch", "seconds"]),
        ("sec", "crème-a", ["seconds"]),
        ("bold", "code-q", ["bold"]),
        ("=> y", "code-q", ["y"]),
        ("世界", "你好-q", ["世界"]),
        ("你好", "你好-q", ["你好世界"]),
        ("👩‍💻", "你好-a", ["👩‍💻"]),
        ("=>", "code-q", ["=>"]),
    ],
)
def test_what_was_said_is_found_and_marked(library: Store, text: str, found: str, marks: list[str]) -> None:
    hits = [hit for hit in library.search(text) if hit.message_id is not None]
    assert [hit.message_id for hit in hits] == [found]
    assert marked(hits[0].snippet) == marks
    assert [summary.id for summary in library.list(text) if summary.id == hits[0].conversation_id]


@pytest.mark.parametrize(
    ("text", "found", "words"),
    [
        ("世界", {"a-q", "b-q", "世界"}, {"世界"}),
        ("世界 big", {"b-q"}, {"世界"}),
        ("東京", {"c-q", "c-a"}, {"東京"}),
        ("さくら", {"c-a"}, {"さくら"}),
        ("โลก", {"d-q"}, {"โลก"}),
        ("세계", {"d-a"}, {"세계"}),
    ],
)
def test_words_without_blanks_between_are_found_wherever_they_stand(
    store: Store, talk: Talk, text: str, found: set[str], words: set[str]
) -> None:
    store.create(talk("a", "世界 hello", "-"))
    store.create(talk("b", "今天世界很大, very BIG", "-"))
    store.create(talk("c", "東京", "私は東京でさくらを見た"))
    store.create(talk("d", "สวัสดีชาวโลก", "온세계에서"))
    store.create(talk("世界"))
    hits = store.search(text)
    assert {hit.message_id or hit.conversation_id for hit in hits} == found
    assert len(hits) == len(found)
    assert {word for hit in hits for word in marked(hit.snippet)} >= words
    assert {summary.id for summary in store.list(text)} == {hit.conversation_id for hit in hits}
    assert [hit.message_id is None for hit in hits] == sorted((hit.message_id is None for hit in hits), reverse=True)
    assert len(store.search(text, 1)) == 1


def test_all_words_must_stand_together(library: Store) -> None:
    assert library.search("torch bold") == []
    assert library.list("torch bold") == []


def test_titles_come_first_and_have_no_message(library: Store) -> None:
    library.change("code", title="A torch of a title")
    first, second = library.search("torch")
    assert (first.conversation_id, first.message_id, first.role, first.name) == (
        "code",
        None,
        None,
        "A torch of a title",
    )
    assert marked(first.snippet) == ["torch"]
    assert (second.conversation_id, second.message_id, second.role) == ("crème", "crème-a", "assistant")


def test_many_titles_leave_room_for_messages(store: Store, talk: Talk) -> None:
    for number in range(10):
        store.create(replace(talk(f"t{number}"), title="kettle"))
        store.create(replace(talk(f"m{number}", question="kettle"), title=""))
    kinds = [hit.message_id is None for hit in store.search("kettle", 8)]
    assert kinds == [True] * 4 + [False] * 4
    assert len(store.search("kettle", 100)) == 20


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"', set()),
        ("'", set()),
        ("a OR torch", set()),
        ("torch NOT bold", set()),
        ("NEAR(torch seconds)", set()),
        ("content:torch", set()),
        ("tor*ch", set()),
        ("^torch", {"crème-a"}),
        ("-torch", {"crème-a"}),
        ("torch*", {"crème-a"}),
        ('"torch', {"crème-a"}),
        ("(torch", {"crème-a"}),
        ("torch AND", set()),
        ("{x}:y", {"code-q"}),
        ("+", {"code-q"}),
        ("?", {"crème-q", "code-q"}),
        ("*", set()),
        ("%", set()),
        ("_", set()),
        ("\\", set()),
    ],
)
def test_nothing_that_is_typed_is_syntax(library: Store, text: str, found: set[str]) -> None:
    assert {hit.message_id for hit in library.search(text)} == found
    assert {summary.id for summary in library.list(text)} == {id.split("-")[0] for id in found}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_any_text_can_be_typed(text: str) -> None:
    store = Store.memory()
    store.create(Conversation("c", text, 0.0, 0.0, (Message("m", None, "user", f"before {text} after", 0.0),)))
    for hit in store.search(text):
        assert all(0 <= start < end <= len(hit.snippet.text) for start, end in hit.snippet.marks)
    store.list(text)
    store.close()


def test_an_empty_search_finds_nothing_and_an_empty_filter_hides_nothing(library: Store) -> None:
    for empty in ("", "  ", "\n", "\x00"):
        assert library.search(empty) == []
    assert len(library.list("")) == len(library.list("  ")) == len(library.list(None)) == 3


def test_a_snippet_is_one_line_of_text_without_what_a_terminal_obeys(library: Store) -> None:
    (hit,) = library.search("alert")
    assert hit.snippet.text == "Nothing. <script>alert(1)</script> [2J is text"
    assert marked(hit.snippet) == ["alert"]


def test_a_message_cannot_make_up_marks(store: Store, talk: Talk) -> None:
    store.create(talk(answer="\x02aaaaaaaaaaaaaaaa\x03 forged \x02\x03 [mark]quay[/mark] <b>"))
    (hit,) = store.search("quay")
    assert marked(hit.snippet) == ["quay"]
    assert "\x02" not in hit.snippet.text


def test_a_long_message_gives_the_part_around_the_match(store: Store, talk: Talk) -> None:
    store.create(talk(answer="before " * 5000 + "needle" + " after" * 5000))
    (hit,) = store.search("needle")
    assert len(hit.snippet.text) < 300
    assert marked(hit.snippet) == ["needle"]
    store.update(replace(talk().messages[1], content="之前" * 5000 + "针尖" + "之后" * 5000))
    (hit,) = store.search("针尖")
    assert len(hit.snippet.text) < 300
    assert marked(hit.snippet) == ["针尖"]


def test_the_index_follows_every_change(store: Store, talk: Talk) -> None:
    store.create(talk())
    answer = Message("x", "c1-a", "assistant", "lighthouse", 2000.0, status="streaming")
    store.add("c1", answer)
    assert store.search("lighthouse") == []  # not while it streams
    store.update(replace(answer, content="lighthouse keeper"))
    assert store.search("keeper") == []
    store.update(replace(answer, content="lighthouse keeper", status="complete"))
    assert [hit.message_id for hit in store.search("keeper")] == ["x"]
    store.update(replace(answer, content="harbour", status="complete"))
    assert store.search("lighthouse") == []
    assert [hit.message_id for hit in store.search("harbour")] == ["x"]
    store.update(replace(answer, content="harbour master", status="streaming"))  # it goes on
    assert store.search("harbour") == []
    store.update(replace(answer, content="harbour master", status="stopped"))
    assert [hit.message_id for hit in store.search("master")] == ["x"]
    store.change("c1", title="Tides")
    assert [hit.message_id for hit in store.search("tides")] == [None]
    assert store.search("title") == []
    store.delete("c1")
    assert store.search("tides") == store.search("master") == store.list("tides") == []
    assert [summary.id for summary in store.list("tides", deleted=True)] == ["c1"]
    store.purge(older_than=-1.0)
    for index in ("title_fts", "message_fts"):  # SQLite compares the index with the texts
        store._db.execute(f"INSERT INTO {index}({index}, rank) VALUES ('integrity-check', 1)")


def test_the_limit_holds(store: Store, talk: Talk) -> None:
    for number in range(5):
        store.create(talk(f"c{number}"))
    assert len(store.search("sky", 3)) == 3
    assert len(store.search("ght s", 3)) == 3  # not a word: looked for as text
    assert len(store.list("sky", limit=2)) == 2
