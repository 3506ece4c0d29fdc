"""Files of every earlier version open, are copied first, and are never half changed."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from rvchat.errors import StoreError
from rvchat.store import Store
from rvchat.store.schema import MIGRATIONS, Migration, migrate
from rvchat.types import Conversation

SCHEMAS = Path(__file__).parents[1] / "data" / "store" / "schemas"


@pytest.fixture(scope="module")
def keeper() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keep_schema", Path(__file__).with_name("keep_schema.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(path: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(path) as connection:
        return set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.before-*"))


@pytest.mark.parametrize("number", range(1, len(MIGRATIONS) + 1))
def test_a_file_of_every_schema_is_kept_and_opens(tmp_path: Path, keeper: ModuleType, number: int) -> None:
    name = MIGRATIONS[number - 1].name
    kept = SCHEMAS / f"{name}.sqlite3"
    assert kept.exists(), f"keep a file of the schema after {name}: {keeper.__doc__}"
    path = tmp_path / "rvchat.sqlite3"
    shutil.copyfile(kept, path)
    store = Store.open(path)
    assert [store.conversation(c.id) for c in keeper.KEPT] == list(keeper.KEPT)
    assert [hit.message_id for hit in store.search("overnight")] == ["b"]
    assert [hit.conversation_id for hit in store.search("creme")] == ["old"]
    store.change("old", title="Flan")
    assert [hit.conversation_id for hit in store.search("flan")] == ["old"]
    assert store.search("creme") == []
    store.delete("old")
    assert store.purge(older_than=-1.0) == 2
    store.close()
    if number == len(MIGRATIONS):
        assert copies(path) == []
    else:
        (copy,) = copies(path)
        assert copy.name == f"rvchat.sqlite3.before-{MIGRATIONS[number].name}"
        assert copy.stat().st_mode & 0o777 == 0o600
        assert tables(copy) == tables(kept)
        (count,) = sqlite3.connect(copy).execute("SELECT count(*) FROM message").fetchone()
        assert count == 4


@pytest.mark.parametrize("number", range(1, len(MIGRATIONS) + 1))
def test_no_migration_was_edited_after_it_ran_on_somebodys_file(
    tmp_path: Path, keeper: ModuleType, number: int
) -> None:
    made = keeper.keep(tmp_path, number)
    assert tables(made) == tables(SCHEMAS / made.name)


def test_a_new_file_has_the_tables_that_migrating_gives(tmp_path: Path, keeper: ModuleType) -> None:
    Store.open(tmp_path / "new.sqlite3").close()
    assert tables(tmp_path / "new.sqlite3") == tables(keeper.keep(tmp_path))


def test_a_migration_that_fails_changes_nothing_and_names_the_copy(
    database: Path, talk: Callable[..., Conversation]
) -> None:
    store = Store.open(database)
    store.create(talk())
    store.close()
    before = database.read_bytes()
    broken = Migration("9999_broken", ("CREATE TABLE extra (x)", "UPDATE message SET content = ''", "NONSENSE"))
    connection = sqlite3.connect(database, isolation_level=None)
    with pytest.raises(StoreError) as caught:
        migrate(connection, database, (*MIGRATIONS, broken))
    connection.close()
    (copy,) = copies(database)
    assert str(copy) in caught.value.hint
    assert database.read_bytes() == before
    for path in (database, copy):
        opened = Store.open(path)
        assert opened.conversation("c1") == talk()
        opened.close()


def test_a_copy_is_never_written_over(tmp_path: Path, keeper: ModuleType) -> None:
    path = tmp_path / "rvchat.sqlite3"
    for _ in range(2):
        shutil.copyfile(keeper.keep(tmp_path, 1), path)
        (tmp_path / f"{MIGRATIONS[0].name}.sqlite3").unlink()
        Store.open(path).close()
    assert len(copies(path)) == 2


def test_two_at_once_migrate_once(tmp_path: Path, keeper: ModuleType) -> None:
    path = keeper.keep(tmp_path, 1)
    failures: list[BaseException] = []
    gate = threading.Barrier(2)

    def open_it() -> None:
        gate.wait()
        try:
            Store.open(path).close()
        except BaseException as error:  # noqa: BLE001 - whatever happened is the result
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(copies(path)) == 1
    store = Store.open(path)
    assert store.conversation("old") == keeper.KEPT[0]
    store.close()


def test_a_file_of_a_newer_version_is_refused_untouched(database: Path, talk: Callable[..., Conversation]) -> None:
    store = Store.open(database)
    store.create(talk())
    store.close()
    newer = (*MIGRATIONS, Migration("9000_later", ("ALTER TABLE message ADD COLUMN mood TEXT",)))
    connection = sqlite3.connect(database, isolation_level=None)
    migrate(connection, database, newer)
    connection.close()
    before = (database.read_bytes(), database.stat().st_mtime_ns)
    with pytest.raises(StoreError, match=r"newer rvchat.*9000_later"):
        Store.open(database)
    assert (database.read_bytes(), database.stat().st_mtime_ns) == before
