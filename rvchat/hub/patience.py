"""How long a network is waited for, and when a request is made again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import httpx2
from huggingface_hub import errors as hf

from rvchat.errors import CancelledError
from rvchat.hub.failures import ShortError, StalledError, StorageError

BUSY = (408, 425, 429, 500, 502, 503, 504)
# A server that asks for more than this is told to the user rather than waited for.
LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Patience:
    """`window`: seconds in which at least `least` bytes must come. `pauses`: seconds before each further try; the tries
    begin anew whenever something has come."""

    window: float = 15.0
    least: int = 16 << 10
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Tries:
    """The tries of one file."""

    def __init__(self, patience: Patience, stop: threading.Event) -> None:
        self._patience, self._stop = patience, stop
        self._made = 0
        self._refused = False

    def progress(self) -> None:
        self._made = 0
        self._refused = False

    def pause_after(self, error: BaseException) -> float | None:
        """Seconds to wait before the next try; None where another would not help."""
        wanted = self._wanted(error)
        if wanted is None or self._made >= len(self._patience.pauses):
            return None
        self._made += 1
        return max(wanted, self._patience.pauses[self._made - 1])

    def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise CancelledError("Stopped")

    def _wanted(self, error: BaseException) -> float | None:
        match error:
            case hf.LocalEntryNotFoundError() if error.__cause__ is not None:
                return self._wanted(error.__cause__)
            case hf.HfHubHTTPError():
                status, after = error.response.status_code, error.response.headers.get("Retry-After")
            case StorageError():
                status, after = error.status, error.retry_after
                if status not in BUSY and not self._refused:
                    self._refused = True  # its address may have expired: the next request gets a fresh one
                    return 0.0
            case StalledError() | ShortError():
                return 0.0
            case httpx2.ProxyError() | hf.OfflineModeIsEnabled():
                return None
            case httpx2.TimeoutException() | httpx2.NetworkError() | httpx2.RemoteProtocolError() | ConnectionError():
                return 0.0
            case _:
                return None
        if status not in BUSY:
            return None
        asked = float(after) if after is not None and after.isascii() and after.isdigit() else 0.0
        return asked if asked <= LONGEST_WAIT_S else None
