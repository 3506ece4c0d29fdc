"""Where files are kept, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rvchat.config import Paths, expanded, private_folder


def test_one_folder_holds_everything_where_one_is_named(tmp_path: Path) -> None:
    environ = {"RVCHAT_DATA": str(tmp_path / "env")}
    paths = Paths.of(None, environ)
    assert (paths.data, paths.settings, paths.cache) == (
        tmp_path / "env",
        tmp_path / "env",
        tmp_path / "env" / "cache",
    )
    assert Paths.of(tmp_path / "named", environ).data == tmp_path / "named"
    assert Paths.of("relative", {}).data.is_absolute()
    assert len({Paths.of(None, {}).data, Paths.of(None, {}).cache}) == 2
    assert not (tmp_path / "env").exists()


def test_folders_that_are_made_are_the_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path / "a" / "b" / "c").is_dir()
    for folder in ("a", "a/b", "a/b/c"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")


def test_a_home_that_nobody_has_is_a_path_like_any_other() -> None:
    assert expanded("~nosuchuser/x") == Path("~nosuchuser/x")
    assert expanded("~/x") == Path.home() / "x"
