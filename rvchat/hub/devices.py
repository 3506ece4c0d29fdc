"""The devices that jax sees, asked in a process of its own: a driver that crashes or hangs takes nothing with it, and
no memory of a device is held afterwards."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass

PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Device:
    """`limit` and `used`: bytes of its memory, None where jax does not say."""

    platform: str
    kind: str
    limit: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class Devices:
    """`error`: why there are none, in jax's words. `said`: the last lines that jax and the drivers wrote."""

    devices: tuple[Device, ...]
    jax: str = ""
    jaxlib: str = ""
    error: str = ""
    said: str = ""


def probe(timeout: float = PATIENCE_S) -> Devices:
    """Asks jax. What goes wrong is in `error`."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "rvchat.hub.devices"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Devices((), error=f"jax did not answer within {timeout:.0f} seconds")
    except OSError as error:
        return Devices((), error=f"no process could be started: {error.strerror}")
    said = "\n".join(done.stderr.strip().splitlines()[-5:])
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        seen = tuple(Device(**device) for device in found.pop("devices"))
        return Devices(seen, **found, said=said)
    except (ValueError, IndexError, TypeError, KeyError, AttributeError):
        return Devices((), error=f"jax ended with code {done.returncode}", said=said)


def _answer() -> dict[str, object]:
    """In the process that is asked: what jax sees."""
    try:
        import jax
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is what is asked for
        return {"devices": [], "error": f"{type(error).__name__}: {error}"}
    versions: dict[str, object] = {"jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib")}
    try:
        found = []
        for device in jax.devices():
            stats = device.memory_stats() or {}
            memory = {"limit": stats.get("bytes_limit"), "used": stats.get("bytes_in_use")}
            found.append({"platform": device.platform, "kind": device.device_kind, **memory})
    except RuntimeError as error:
        return {**versions, "devices": [], "error": str(error)}
    return {**versions, "devices": found, "error": ""}


if __name__ == "__main__":
    print(json.dumps(_answer()))
