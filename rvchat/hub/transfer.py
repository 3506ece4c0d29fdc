"""One request for a file, in a thread of its own that does nothing but receive: whoever takes what has come can stop
at any moment, writes and hashes it, and sees when nothing comes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import get_session, hf_raise_for_status

from rvchat.errors import CancelledError
from rvchat.hub.failures import StorageError

T = TypeVar("T")

# Pieces of up to 64 KiB that may wait to be written.
WAITING = 64
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an answer: `start` and `total` of a part (206) or of the whole (200); -1 where not said."""

    status: int
    start: int
    total: int


@dataclass(frozen=True, slots=True)
class End:
    """The answer is over; `error` is why, None where it came to its end."""

    error: BaseException | None = None


class Transfer:
    """Asks for `url` from byte `start` on. `take` gives what has come; `close` ends it without waiting."""

    def __init__(self, url: str, headers: dict[str, str], start: int, patience: float) -> None:
        """`patience`: seconds for a connection, and between two pieces."""
        self._url, self._start = url, start
        self._headers = {**headers, "Range": f"bytes={start}-"} if start else headers
        self._timeout = httpx2.Timeout(patience)
        self._came: queue.Queue[Head | bytes | End] = queue.Queue(WAITING)
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._receive, name="rvchat-transfer", daemon=True).start()

    def take(self, timeout: float) -> Head | bytes | End | None:
        """What has come next; None where nothing did within `timeout` seconds."""
        try:
            return self._came.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """The thread is left to end by itself: at once where it waits for bytes, by its time limit otherwise."""
        self._closed.set()
        if (connection := self._socket) is not None:
            with contextlib.suppress(OSError):  # the other side may have closed it
                connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        try:
            self._request()
        except Exception as error:  # noqa: BLE001 - raised again where it is taken
            self._put(End(error))
        else:
            self._put(End())

    def _request(self) -> None:
        with get_session().stream("GET", self._url, headers=self._headers, timeout=self._timeout) as response:
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            if self._closed.is_set():
                return
            if response.status_code == 416:
                self._put(Head(416, -1, -1))
            elif response.status_code in (200, 206):
                self._put(_head(response))
                for piece in response.iter_raw():
                    if self._closed.is_set():
                        return
                    self._put(piece)
            else:
                self._refuse(response)

    def _refuse(self, response: httpx2.Response) -> None:
        if _origin(str(response.url)) != _origin(self._url):
            raise StorageError(response.status_code, response.headers.get("Retry-After"))
        response.read()
        hf_raise_for_status(response)
        raise StorageError(response.status_code)  # a status below 400 that is no file

    def _put(self, item: Head | bytes | End) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._came.put(item, timeout=POLL_S)
                return


def _head(response: httpx2.Response) -> Head:
    """Format: RFC 9110, Content-Range."""
    if response.status_code == 200:
        return Head(200, 0, _number(response.headers.get("Content-Length", "")))
    place, _, total = response.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
    return Head(206, _number(place.partition("-")[0]), _number(total))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def interruptible(act: Callable[[], T], stop: threading.Event) -> T:
    """What `act` returns or raises, or CancelledError as soon as `stop` is set: `act`, which must have a time limit and
    be harmless when nobody waits for it, is then left to end by itself."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="rvchat-call", daemon=True).start()
    while not wait([done], timeout=POLL_S).done:
        if stop.is_set():
            raise CancelledError("Stopped")
    return done.result()
