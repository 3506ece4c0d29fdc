"""Taking what files hold into a store."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rvchat.errors import BadInputError, StoreError
from rvchat.store.imports.files import Found, Skipped, read
from rvchat.store.store import Store

BATCH = 500  # messages that reach the disk together; other processes wait meanwhile
TURN = 0.01  # seconds between two batches: one that waits looks now and then, and would else never see its turn


@dataclass(slots=True)
class Report:
    """What an import did, in conversations. `extended`: had new messages; `restored`: had been
    deleted here; `present`: were here already. `failed`: files of which nothing is known."""

    added: int = 0
    extended: int = 0
    restored: int = 0
    present: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[BadInputError] = field(default_factory=list)


def import_files(
    store: Store, paths: Iterable[Path], *, now: float | None = None, on_file: Callable[[Path], None] | None = None
) -> Report:
    """Takes every conversation that is not here yet. A folder stands for the JSON files in it. `on_file` hears which
    file is read. StoreError: the store could not be written; what was taken before stays."""
    report = Report()
    for path, listed in _files(paths):
        if on_file is not None:
            on_file(path)
        try:
            for batch in _batches(read(path, now=now)):
                with store.batch():
                    for found in batch:
                        _take(store, path, found, report)
                time.sleep(TURN)
        except BadInputError as error:
            if listed:
                report.failed.append(BadInputError(f"{path} cannot be imported: {error.message}", error.hint))
            else:  # a folder may hold other things
                report.skipped.append(Skipped(path, "", error.message))
    return report


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Files, and whether they were named themselves."""
    for path in paths:
        if path.is_dir():
            yield from ((file, False) for file in sorted(path.rglob("*.json*")) if file.is_file())
        else:
            yield path, True


def _batches(items: Iterator[Found | Skipped]) -> Iterator[list[Found | Skipped]]:
    batch: list[Found | Skipped] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item.conversation.messages) if isinstance(item, Found) else 0
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _take(store: Store, path: Path, item: Found | Skipped, report: Report) -> None:
    if isinstance(item, Skipped):
        report.skipped.append(item)
        return
    try:
        outcome = store.merge(item.conversation)
    except RecursionError:
        report.skipped.append(Skipped(path, item.id, "nested too deeply"))
        return
    except StoreError as error:
        if isinstance(error.__cause__, sqlite3.OperationalError | sqlite3.DatabaseError) and not isinstance(
            error.__cause__, sqlite3.IntegrityError
        ):
            raise  # the store's own trouble, not this conversation's
        report.skipped.append(Skipped(path, item.id, error.message))
        return
    setattr(report, outcome, getattr(report, outcome) + 1)
