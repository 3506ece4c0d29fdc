"""What libraries write never reaches the screen; what rvchat writes does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROLOGUE = """
import logging, os, subprocess, sys, warnings
from pathlib import Path
from rvchat import logs
screen = logs.divert(Path(sys.argv[1]))
"""


def run(folder: Path, code: str) -> tuple[str, str]:
    """Standard output and error of a process that has put both on a log in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code, str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout, done.stderr


def test_what_c_code_writes_goes_to_the_log_and_what_we_write_to_the_screen(tmp_path: Path) -> None:
    out, err = run(
        tmp_path / "logs",
        """
os.write(1, b"noise of C on 1\\n"); os.write(2, b"noise of C on 2\\n")
subprocess.run(["sh", "-c", "echo noise of a child; echo noise of a child >&2"])
logging.getLogger("jax").warning("noise of a logger"); warnings.warn("noise of a warning")
print("for the user"); print("about it", file=sys.stderr); print("real", file=sys.__stdout__)
""",
    )
    assert (out, err) == ("for the user\nreal\n", "about it\n")
    log = (tmp_path / "logs" / "rvchat.log").read_text()
    for noise in ("C on 1", "C on 2", "a logger", "a warning"):
        assert f"noise of {noise}" in log
    assert log.count("noise of a child") == 2
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs" / "rvchat.log").stat().st_mode & 0o777 == 0o600


def test_a_program_can_be_lent_the_screen(tmp_path: Path) -> None:
    out, err = run(
        tmp_path,
        """
with screen.lent():
    subprocess.run(["sh", "-c", "echo lent; echo lent too >&2"])
subprocess.run(["echo", "logged"])
""",
    )
    assert (out, err) == ("lent\n", "lent too\n")
    assert (tmp_path / "rvchat.log").read_text() == "logged\n"


def test_a_crash_of_c_code_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + "import ctypes; ctypes.string_at(0)", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert (done.stdout, done.stderr) == ("", "")
    assert "Segmentation fault" in (tmp_path / "rvchat.log").read_text()


def test_a_large_log_is_set_aside_and_three_are_kept(tmp_path: Path) -> None:
    for round in range(5):
        run(tmp_path, f"os.write(1, b'{round}' * 1_000_001)")
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["rvchat.log", "rvchat.log.1", "rvchat.log.2", "rvchat.log.3"]
    assert [(tmp_path / name).read_text()[0] for name in found] == ["4", "3", "2", "1"]


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out, err = run(tmp_path / "file", "os.write(2, b'noise'); print('for the user', screen.log)")
    assert (out, err) == ("for the user None\n", "")
