"""A hub of our own on loopback, and beside it, on another port, the storage that it sends to for large files.

It speaks what the library asks: model_info with the files' sizes and hashes, HEAD and GET of files, ranges, redirects,
error codes. Faults are switched on for so many requests; every request is remembered."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from rvchat.hub.patience import Patience

DATA = Path(__file__).parent / "data"
GOLDENS = DATA / "goldens"
PIECE = 16 << 10

Where = Literal["api", "head", "get", "storage"]

# Everything a test waits for happens within some tenths of a second.
QUICK = Patience(window=0.6, least=256, pauses=(0.02, 0.05, 0.1, 0.1, 0.1, 0.1))


@dataclass
class Fault:
    """What goes wrong at `where` with the next `times` requests (for files whose name ends in `file`)."""

    where: Where
    times: float = 1
    file: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    end: Literal["", "cut", "reset", "stall"] = ""
    after: int = 0
    rate: float = 0.0
    piece: int = PIECE
    lengthless: bool = False
    change: Callable[[bytes], bytes] | None = None
    ignore_range: bool = False
    shift: int = 0


@dataclass(frozen=True)
class Seen:
    where: Where
    method: str
    path: str
    start: int
    headers: Mapping[str, str]


class Hub:
    """Repositories by name: for each commit its files. `sent`: bytes of files that have left. `hold`: where requests
    are left without an answer. `closed`: repositories that want a token, with the status and code of the refusal."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.heads: dict[str, str] = {}
        self.closed: dict[str, tuple[int, str]] = {}
        self.faults: list[Fault] = []
        self.hold: set[str] = set()
        self.seen: list[Seen] = []
        self.sent = 0
        self.on_sent: Callable[[int], None] = lambda sent: None
        self.blobs: dict[str, bytes] = {}
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._servers = [_Server(self, _Front), _Server(self, _Storage)]
        self.endpoint, self.storage = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)

    def close(self) -> None:
        if self.ending.is_set():
            return
        self.ending.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo: str, files: Mapping[str, bytes]) -> str:
        """Publishes a commit, which the branch main is from now on."""
        digest = hashlib.sha1(repr(sorted((n, hashlib.sha1(b).digest()) for n, b in files.items())).encode())
        commit = digest.hexdigest()
        self.repositories.setdefault(repo, {})[commit] = dict(files)
        self.heads[repo] = commit
        for data in files.values():
            self.blobs[hashlib.sha256(data).hexdigest()] = data
        return commit

    def publish(self, repo: str, golden: str, **changes: Any) -> dict[str, bytes]:
        """A small real checkpoint under that name; `changes` as of `checkpoint`. Returns its files."""
        files = checkpoint(golden, **changes)
        self.add(repo, files)
        return files

    def fail(self, where: Where, **how: Any) -> Fault:
        fault = Fault(where, **how)
        self.faults.append(fault)
        return fault

    def take_fault(self, where: Where, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.where == where and fault.times > 0 and path.endswith(fault.file):
                    fault.times -= 1
                    return fault
        return None

    def note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def count(self, size: int) -> None:
        with self._lock:
            self.sent += size
        self.on_sent(self.sent)

    def starts(self) -> list[int]:
        """The first byte of each file request that reached the storage."""
        return [seen.start for seen in self.seen if seen.where == "storage"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, handler: type[_Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: object) -> None:
        """pytest shows what matters."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def start(self) -> int:
        text = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
        return int(text)

    def meet(self, where: Where) -> tuple[bool, Fault | None]:
        """Remembers the request. Whether a fault has answered it, and the fault that is left to do."""
        hub, path = self.server.hub, urlsplit(self.path).path
        hub.note(Seen(where, self.command, path, self.start(), dict(self.headers)))
        if where in hub.hold:
            hub.ending.wait(30)
        fault = hub.take_fault(where, path)
        if fault is not None and fault.status:
            self.answer(fault.status, fault.headers, fault.body or b"")
            return True, None
        return False, fault

    def give(self, data: bytes, etag: str, fault: Fault | None, headers: Mapping[str, str]) -> None:
        """A file, or the part that is asked for, with what the fault makes of it."""
        hub, fault = self.server.hub, fault or Fault("storage")
        if fault.change is not None:
            data = fault.change(data)
        ranged = "Range" in self.headers and not fault.ignore_range
        start = self.start() + fault.shift if ranged else 0
        if start >= len(data) > 0 and start:
            return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
        part = data[start:]
        self.send_response(206 if ranged else 200)
        self.send_header("ETag", f'"{etag}"')
        if fault.lengthless:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(part)))
        for name, value in headers.items():
            self.send_header(name, value)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        limit = fault.after if fault.end else len(part)
        for at in range(0, min(limit, len(part)), fault.piece):
            piece = part[at : min(at + fault.piece, limit)]
            self.wfile.write(piece)
            hub.count(len(piece))
            if fault.rate:
                hub.ending.wait(len(piece) / fault.rate)
        if fault.end:
            self.break_off(fault.end)
        return None

    def break_off(self, end: str) -> None:
        self.close_connection = True
        self.wfile.flush()
        if end == "stall":
            self.server.hub.ending.wait(30)
        if end == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class _Front(_Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        where: Where = "api" if path.startswith("/api/") else "head" if self.command == "HEAD" else "get"
        done, fault = self.meet(where)
        if done:
            return None
        parts = path.strip("/").split("/")
        if where == "api":
            parts = parts[2:]
        repo = "/".join(parts[:2])
        if repo in hub.closed and "authorization" not in {name.lower() for name in self.headers}:
            status, code = hub.closed[repo]
            return self.answer(status, {"X-Error-Code": code})
        if repo not in hub.repositories:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        revision = parts[3] if len(parts) > 3 else "main"
        commit = hub.heads[repo] if revision == "main" else revision
        files = hub.repositories[repo].get(commit)
        if files is None:
            return self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        if where == "api":
            describe = _tree if "tree" in parts[2:3] else _described
            return self.answer(200, {"Content-Type": "application/json"}, describe(repo, commit, files))
        name = unquote("/".join(parts[4:]))
        if name not in files:
            return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        data, headers = files[name], {"X-Repo-Commit": commit}
        if not is_large(name):
            return self.give(data, git_id(data), fault, headers)
        sha = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data))}
        address = f"{hub.storage}/{sha}/{time.monotonic_ns()}/{quote(name)}"
        return self.answer(302, {**headers, "Location": address})


class _Storage(_Handler):
    def do_GET(self) -> None:
        done, fault = self.meet("storage")
        if not done:
            sha = self.path.split("/")[1]
            self.give(self.server.hub.blobs[sha], sha, fault, {})


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf")) or name == "tokenizer.json"


def git_id(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _described(repo: str, commit: str, files: Mapping[str, bytes]) -> bytes:
    siblings = []
    for name, data in files.items():
        sibling: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
        if is_large(name):
            sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        siblings.append(sibling)
    return json.dumps({"id": repo, "sha": commit, "siblings": siblings, "private": False}).encode()


def _tree(repo: str, commit: str, files: Mapping[str, bytes]) -> bytes:
    entries = []
    for name, data in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_id(data)}
        if is_large(name):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        entries.append(entry)
    return json.dumps(entries).encode()


def checkpoint(golden: str, *, shards: bool = False) -> dict[str, bytes]:
    """The files of a small real checkpoint as a repository has them, with some that no model needs."""
    folder = GOLDENS / golden
    gguf = folder / "model.gguf"
    extra = {"README.md": b"# A model\n", ".gitattributes": b"*.gguf lfs\n"}
    if gguf.exists():
        return {f"{golden}.gguf": gguf.read_bytes(), "mmproj-f16.gguf": b"GGUF", **extra}
    names = [name for name in ("config.json", "generation_config.json") if (folder / name).exists()]
    files = {name: (folder / name).read_bytes() for name in names}
    files |= {"tokenizer.json": (DATA / "text" / "tokenizer.json").read_bytes(), "pytorch_model.bin": b"\x80" * 1000}
    weights = (folder / "model.safetensors").read_bytes()
    return files | extra | (_sharded(weights) if shards else {"model.safetensors": weights})


def _sharded(weights: bytes) -> dict[str, bytes]:
    """The same tensors in two files with an index. Format: the safetensors specification."""
    (length,) = struct.unpack_from("<Q", weights)
    header, data = json.loads(weights[8 : 8 + length]), weights[8 + length :]
    header.pop("__metadata__", None)
    names = sorted(header)
    files, places = {}, {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file, entries, body = f"model-0000{number}-of-00002.safetensors", {}, b""
        for name in part:
            start, stop = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [len(body), len(body) + stop - start]}
            body += data[start:stop]
            places[name] = file
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        files[file] = struct.pack("<Q", len(text)) + text + body
    index = json.dumps({"metadata": {}, "weight_map": places}).encode()
    return {**files, "model.safetensors.index.json": index}
