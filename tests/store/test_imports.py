"""Files of seven other programs give the conversations that their samples say, and our own gives all of it."""

from __future__ import annotations

import datetime
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rvchat.errors import BadInputError
from rvchat.store import Store
from rvchat.store.imports import Found, Skipped, import_files, read
from rvchat.types import Attachment, ToolCall

SAMPLES = Path(__file__).parents[1] / "data" / "store" / "imports"
PROGRAMS = ("chatgpt", "claude", "llm", "lmstudio", "openai_messages", "openwebui", "sharegpt")
NOW = 4000000000.0  # stands where a file has no date


def files(program: str) -> list[Path]:
    return [path for path in sorted((SAMPLES / program).rglob("*")) if path.is_file() and path.name != "expected.json"]


def shown(found: Found) -> dict[str, Any]:
    """A conversation in the words of the samples."""
    conversation, branch = found.conversation, found.conversation.branch()
    origin = conversation.origin
    assert origin is not None
    calls = [(index, call) for index, message in enumerate(branch) for call in message.tool_calls]
    milliseconds = int(round(conversation.created * 1_000_000) // 1000)
    moment = datetime.datetime.fromtimestamp(milliseconds // 1000, datetime.UTC)
    return {
        "id": found.id or None,
        "title": conversation.title or None,
        "created": None if conversation.created == NOW else f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z",
        "model": conversation.model,
        "system": conversation.system or None,
        "archived": origin.archived,
        "folder": origin.folder,
        "forked_from": origin.forked_from or None,
        "messages": [[m.role, m.content, m.reasoning or None] for m in branch],
        "tool_calls": [[index, call.name, call.raw or call.arguments] for index, call in calls],
        "tool_results": [[index, call.id, call.result] for index, call in calls if call.result is not None],
        "attachments": [[index, a.kind, a.name] for index, m in enumerate(branch) for a in m.attachments],
        "total_messages": len(conversation.messages),
        "branches_at": [index for index, m in enumerate(branch) if len(conversation.siblings(m.id)) > 1],
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_sample_reads_as_it_says(program: str) -> None:
    expected = json.loads((SAMPLES / program / "expected.json").read_text(encoding="utf-8"))
    found: dict[str | None, dict[str, Any]] = {}
    skipped = []
    for path in files(program):
        for item in read(path, now=NOW):
            if isinstance(item, Skipped):
                skipped.append({"id": item.id, "reason": item.reason})
            else:
                found[item.id or None] = shown(item)
    defaults = {"archived": False, "folder": "", "forked_from": None, "tool_results": []}
    assert found == {entry["id"]: defaults | entry for entry in expected["conversations"]}
    assert skipped == expected["skipped"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_samples_are_those_that_all_share(program: str) -> None:
    shared = Path(__file__).parents[3] / "shared" / "imports" / program
    if not shared.is_dir():
        pytest.skip("../shared/imports is not beside this checkout")
    for path in sorted(shared.rglob("*")):
        if path.is_file():
            assert (SAMPLES / program / path.relative_to(shared)).read_bytes() == path.read_bytes()


def test_a_sample_is_known_by_its_shape_whatever_its_name(tmp_path: Path) -> None:
    for program in PROGRAMS:
        for number, path in enumerate(files(program)):
            renamed = tmp_path / f"{program}{number}.bin"
            shutil.copyfile(path, renamed)
            before = [item.program for item in read(path) if isinstance(item, Found)]
            assert [item.program for item in read(renamed) if isinstance(item, Found)] == before


def test_importing_twice_adds_nothing_twice(store: Store) -> None:
    paths = [path for program in PROGRAMS for path in files(program)]
    first = import_files(store, paths, now=NOW)
    expected = [json.loads((SAMPLES / p / "expected.json").read_text(encoding="utf-8")) for p in PROGRAMS]
    assert first.added == sum(len(entry["conversations"]) for entry in expected)
    assert [item.id for item in first.skipped] == [item["id"] for entry in expected for item in entry["skipped"]]
    assert first.failed == []
    before = [store.conversation(summary.id) for summary in store.list()]
    second = import_files(store, paths, now=NOW + 5)
    assert (second.added, second.extended, second.present) == (0, 0, first.added)
    assert [store.conversation(summary.id) for summary in store.list()] == before


def test_what_is_read_is_what_is_kept(store: Store) -> None:
    paths = [path for program in PROGRAMS for path in files(program)]
    import_files(store, paths, now=NOW)
    for path in paths:
        for item in read(path, now=NOW):
            if isinstance(item, Found):
                assert store.conversation(item.conversation.id) == item.conversation


def test_two_files_of_the_same_name_are_two_conversations(store: Store, tmp_path: Path) -> None:
    document = json.loads(files("lmstudio")[0].read_text(encoding="utf-8"))
    paths = [tmp_path / name / "copy.conversation.json" for name in ("one", "two")]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text(json.dumps(document | {"createdAt": 1762200000000 + number}))
    assert import_files(store, paths).added == 2
    assert import_files(store, paths[::-1]).present == 2


def test_a_folder_stands_for_the_files_in_it(store: Store) -> None:
    report = import_files(store, [SAMPLES / "lmstudio"])
    assert report.added == 2
    assert [item.file.name for item in report.skipped] == ["expected.json"]
    folders = {store.conversation(summary.id).origin.folder for summary in store.list()}  # type: ignore[union-attr]
    assert folders == {"", "Shed"}


def test_a_conversation_that_went_on_there_goes_on_here(store: Store, tmp_path: Path) -> None:
    document = json.loads((SAMPLES / "chatgpt" / "conversations.json").read_text(encoding="utf-8"))[:1]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    import_files(store, [path])
    message = {
        "author": {"role": "user"},
        "content": {"content_type": "text", "parts": ["Thanks!"]},
        "create_time": 1.76e9,
    }
    document[0]["mapping"]["new"] = {"id": "new", "parent": "a2", "children": [], "message": message}
    document[0]["current_node"] = "new"
    path.write_text(json.dumps(document))
    report = import_files(store, [path])
    assert (report.added, report.extended) == (0, 1)
    (summary,) = store.list()
    assert store.conversation(summary.id).branch()[-1].content == "Thanks!"


def test_answers_keep_what_the_other_program_measured(store: Store) -> None:
    import_files(store, files("lmstudio") + files("openwebui") + files("llm"))
    by_text = {m.content: m for s in store.list() for m in store.conversation(s.id).messages}
    clock = by_text["It is 14:05 UTC."]
    assert clock.model == "qwen3-8b"
    assert clock.stats is not None
    assert (clock.stats.prompt_tokens, clock.stats.new_tokens, clock.stats.ttft_s) == (20, 12, 0.2)
    assert clock.stats.tokens_per_second == pytest.approx(31.5)
    tower = by_text["It is 12.4 m tall."]
    assert (tower.model, tower.reasoning_s) == ("qwen3:8b", 3.0)
    assert tower.tool_calls == (ToolCall("lookup_height", {"name": "tidal tower"}, "", "call_1", "12.4 m"),)
    assert by_text["Tern."].model == "gpt-5.6-luna"


def test_what_was_read_from_an_attachment_is_kept(store: Store) -> None:
    import_files(store, files("claude"))
    (note,) = [m for s in store.list() for m in store.conversation(s.id).messages if m.attachments]
    assert note.attachments == (
        Attachment("text", "note.txt", "Buy rope. Fix the gate hinge."),
        Attachment("file", "gate.jpg"),
    )


def test_a_database_that_is_open_elsewhere_is_read_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    shutil.copyfile(SAMPLES / "llm" / "logs.db", path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("PRAGMA wal_autocheckpoint = 0")
    other.execute("INSERT INTO responses (id, model, prompt, response) VALUES ('zz', 'm', 'In the log?', 'Yes.')")
    other.commit()
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir() if not item.name.endswith("-shm")}
    assert "logs.db-wal" in before
    found = [item.conversation for item in read(path) if isinstance(item, Found)]
    assert [m.content for m in found[-1].messages] == ["In the log?", "Yes."]
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir() if not item.name.endswith("-shm")} == before
    other.execute("UPDATE responses SET response = 'Still mine to write.' WHERE id = 'zz'")
    other.commit()
    other.close()


# --- shapes beyond the samples ---------------------------------------------------------------------------------


@pytest.fixture
def wrote(tmp_path: Path) -> Callable[[Any], list[Found | Skipped]]:
    def write(document: Any) -> list[Found | Skipped]:
        path = tmp_path / "file"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return list(read(path, now=NOW))

    return write


def texts(item: Found | Skipped) -> list[tuple[str, str]]:
    assert isinstance(item, Found)
    return [(m.role, m.content) for m in item.conversation.branch()]


def test_messages_with_nothing_around_them(wrote: Any) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
    ]
    for document in (messages, {"messages": messages}, [{"messages": messages}]):
        (item,) = wrote(document)
        assert texts(item) == [("user", "Q"), ("assistant", "A")]
        assert item.conversation.system == "S"


def test_sharegpt_lines(wrote: Any) -> None:
    lines = [{"conversations": [{"from": "human", "value": f"Q{n}"}, {"from": "gpt", "value": "A"}]} for n in range(3)]
    found = wrote("\r\n".join(map(json.dumps, lines)))
    assert [texts(item)[0] for item in found] == [("user", f"Q{n}") for n in range(3)]
    assert len({item.conversation.id for item in found}) == 3


def test_the_same_line_in_two_files_is_one_conversation(store: Store, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    line = json.dumps({"messages": [{"role": "user", "content": "Q"}]})
    other = json.dumps({"messages": [{"role": "user", "content": "Something else"}]})
    one.write_text(f"{line}\n{other}\n")
    two.write_text(f"{other}\n{line}\n")
    report = import_files(store, [one, two])
    assert (report.added, report.present) == (2, 2)


def test_a_file_in_utf_16_and_one_with_a_mark(tmp_path: Path) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "é"}]}, ensure_ascii=False)
    for encoding in ("utf-16", "utf-8-sig", "utf-8"):
        path = tmp_path / encoding
        path.write_text(line, encoding=encoding)
        assert [texts(item) for item in read(path)] == [[("user", "é")]]


