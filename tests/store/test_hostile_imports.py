"""Files that were made to harm: circles, gaps, bombs, wrong kinds of everything. None of them stops an import, and
nothing that they name is opened."""

from __future__ import annotations

import builtins
import copy
import io
import json
import os
import socket
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rvchat.errors import BadInputError
from rvchat.store import Store
from rvchat.store.imports import Found, Skipped, files, import_files, read

SAMPLES = Path(__file__).parents[1] / "data" / "store" / "imports"
JSON_SAMPLES = [path for path in sorted(SAMPLES.rglob("*.json")) if path.name != "expected.json"]


def chat(nodes: dict[str, str | None], current: str | None = None) -> list[dict[str, Any]]:
    """A ChatGPT export of one conversation with these nodes, by their parents."""
    mapping = {
        name: {
            "id": name,
            "parent": parent,
            "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [f"text {name}"]}},
        }
        for name, parent in nodes.items()
    }
    return [{"id": "x", "title": "t", "create_time": 1.0, "mapping": mapping, "current_node": current}]


def imported(tmp_path: Path, document: Any) -> list[Found | Skipped]:
    path = tmp_path / "hostile"
    path.write_text(json.dumps(document))
    return list(read(path, now=1.0))


@pytest.mark.parametrize(
    ("nodes", "current"),
    [
        ({"a": "a"}, "a"),
        ({"a": "b", "b": "a"}, "a"),
        ({"a": "c", "b": "a", "c": "b", "d": "c"}, "d"),
        ({"a": "gone", "b": "a"}, "b"),
        ({"a": None, "b": "a"}, "gone"),
        ({"b": "a", "a": None}, "b"),
        ({"a": None, "b": None, "c": "b"}, None),
    ],
)
def test_circles_and_gaps_are_survived(tmp_path: Path, nodes: dict[str, str | None], current: str | None) -> None:
    (item,) = imported(tmp_path, chat(nodes, current))
    assert isinstance(item, Found)
    assert {m.content for m in item.conversation.messages} == {f"text {name}" for name in nodes}
    assert item.conversation.branch()
    store = Store.memory()
    store.create(item.conversation)  # refuses a tree that is none
    assert store.conversation(item.conversation.id) == item.conversation
    store.close()


def test_a_circle_in_the_log_of_llm_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    path.write_bytes((SAMPLES / "llm" / "logs.db").read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        (tip,) = connection.execute("SELECT tip_message_hash FROM threads LIMIT 1").fetchone()
        connection.execute("UPDATE messages SET parent_hash = ? WHERE parent_hash IS NULL", (tip,))
        connection.execute("UPDATE threads SET forked_from = id")
    found = [item for item in read(path) if isinstance(item, Found)]
    assert len(found) == 5
    assert all(item.conversation.branch() for item in found)


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE conversations (id TEXT)")
        connection.execute("CREATE TABLE responses (id TEXT)")
        connection.execute(
            "CREATE VIEW turns AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
        )
    assert list(read(path)) == []


def test_one_long_branch_takes_time_by_its_length(tmp_path: Path) -> None:
    count = 15_000
    nodes: dict[str, str | None] = {str(n): str(n - 1) if n else None for n in range(count)}
    backwards = dict(reversed(nodes.items()))
    start = time.monotonic()
    for tree in (nodes, backwards):
        (item,) = imported(tmp_path, chat(tree, str(count - 1)))
        assert isinstance(item, Found)
        assert len(item.conversation.branch()) == count
    assert time.monotonic() - start < 120  # a matter of seconds


@pytest.mark.parametrize(
    "content",
    [
        '<details type="reasoning"' * 40_000,
        '<details type="reasoning">' * 40_000,
        '<details type="tool_calls" ' + "a" * 400_000 + "></details>",
        "\ue200" * 400_000,
        "<think>" * 100_000,
    ],
)
def test_no_pattern_takes_forever(tmp_path: Path, content: str) -> None:
    start = time.monotonic()
    message = {"id": "m", "role": "assistant", "content": content}
    imported(tmp_path, [{"id": "x", "chat": {"history": {"messages": {"m": message}}}}])
    imported(tmp_path, [{"conversations": [{"from": "gpt", "value": content}]}])
    node = {"message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": [content]}}}
    imported(tmp_path, [{"id": "x", "mapping": {"a": node}}])
    assert time.monotonic() - start < 20


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(files.LARGEST + 1)
    with pytest.raises(BadInputError, match="larger than"):
        list(read(path))


