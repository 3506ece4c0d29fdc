"""`rvchat history`, `rvchat export` and `rvchat import`: what they take and what they print.

`add_arguments` gives a parser the three commands; `run` does the one that was asked for. Data goes to `out`, everything
else to `err`; a RvchatError that leaves `run` is for the caller to print.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from rvchat.errors import BadInputError, StoreError
from rvchat.store.export import FORMATS, export
from rvchat.store.export.labels import date
from rvchat.store.printable import one_line
from rvchat.store.rows import Summary
from rvchat.store.search import Hit
from rvchat.store.store import Store
from rvchat.store.values import conversation_value, dumps, terminal_safe

COMMANDS = ("history", "export", "import")


def add_arguments(
    subparsers: argparse._SubParsersAction[Any], common: Sequence[argparse.ArgumentParser] = (), **defaults: Any
) -> None:
    """Adds `COMMANDS`. `common`: parents of each, such as the one with `--data`. `defaults`: set by each."""
    history = subparsers.add_parser("history", help="list, search, show and manage conversations")
    history.set_defaults(command="history", **defaults)
    actions = history.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, help: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(name, help=help, parents=list(common))
        parser.add_argument("--json", action="store_true", help="print one JSON value")
        return parser

    listing = action("list", "conversations, the latest first")
    listing.add_argument("--deleted", action="store_true", help="those that can be restored")
    listing.add_argument("--limit", type=_count, metavar="N", help="no more than N")
    searching = action("search", "where words stand in titles and messages")
    searching.add_argument("text", nargs="+", help="all of these words; the last may be a beginning")
    searching.add_argument("--limit", type=_count, default=20, metavar="N", help="no more than N places (20)")
    action("show", "the active branch of a conversation").add_argument("id", help="its id, or how that begins")
    renaming = action("rename", "give a conversation another title")
    renaming.add_argument("id", help="its id, or how that begins")
    renaming.add_argument("title")
    for name, help in (
        ("delete", "put conversations away; they can be restored for 30 days"),
        ("restore", "bring deleted conversations back"),
    ):
        action(name, help).add_argument("id", nargs="+", help="an id, or how it begins")

    exporting = subparsers.add_parser("export", help="write conversations to a file", parents=list(common))
    exporting.set_defaults(command="export", **defaults)
    exporting.add_argument("id", nargs="?", help="an id, or how it begins (the latest conversation)")
    exporting.add_argument("--all", action="store_true", help="every conversation that is not deleted")
    exporting.add_argument("--format", choices=FORMATS, default="md", help="(md)")
    exporting.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to stdout")
    importing = subparsers.add_parser(
        "import",
        help="read conversations from rvchat, ChatGPT, Claude, Open WebUI, LM Studio, llm, ShareGPT and OpenAI files",
        parents=list(common),
    )
    importing.set_defaults(command="import", **defaults)
    importing.add_argument("file", nargs="+", type=Path, help="a file, or a folder of JSON files")
    importing.add_argument("--json", action="store_true", help="print one JSON value")


def run(args: argparse.Namespace, store: Store, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Does what the parsed `args` ask for. Returns the exit code."""
    out, err = out or sys.stdout, err or sys.stderr
    if args.command == "export":
        return _export(args, store, out, err)
    if args.command == "import":
        return _import(args, store, out, err)
    return _history(args, store, out, err)


# --- history ---------------------------------------------------------------------------------------------------


def _history(args: argparse.Namespace, store: Store, out: TextIO, err: TextIO) -> int:
    if args.action == "list":
        summaries = store.list(deleted=args.deleted, limit=args.limit)
        if args.json:
            _json([_summary_value(summary) for summary in summaries], out)
        else:
            for summary in summaries:
                _line(summary, out)
    elif args.action == "search":
        hits = store.search(" ".join(args.text), args.limit)
        if args.json:
            _json([_hit_value(hit) for hit in hits], out)
        else:
            for hit in hits:
                where = f"{hit.role}, {date(hit.created)}" if hit.role else "title"
                print(
                    f"{hit.conversation_id[:8]}  {hit.name or 'Untitled'}  ({where})\n    {hit.snippet.text}", file=out
                )
    elif args.action == "show":
        conversation = store.conversation(store.resolve(args.id))
        if args.json:
            _json(conversation_value(conversation), out)
        else:
            out.writelines(export([conversation], "txt"))
    else:
        summaries = [_changed(args, store, store.resolve(id)) for id in _ids(args)]
        if args.json:
            values = [_summary_value(summary) for summary in summaries]
            _json(values[0] if args.action == "rename" else values, out)
        else:
            for summary in summaries:
                print(f"{args.action}d {summary.id[:8]}  {summary.name}", file=err)
    return 0


