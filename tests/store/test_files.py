"""The file itself: who may read it, and what is said when it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rvchat.errors import StoreError
from rvchat.store import Store
from rvchat.types import Conversation, Message

Talk = Callable[..., Conversation]


def test_only_the_owner_can_read_it(database: Path, talk: Talk) -> None:
    old = os.umask(0)
    try:
        store = Store.open(database)
        store.create(talk())
        store.add("c1", Message("x", "c1-a", "assistant", "", 2000.0, status="streaming"))
    finally:
        os.umask(old)
    assert database.parent.stat().st_mode & 0o777 == 0o700
    names = {path.name: path.stat().st_mode & 0o777 for path in database.parent.iterdir()}
    assert set(names.values()) == {0o600}
    assert len(names) == 4  # the file, its log with an index, and the lock of the answer that streams
    store.close()


def test_a_file_that_others_could_read_is_closed_to_them(database: Path) -> None:
    Store.open(database).close()
    database.chmod(0o644)
    Store.open(database).close()
    assert database.stat().st_mode & 0o777 == 0o600


def test_an_empty_file_becomes_a_store(database: Path, talk: Talk) -> None:
    database.parent.mkdir()
    database.touch()
    store = Store.open(database)
    store.create(talk())
    assert store.conversation("c1") == talk()
    store.close()


@pytest.mark.parametrize("garbage", [b"not a database", b"SQLite format 3\x00" + b"\x07" * 5000, os.urandom(8192)])
def test_a_file_that_is_no_database_is_left_alone(database: Path, garbage: bytes) -> None:
    database.parent.mkdir()
    database.write_bytes(garbage)
    with pytest.raises(StoreError, match="damaged") as caught:
        Store.open(database)
    assert str(database) in caught.value.message
    assert caught.value.hint
    assert database.read_bytes() == garbage
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def test_a_file_cut_short_is_left_alone(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    for number in range(50):
        store.create(talk(f"c{number}"))
    store.close()
    half = database.read_bytes()[: database.stat().st_size // 2]
    database.write_bytes(half)
    with pytest.raises(StoreError, match="damaged"):
        Store.open(database)
    assert database.read_bytes() == half


def test_a_page_that_rotted_is_a_store_error_when_it_is_read(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    store.create(talk(answer="word " * 20000))
    store.close()
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * (size - 4096 * 2))
    with pytest.raises(StoreError, match="damaged"):
        Store.open(database).conversation("c1")


def test_a_value_that_rotted_is_a_store_error(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    store.create(talk())
    connection = sqlite3.connect(database)
    connection.execute("UPDATE message SET stats = '{' WHERE id = 'c1-a'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"c1.*damaged"):
        store.conversation("c1")
    store.close()


def test_the_database_of_another_program_is_left_alone(database: Path) -> None:
    database.parent.mkdir()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE cookies (x)")
    before = database.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(database)
    assert database.read_bytes() == before


def test_a_folder_in_its_place_is_said(database: Path) -> None:
    database.mkdir(parents=True)
    with pytest.raises(StoreError, match="rvchat"):
        Store.open(database)


def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match="cannot be kept") as caught:
        Store.open(tmp_path / "data" / "rvchat.sqlite3")
    assert "--data" in caught.value.hint


READ_ONLY = """
import os, sys
from pathlib import Path
from rvchat.store import Store
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = Store.open_or_memory(Path(sys.argv[1]))
print(store.path, store.problem)
"""


@pytest.mark.parametrize("exists", [False, True], ids=["no file", "a file"])
def test_a_folder_that_cannot_be_written_gives_a_store_in_memory(tmp_path: Path, exists: bool) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)  # so that a user without rights gets as far as the folder itself
    folder = tmp_path / "data"
    path = folder / "rvchat.sqlite3"
    if exists:
        Store.open(path).close()
        path.chmod(0o444)
    else:
        folder.mkdir()
    folder.chmod(0o555)
    before = path.read_bytes() if exists else None
    try:
        done = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, check=True)
    finally:
        folder.chmod(0o755)
    assert done.stdout.startswith("None ")
    assert str(path) in done.stdout
    assert "--data" in done.stdout
    assert (path.read_bytes() if exists else None) == before


def test_a_full_disk_takes_back_the_write_and_no_more(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    store.create(talk())
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    big = Message("big", "c1-a", "user", "x" * 500_000, 2000.0)
    with pytest.raises(StoreError, match="no room on the disk"):
        store.add("c1", big)
    assert store.conversation("c1") == talk()
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.add("c1", big)  # there is room again
    assert store.conversation("c1").messages[-1] == big
    store.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from rvchat.errors import StoreError
from rvchat.store import Store
from rvchat.types import Message
store = Store.open(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
parent, kept = "c1-a", 0
try:
    for number in range(1000):
        store.add("c1", Message(f"m{number}", parent, "user", "y" * 3000, 2000.0))
        parent, kept = f"m{number}", kept + 1
except StoreError as error:
    print(kept, error)
"""


def test_a_log_that_cannot_grow_keeps_all_that_was_promised(database: Path, talk: Talk) -> None:
    store = Store.open(database)
    store.create(talk())
    store.close()
    done = subprocess.run([sys.executable, "-c", FULL, str(database)], capture_output=True, text=True, check=True)
    kept, words = done.stdout.split(" ", 1)
    assert 0 < int(kept) < 1000
    assert "no room on the disk" in words
    store = Store.open(database)
    assert len(store.conversation("c1").branch()) == 2 + int(kept)
    store.close()


def test_the_room_imports_neither_jax_nor_textual() -> None:
    code = (
        "import sys, rvchat.store, rvchat.store.commands, rvchat.store.imports, rvchat.store.export.html\n"
        "print({'jax', 'textual', 'rich', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