def test_claude_without_parents_is_one_branch(wrote: Any) -> None:
    messages = [
        {"uuid": str(n), "sender": "human", "text": f"M{n}", "created_at": "2025-01-01T00:00:00Z"} for n in range(3)
    ]
    (item,) = wrote([{"uuid": "x", "chat_messages": messages}])
    assert texts(item) == [("user", "M0"), ("user", "M1"), ("user", "M2")]


def test_chatgpt_thoughts_are_given_to_every_answer_below(wrote: Any) -> None:
    def node(parent: str | None, role: str, **content: Any) -> dict[str, Any]:
        return {"parent": parent, "message": {"author": {"role": role}, "content": content}}

    thoughts = {"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}
    mapping = {
        "q": node(None, "user", content_type="text", parts=["Q"]),
        "t": node("q", "assistant", **thoughts),
        "a": node("t", "assistant", content_type="text", parts=["A"]),
        "b": node("t", "assistant", content_type="text", parts=["B"]),
        "q2": node("a", "user", content_type="text", parts=["Q2"]),
        "a2": node("q2", "assistant", content_type="text", parts=["A2"]),
    }
    (item,) = wrote([{"id": "x", "mapping": mapping, "current_node": "a2"}])
    assert {m.content: m.reasoning for m in item.conversation.messages} == {
        "Q": "",
        "A": "Hm.",
        "B": "Hm.",
        "Q2": "",
        "A2": "",
    }


def test_openwebui_blocks_are_peeled_wherever_they_stand(wrote: Any) -> None:
    content = (
        'First.\n<details type="reasoning" done="true" duration="2">\n<summary>x</summary>\n'
        "&gt; a &lt; b\n&gt; \n&gt; c\n"
        "</details>\n"
        'Then.\n<details type="tool_calls" done="true" id="i" name="f" arguments="{&quot;a&quot;: 1}" '
        'result="&quot;r&quot;">'
        "\n<summary>y</summary>\n</details>\n<details>\nmine\n</details>"
    )
    message = {"id": "m", "parentId": None, "role": "assistant", "content": content}
    (item,) = wrote([{"id": "x", "chat": {"history": {"messages": {"m": message}, "currentId": "m"}}}])
    (only,) = item.conversation.messages
    assert only.content == "First.\n\nThen.\n\n<details>\nmine\n</details>"
    assert (only.reasoning, only.reasoning_s) == ("a < b\n\nc", 2.0)
    assert only.tool_calls == (ToolCall("f", {"a": 1}, "", "i", "r"),)


def test_what_is_no_conversation_is_said(wrote: Any, tmp_path: Path) -> None:
    for document, words in (
        ("{}", "no conversation"),
        ("[]", "nothing in it"),
        ("[1, 2]", "nothing in it"),
        ("", "not JSON"),
        ("hello", "not JSON"),
        ({"name": "x", "scripts": {}}, "no conversation"),
        ({"format": "rvchat", "version": 2, "conversations": []}, "version 2"),
        ({"format": "rvchat", "conversations": []}, "version None"),
        ({"format": "rvchat", "version": 1}, "no list"),
        ("[" * 100_000, "nested too deeply"),
    ):
        with pytest.raises(BadInputError, match=words):
            wrote(document)
    for name, data, words in (
        ("photo", b"\x89PNG\r\n\x1a\n", "UTF-8"),
        ("archive", b"PK\x03\x04....", "zip"),
        ("other.db", b"SQLite format 3\x00broken", "database"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInputError, match=words):
            list(read(tmp_path / name))
    with pytest.raises(BadInputError, match="No such file"):
        list(read(tmp_path / "missing"))
    with sqlite3.connect(tmp_path / "cookies.db") as connection:
        connection.execute("CREATE TABLE cookies (x)")
    with pytest.raises(BadInputError, match="no log of llm"):
        list(read(tmp_path / "cookies.db"))
