"""What tests of several rooms need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback_hub import Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub, with the environment that leads there and to an empty cache."""
    hub = Hub()
    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(name, value)
    yield hub
    hub.close()