def test_deep_values_are_refused_and_the_rest_is_taken(store: Store, tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    good = json.dumps({"messages": [{"role": "user", "content": "Q"}]})
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"messages": [{{"role": "user", "content": {deep}}}]}}\n{good}\n')
    report = import_files(store, [path])
    assert (report.added, [item.id for item in report.skipped]) == (1, ["1"])
    nested = '{"a":' * 900 + "1" + "}" * 900
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": nested}}]}
    path.write_text(
        json.dumps({"messages": [call]}) + "\n" + json.dumps({"messages": [{"role": "user", "content": "R"}]})
    )
    report = import_files(store, [path])
    assert report.added + len(report.skipped) == 2
    assert "R" in {store.summary(s.id).preview for s in store.list()}


def test_one_bad_conversation_is_reported_and_the_rest_is_taken(store: Store, tmp_path: Path) -> None:
    good = {"id": "good", "messages": [{"id": "g1", "role": "user", "content": "Q"}]}
    bad: list[Any] = [
        {"id": "no role", "messages": [{"id": "a", "content": "x"}]},
        {"id": "", "messages": []},
        {"id": "time", "created": "yesterday"},
        {"id": "late", "created": 1e300},
        {"id": "list", "messages": {"a": 1}},
        {"id": "status", "messages": [{"id": "a", "role": "user", "status": "lost"}]},
        {"id": "sampling", "sampling": {"temperature": -4}},
        {"id": "two\nlines", "messages": []},
        {"id": "clash", "messages": [{"id": "g1", "role": "user", "content": "Not yours"}]},
        {"id": "flag", "pinned": "yes"},
        {"id": "big", "max_new_tokens": 10**30},
        17,
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"format": "rvchat", "version": 1, "conversations": [good, *bad]}))
    report = import_files(store, [path])
    assert report.added == 1
    assert len(report.skipped) == len(bad)
    assert all(item.reason for item in report.skipped)
    assert [summary.id for summary in store.list()] == ["good"]
    assert store.conversation("good").messages[0].content == "Q"


def test_nothing_that_a_file_names_is_opened(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample, with all addresses and names in it turned into paths that would betray being opened."""
    trap = tmp_path / "trap"
    trap.write_text("secret")
    addresses = (f"file://{trap}", str(trap), "http://127.0.0.1:9/x")
    paths = []
    for number, path in enumerate(JSON_SAMPLES):
        for kind, address in enumerate(addresses):
            document = _with_addresses(json.loads(path.read_text(encoding="utf-8")), address)
            target = tmp_path / f"{number}-{kind}.json"
            target.write_text(json.dumps(document))
            paths.append(target)
    database = tmp_path / "logs.db"
    database.write_bytes((SAMPLES / "llm" / "logs.db").read_bytes())
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE attachments SET path = ?, url = ?", (str(trap), addresses[2]))
    paths.append(database)
    opened: list[str] = []
    real_open, real_os_open = io.open, os.open

    def watched(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(file))
        return real_open(file, *args, **kwargs)

    def watched_os(file: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(str(file))
        return real_os_open(file, *args, **kwargs)

    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"the network was used: {args}")

    monkeypatch.setattr(builtins, "open", watched)
    monkeypatch.setattr(io, "open", watched)
    monkeypatch.setattr(os, "open", watched_os)
    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    report = import_files(store, paths)
    monkeypatch.undo()
    assert report.added > 5
    assert any(str(paths[0]) in name for name in opened)  # the watch works
    assert not [name for name in opened if "trap" in name]
    assert not [m for s in store.list() for m in store.conversation(s.id).messages if "secret" in m.content]
    assert [
        a.name
        for s in store.list()
        for m in store.conversation(s.id).messages
        for a in m.attachments
        if a.name in addresses
    ]


def _with_addresses(value: Any, address: str) -> Any:
    if isinstance(value, dict):
        named = ("url", "asset_pointer", "fileIdentifier", "file_name", "name")
        return {
            key: address if key in named and isinstance(item, str) else _with_addresses(item, address)
            for key, item in value.items()
        }
    return [_with_addresses(item, address) for item in value] if isinstance(value, list) else value


# What a value may be replaced by: every kind that JSON has, at its ends.
ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1e308,
        10**40,
        "",
        "x",
        "\ud800",
        "\x00",
        [],
        {},
        [[]],
        [None],
        {"a": None},
        {"id": {"id": 1}},
    ]
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_may_be_something_else(tmp_path: Path, data: st.DataObject) -> None:
    """A sample with a few values replaced or removed is read, skipped or refused, never a crash."""
    path = data.draw(st.sampled_from(JSON_SAMPLES))
    document = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(_places(document))
        holder, key = data.draw(st.sampled_from(places))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = copy.deepcopy(data.draw(ODD))
        if not isinstance(document, dict | list) or not list(_places(document)):
            break
    target = tmp_path / "mutated.json"
    target.write_text(json.dumps(document))
    store = Store.memory()
    report = import_files(store, [target], now=1.0)
    for summary in store.list():
        assert store.conversation(summary.id).messages
    assert report.added == len(store.list())
    store.close()


def _places(value: Any) -> Any:
    """Every key and index of a document, with what holds it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)
