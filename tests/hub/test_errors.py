"""Every way in which a hub or a network refuses has its own sentence, which says what to do."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from rvchat.errors import ModelError, RvchatError
from rvchat.hub import disk
from rvchat.hub.failures import in_words
from tests.loopback_hub import Hub

REPO = "acme/gemma-small"
Pulls = Callable[..., Path]


def refused(pull: Pulls, name: str = REPO, **options: Any) -> RvchatError:
    with pytest.raises(RvchatError) as caught:
        pull(name, **options)
    assert caught.value.hint
    return caught.value


def test_a_gate_says_where_to_accept_the_licence(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(REPO, "gemma3")
    hub.closed[REPO] = (401, "GatedRepo")
    error = refused(pull)
    assert "accepted its licence" in error.message
    assert f"{hub.endpoint}/{REPO}" in error.hint
    assert "HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    hub.fail("api", status=403, headers={"X-Error-Code": "GatedRepo"})
    assert "account of your token" in refused(pull).message


def test_a_gate_that_closes_between_listing_and_fetching(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("get", status=403, headers={"X-Error-Code": "GatedRepo"}, file="config.json")
    assert "accepted its licence" in refused(pull).message


@pytest.mark.parametrize(
    ("status", "headers", "message", "hint"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "no public repository", "Check the name"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no public repository", "Check the name"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no revision main", "--update"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "not accept your token", "new one"),
        (403, {}, "forbids", "HF_TOKEN"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "disabled", "another"),
        (407, {}, "proxy wants a login", "HTTPS_PROXY"),
        (429, {"Retry-After": "0"}, "too many requests", "HF_TOKEN"),
        (429, {"Retry-After": "100000"}, "too many requests", "Wait"),
        (500, {}, "not well.*500", "Wait"),
        (503, {}, "not well.*503", "Wait"),
        (418, {}, "answered 418", "Look at"),
    ],
)
@pytest.mark.parametrize("where", ["api", "get"])
def test_what_the_hub_answers(
    where: Any, status: int, headers: dict[str, str], message: str, hint: str, hub: Hub, pull: Pulls
) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail(where, times=100, status=status, headers=headers)
    error = refused(pull)
    assert re.search(message, error.message), error
    assert hint in error.hint, error


def test_a_file_that_has_gone(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("get", times=9, status=404, headers={"X-Error-Code": "EntryNotFound"}, file="model.safetensors")
    assert "lacks a file" in refused(pull).message


def test_storage_that_keeps_refusing(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("storage", times=100, status=403)
    assert "storage answered 403" in refused(pull).message
    assert len(hub.starts()) == 2


def test_no_network(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        error = refused(pull)
    assert "cannot be reached" in error.message
    assert "network" in error.hint


def test_a_network_that_goes_away_in_the_middle(hub: Hub, pull: Pulls) -> None:
    hub.publish(REPO, "gemma3")
    hub.fail("storage", times=100, end="reset", after=0)
    assert "connection" in refused(pull).message


def test_a_hub_that_does_not_answer(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rvchat.hub.remote.ANSWER_S", 0.2)
    hub.hold.add("api")
    assert "does not answer in time" in refused(pull).message


def test_a_token_that_is_none(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_käse")
    assert "HF_TOKEN" in refused(pull).hint
    assert not hub.seen


def test_offline_mode(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(REPO, "gemma3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = refused(pull)
    assert "offline mode" in error.message
    assert "HF_HUB_OFFLINE" in error.hint
    assert not hub.seen


@pytest.mark.parametrize("body", [b"<html>Please log in to the hotel</html>", b"[]", b'{"no": "sha"}'])
def test_a_login_page_in_between(body: bytes, hub: Hub, pull: Pulls) -> None:
    hub.fail("api", times=9, status=200, headers={"Content-Length": str(len(body))}, body=body)
    assert "is not a hub" in refused(pull).message


def test_an_address_that_is_none(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    assert "HF_ENDPOINT" in refused(pull).hint


def test_a_proxy_that_refuses(hub: Hub, pull: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.delenv("NO_PROXY")
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
        huggingface_hub.close_session()  # it has read the environment
        try:
            assert "PROXY" in refused(pull).hint
        finally:
            monkeypatch.undo()
            huggingface_hub.close_session()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_repository_that_is_no_model(missing: str, hub: Hub, pull: Pulls) -> None:
    files = hub.publish(REPO, "gemma3")
    del files[missing]
    hub.add(REPO, files)
    error = refused(pull)
    assert isinstance(error, ModelError)
    assert missing in error.message


@pytest.mark.parametrize(
    "name",
    [
        "../../escape.gguf",
        "/etc/x.gguf",
        "a/../b.gguf",
        "a//b.gguf",
        "./a.gguf",
        "a\\..\\b.gguf",
        "a\n.gguf",
        "\ud800.gguf",
    ],
)
def test_names_that_lead_out_of_the_cache_are_refused(name: str, hub: Hub, pull: Pulls, tmp_path: Path) -> None:
    hub.add(REPO, {name: b"GGUF"})
    assert "is not a hub" in refused(pull).message
    assert not list(tmp_path.rglob("*.gguf"))


def test_what_the_disk_refuses() -> None:
    folder = Path("/cache")
    for number, words in {
        errno.ENOSPC: "disk is full: 5.0 GB more",
        errno.EDQUOT: "share of the disk",
        errno.EFBIG: "no files so large",
        errno.EACCES: "Permission denied",
        errno.EROFS: "Read-only",
    }.items():
        error = disk.refused(OSError(number, os.strerror(number)), folder, 5_000_000_000)
        assert words in error.message
        assert error.hint


def test_anything_else_is_said_as_it_is() -> None:
    error = in_words(RuntimeError("odd"), repo=REPO, revision="main", endpoint="http://hub", token=False)
    assert "RuntimeError: odd" in error.message
