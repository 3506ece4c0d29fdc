"""Markdown read block by block, as it grows, and laid out in cells."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content

from rvchat.tui.markdown.blocks import Code, Heading, Item, Paragraph, Quote, Rule, Table
from rvchat.tui.markdown.code import highlight
from rvchat.tui.markdown.document import Document
from rvchat.tui.markdown.layout import Line, lay_out

SAMPLE = """\
# Title

Some **bold**, *slanted*, `code` and ~~gone~~ text
that goes on.

1. one
2. two

   ```python
   def f(): pass
   ```
3. three
   - nested
   - more

| name | count |
|------|------:|
| a    |     1 |
| b    |    22 |

> quoted
> text

```python
def f(x):
    return "x"  # why
```

---

The end.
"""


def lines(source: str, width: int = 40) -> list[str]:
    numbers = itertools.count()
    return [
        line.content.plain.rstrip()
        for block in Document(source).blocks
        for line in lay_out(block, width, lambda: next(numbers))
    ]


def all_lines(document: Document, width: int) -> list[Line]:
    return [line for block in document.blocks for line in lay_out(block, width, lambda: 0)]


def test_kinds_of_blocks() -> None:
    kinds = [type(block) for block in Document(SAMPLE).blocks]
    assert kinds == [Heading, Paragraph, Item, Item, Item, Table, Quote, Code, Rule, Paragraph]


def test_marks_become_named_spans_and_no_mark_is_left_in_the_text() -> None:
    (paragraph,) = Document("a **b** *c* `d` ~~e~~ [f](http://g.h)").blocks
    assert isinstance(paragraph, Paragraph)
    content = paragraph.content
    assert content.plain == "a b c d e f (http://g.h)"
    marked = {content.plain[span.start : span.end]: span.style for span in content.spans}
    assert marked == {
        "b": "strong",
        "c": "em",
        "d": "inline-code",
        "e": "strike",
        "f": "link:http://g.h",
        "http://g.h": "target",
    }


@pytest.mark.parametrize("text", ["<div>hello</div>", "[bold]x[/]", "a <b>c</b> d", "<!-- x -->"])
def test_html_and_console_markup_are_text(text: str) -> None:
    assert lines(text) == [text]


def test_list_items_keep_their_numbers_and_hang_behind_them() -> None:
    assert lines("9. nine\n10. ten is a long item that wraps", width=20) == [
        "9. nine",
        "10. ten is a long",
        "    item that wraps",
    ]


def test_table_columns_line_up_and_shrink_to_the_width() -> None:
    rows = lines("| a | b |\n|---|--:|\n| some long cell text here | 1 |\n| x | 22 |", width=20)
    bars = {row.index("│") for row in rows if "│" in row}
    assert len(bars) == 1
    assert max(len(row) for row in rows) <= 20
    assert "".join(rows).count("22") == 1


def test_table_on_a_terminal_too_narrow_for_columns_is_read_row_by_row() -> None:
    rows = lines("| first | second | third |\n|---|---|---|\n| a | b | c |", width=12)
    assert rows == ["first: a", "second: b", "third: c"]


def test_code_is_exact_and_its_language_named() -> None:
    document = Document(SAMPLE)
    (code,) = [block for block in document.blocks if isinstance(block, Code)]
    assert code.language == "python"
    assert code.text == 'def f(x):\n    return "x"  # why'


def test_colours_of_code() -> None:
    first, second = highlight("python", ["def f():", "    return 1  # why"])
    assert {first.plain[s.start : s.end]: s.style for s in first.spans}["def"] == "code-keyword"
    assert {second.plain[s.start : s.end]: s.style for s in second.spans}["# why"] == "code-comment"
    assert highlight("no-such-language", ["a"]) == [Content("a")]


def test_grown_letter_by_letter_reads_as_at_once() -> None:
    grown = Document()
    for letter in SAMPLE:
        grown.append(letter)
    assert grown.blocks == Document(SAMPLE).blocks
    assert grown.source == SAMPLE


def test_open_fence_shows_what_has_come_and_takes_lines_without_reading_the_rest_again() -> None:
    document = Document("text\n\n```py\na = 1\n")
    assert document.fence is not None
    document.append("b = ")
    assert document.blocks[-1] == Code("py", "a = 1\nb = ")
    document.append("2\n``")
    assert document.blocks[-1] == Code("py", "a = 1\nb = 2\n``")
    document.append("`\nafter")
    assert document.fence is None
    assert document.blocks[1:] == [Code("py", "a = 1\nb = 2"), Paragraph(Content("after"))]


def test_fence_inside_a_longer_fence_does_not_end_it() -> None:
    document = Document("````md\n```py\nx\n```\n````\nafter\n")
    assert document.blocks == [Code("md", "```py\nx\n```"), Paragraph(Content("after"))]


def test_blocks_before_the_last_are_not_read_again() -> None:
    document = Document("".join(f"- item {n}\n" for n in range(500)))
    assert len(document.frozen) == 499
    first = document.frozen[0]
    document.append("- one more\n")
    assert document.frozen[0] is first
    assert len(document.blocks) == 501


@pytest.mark.parametrize("width", [2, 5, 13, 40, 80])
def test_no_line_is_wider_than_asked(width: int) -> None:
    source = SAMPLE + "\n你好👩‍💻 é " * 9 + "\n\n| 你好 | 👩‍💻 |\n|---|---|\n| é | 한국어 |\n"
    least = {2: 8, 5: 8}.get(width, width)  # a list's marker and one wide letter need that much
    assert max(line.content.cell_length for line in all_lines(Document(source), width)) <= least


def test_white_space_at_the_end_can_be_taken_back() -> None:
    document = Document("one\n\ntwo \n\n")
    assert document.trim("one\n\ntwo")
    assert document.source == "one\n\ntwo"
    document.append(" more\n")
    assert [block.content.plain for block in document.blocks if isinstance(block, Paragraph)] == ["one", "two more"]
    assert not document.trim("one")
    assert not Document("```\na\n\n").trim("```\na")


PIECES = st.sampled_from(
    [
        "word ", "two words", "\n", "\n\n", "- item", "1. first", "2. second", "   - nested", "```\n", "```py\n",
        "~~~\n", "# head", "> quote", "| a | b |\n|---|---|\n", "| 1 | 2 |\n", "**bold**", "`code`", "    indented",
        "---", "你好", "===", "* * *", "+ plus", "3) other", "\t", "[x]", "![i](j)", "<b>",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.data())
def test_any_way_of_growing_reads_the_same(source: str, data: st.DataObject) -> None:
    grown = Document()
    at = 0
    while at < len(source):
        step = data.draw(st.integers(1, 9))
        grown.append(source[at : at + step])
        at += step
    assert grown.source == source
    assert _text(grown) == _text(Document(source))


def _text(document: Document) -> list[str]:
    return [line.content.plain for line in all_lines(document, 60)]