def _ids(args: argparse.Namespace) -> list[str]:
    return [args.id] if isinstance(args.id, str) else list(args.id)


def _changed(args: argparse.Namespace, store: Store, id: str) -> Summary:
    if args.action == "rename":
        title = one_line(args.title, 200)
        if not title:
            raise BadInputError("The title is empty")
        return store.change(id, title=title)
    if args.action == "delete":
        store.delete(id)
    else:
        store.restore(id)
    return store.summary(id)


def _line(summary: Summary, out: TextIO) -> None:
    moment = summary.changed if summary.deleted is None else summary.deleted
    pin = "*" if summary.pinned else " "
    print(f"{summary.id[:8]} {pin} {date(moment)}  {summary.messages:>5}  {summary.name}", file=out)


def _summary_value(summary: Summary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "title": summary.title,
        "created": summary.created,
        "changed": summary.changed,
        "pinned": summary.pinned,
        "model": summary.model,
        "messages": summary.messages,
        "deleted": summary.deleted,
    }


def _hit_value(hit: Hit) -> dict[str, Any]:
    return {
        "conversation_id": hit.conversation_id,
        "message_id": hit.message_id,
        "title": hit.name,
        "role": hit.role,
        "created": hit.created,
        "snippet": hit.snippet.text,
        "marks": [list(mark) for mark in hit.snippet.marks],
    }


# --- export and import -----------------------------------------------------------------------------------------


def _export(args: argparse.Namespace, store: Store, out: TextIO, err: TextIO) -> int:
    if args.all and args.id is not None:
        raise BadInputError("An id and --all were both given", "Give one of them")
    if args.all:
        ids = [summary.id for summary in store.list()]
    elif args.id is not None:
        ids = [store.resolve(args.id)]
    else:
        latest = max(store.list(), key=lambda summary: summary.changed, default=None)
        if latest is None:
            raise StoreError("There is no conversation to export")
        print(f"exporting {latest.id[:8]}  {latest.name}", file=err)
        ids = [latest.id]
    pieces = export(map(store.conversation, ids), args.format)
    if args.output is None:
        out.writelines(pieces)
    else:
        _write(args.output, pieces)
        print(f"wrote {len(ids)} conversation{'s' * (len(ids) != 1)} to {args.output}", file=err)
    return 0


def _write(path: Path, pieces: Iterable[str]) -> None:
    """The whole file or none of it, for its owner's eyes; a link goes on leading to it. What is no file, such as a
    pipe, is written into. BadInputError: it cannot be written."""
    try:
        if path.is_dir():
            raise BadInputError(f"{path} is a folder", "Name a file in it.")
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
            return
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.writelines(pieces)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error


def _import(args: argparse.Namespace, store: Store, out: TextIO, err: TextIO) -> int:
    from rvchat.store.imports import import_files

    report = import_files(store, args.file)
    for skipped in report.skipped:
        name = one_line(f"{skipped.file.name} {skipped.id}".strip(), 120)
        print(f"left out {name}: {one_line(skipped.reason, 200)}", file=err)
    for error in report.failed:
        print(error, file=err)
    if args.json:
        value = {name: getattr(report, name) for name in ("added", "extended", "restored", "present")}
        value["skipped"] = [{"file": str(item.file), "id": item.id, "reason": item.reason} for item in report.skipped]
        value["failed"] = [error.message for error in report.failed]
        _json(value, out)
    else:
        words = {"added": "added", "extended": "with new messages", "restored": "restored", "present": "here already"}
        counts = [f"{getattr(report, name)} {text}" for name, text in words.items() if getattr(report, name)]
        print(", ".join(counts) or "nothing to import", file=err)
    return BadInputError.exit_code if report.failed else 0


def _json(value: Any, out: TextIO) -> None:
    print(terminal_safe(dumps(value)), file=out)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
