"""The real program in a real terminal: tmux with keys, and a bare pseudo-terminal where time is measured."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 30.0
PROGRAM = (sys.executable, "-c", "import sys; from rvchat.cli import main; sys.exit(main())")


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"still not so after {PATIENCE_S:.0f} s\n{what()}")
        time.sleep(0.02)


class Terminal:
    """A tmux server of its own with the program in it."""

    def __init__(self, folder: Path, script: Path | None, size: tuple[int, int], environ: dict[str, str]) -> None:
        self.folder = folder
        self.drawn_s = 0.0
        self._name = ""
        self._script, self._size, self._environ = script, size, environ

    def tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", os.devnull, *words], capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"tmux {words}: {done.stderr}")
        return done.stdout

    def start(self, *options: str) -> None:
        """Starts the program, again after it has ended, and waits until it is on the screen: what is typed before would
        still be read by the terminal itself, which makes another key of Enter. `drawn_s` tells how long that took."""
        model = ["--engine", f"scripted:{self._script}"] if self._script is not None else []
        command = [*PROGRAM, "--data", str(self.folder), *model, *options]
        settings = [f"{name}={value}" for name, value in self._environ.items()]
        shell = ["env", *settings, *command]
        line = " ".join("'" + word.replace("'", "'\\''") + "'" for word in shell)
        line = f"{line}; echo ENDED $?; exec cat"
        self.close()
        self._name = f"rvchat-{uuid.uuid4().hex[:8]}"  # a server that is ending would still answer to the old one
        columns, rows = self._size
        self.tmux("new-session", "-d", "-s", "t", "-x", str(columns), "-y", str(rows), line)
        began = time.monotonic()
        self.tmux("set-option", "-s", "escape-time", "0")
        self.sees("Write a message")
        self.drawn_s = time.monotonic() - began

    def keys(self, *keys: str) -> None:
        """Keys by tmux's names, all in one burst."""
        self.tmux("send-keys", "-t", "t", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-t", "t", "-l", text)

    def paste(self, text: str) -> None:
        """As a terminal pastes: with marks around it."""
        path = self.folder.parent / "pasted"
        path.write_text(text, encoding="utf-8")
        self.tmux("load-buffer", str(path))
        self.tmux("paste-buffer", "-p", "-t", "t")

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "t")

    @property
    def lines(self) -> list[str]:
        return self.screen.split("\n")

    @property
    def pid(self) -> int:
        """The program's process."""
        shell = int(self.tmux("display-message", "-p", "-t", "t", "#{pane_pid}"))
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])

    def sees(self, *texts: str) -> None:
        """Waits until every one of `texts` is on the screen."""
        until(lambda: all(text in self.screen for text in texts), lambda: f"{texts}\n{self.screen}")

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, lambda: self.screen)

    def no_longer_sees(self, text: str) -> None:
        until(lambda: text not in self.screen, lambda: f"{text}\n{self.screen}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.sees("ENDED")

    def close(self) -> None:
        if self._name:
            self.tmux("kill-server", check=False)


def write_script(folder: Path, answers: tuple[dict[str, Any], ...]) -> Path | None:
    if not answers:
        return None
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    return path


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """`terminal({...}, size=(80, 24))`: the program, started, in tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    opened: list[Terminal] = []

    def start(
        *answers: dict[str, Any],
        size: tuple[int, int] = (80, 24),
        options: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> Terminal:
        script = write_script(tmp_path, answers)
        one = Terminal(folder or tmp_path / "data", script, size, environ or {})
        opened.append(one)
        one.start(*options)
        return one

    yield start
    for one in opened:
        one.close()


class Bare:
    """The program on a pseudo-terminal, with everything it draws kept as bytes. It is not the terminal's session, so
    that no signal tells it when the terminal goes."""

    def __init__(self, command: list[str], size: tuple[int, int]) -> None:
        self._seen = bytearray()
        self._new = threading.Condition()
        self._terminal, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environ, start_new_session=True)
        os.close(its)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                return
            if not data:
                return
            with self._new:
                self._seen += data
                self._new.notify_all()

    def write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    @property
    def drawn(self) -> int:
        with self._new:
            return len(self._seen)

    def wait_for(self, text: str, since: int = 0, patience: float = PATIENCE_S) -> float:
        """Waits until `text` is drawn after the first `since` bytes; returns the moment."""
        sought = text.encode()
        end = time.monotonic() + patience
        with self._new:
            while sought not in self._seen[since:]:
                if not self._new.wait(end - time.monotonic()) and time.monotonic() > end:
                    raise AssertionError(f"{text!r} was not drawn within {patience:.0f} s")
        return time.perf_counter()

    def hang_up(self) -> None:
        """The terminal goes, as when its window is closed."""
        if self._terminal >= 0:
            terminal, self._terminal = self._terminal, -1
            os.close(terminal)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Callable[..., Bare]]:
    opened: list[Bare] = []

    def start(*answers: dict[str, Any], size: tuple[int, int] = (100, 30)) -> Bare:
        script = write_script(tmp_path, answers)
        model = ["--engine", f"scripted:{script}"] if script is not None else []
        one = Bare([*PROGRAM, "--data", str(tmp_path / "data"), *model], size)
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.close()
