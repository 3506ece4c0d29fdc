"""What can go wrong between here and the hub, each in its own sentence with what to do about it."""

from __future__ import annotations

import ssl

import httpx2
from huggingface_hub import errors as hf

from rvchat.errors import ModelError, RvchatError

TOKENS = "https://huggingface.co/settings/tokens"
PROXY = "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY."
AGAIN = "Try again: what has been fetched is kept."


class StorageError(Exception):
    """The storage that the hub sends to answered with a status that is none of the hub's own errors."""

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"the storage answered {status}")
        self.status, self.retry_after = status, retry_after


class NoHubError(Exception):
    """What answers is not a hub."""


class StalledError(Exception):
    """Too little came for too long."""


class ShortError(Exception):
    """The answer ended before the file did."""


class WrongContentError(Exception):
    """What came is not the file that the hub had described."""


def in_words(error: BaseException, *, repo: str, revision: str, endpoint: str, token: bool) -> RvchatError:
    """The error to show for what the library, the network or the disk raised. `token`: whether one was sent."""
    page = f"{endpoint}/{repo}"
    match error:
        case RvchatError():
            return error
        case hf.GatedRepoError() if token:
            return RvchatError(
                f"The account of your token has not been given access to {repo}",
                f"Accept the licence on {page} with that account, then pull again.",
            )
        case hf.GatedRepoError():
            return RvchatError(
                f"{repo} is given only to those who have accepted its licence",
                f"Log in and accept it on {page}, make a token on {TOKENS}, set HF_TOKEN to it, and pull again.",
            )
        case hf.RepositoryNotFoundError() if token:
            return ModelError(f"{endpoint} has no repository {repo} that your token may see", "Check the name.")
        case hf.RepositoryNotFoundError():
            return ModelError(
                f"{endpoint} has no public repository {repo}", "Check the name; for a private one set HF_TOKEN."
            )
        case hf.DisabledRepoError():
            return ModelError(f"{repo} has been disabled on the hub", "Use another model.")
        case hf.RevisionNotFoundError():
            return ModelError(
                f"{repo} has no revision {revision} (any more)", "Check its name; `pull --update` takes the newest."
            )
        case hf.RemoteEntryNotFoundError():
            return ModelError(
                f"{repo} lacks a file at revision {revision} that it listed",
                "`pull --update` asks for its files again.",
            )
        case hf.OfflineModeIsEnabled():
            return RvchatError(
                "The hub may not be asked: offline mode is on", "Unset HF_HUB_OFFLINE (and TRANSFORMERS_OFFLINE)."
            )
        case hf.HFValidationError():
            return ModelError(f"{repo!r} is no name of a repository", "Write owner/name.")
        case hf.HfHubHTTPError():
            return _status(error.response.status_code, repo, page, token)
        case hf.LocalEntryNotFoundError() if error.__cause__ is not None:
            return in_words(error.__cause__, repo=repo, revision=revision, endpoint=endpoint, token=token)
        case StorageError():
            return RvchatError(f"The hub's storage answered {error.status} for a file of {repo}", AGAIN)
        case StalledError():
            return RvchatError(f"Nothing more comes from {endpoint}", f"Check the network. {AGAIN}")
        case ShortError():
            return RvchatError(f"The connection to {endpoint} keeps ending early", AGAIN)
        case WrongContentError():
            return ModelError(f"{repo}: {error}", "Pull it again later; `pull --update` takes its newest revision.")
        case httpx2.ProxyError():
            return RvchatError(f"The proxy refuses or cannot reach {endpoint}: {error}", PROXY)
        case httpx2.ConnectError():
            return _unreachable(error, endpoint)
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            text = f"{endpoint} is no address of a hub: {str(error).rstrip('.')}"
            return RvchatError(text, "Check HF_ENDPOINT and the proxies.")
        case httpx2.TimeoutException():
            return RvchatError(f"{endpoint} does not answer in time", f"Check the network. {AGAIN}")
        case httpx2.HTTPError() | httpx2.StreamError():
            return RvchatError(f"The connection to {endpoint} broke: {str(error) or type(error).__name__}", AGAIN)
        case NoHubError() | hf.FileMetadataError():
            what = next(iter(str(error).splitlines()), "no answer")
            return RvchatError(
                f"What answers at {endpoint} is not a hub: {what}",
                f"A login page of the network may be in between; or check HF_ENDPOINT. {PROXY}",
            )
        case OSError():
            return RvchatError(f"{repo} cannot be fetched: {error.strerror or error}", "")
    return RvchatError(f"{repo} cannot be fetched: {type(error).__name__}: {error}", AGAIN)


def _status(status: int, repo: str, page: str, token: bool) -> RvchatError:
    if status == 401:
        return RvchatError("The hub does not accept your token", f"Make a new one on {TOKENS} and set HF_TOKEN to it.")
    if status == 403:
        hint = "Give the token the right to read it, or accept its licence" if token else "Log in: set HF_TOKEN"
        return RvchatError(f"The hub forbids reading {repo}", f"{hint} ({page}).")
    if status == 407:
        return RvchatError("The proxy wants a login", "Put it into HTTPS_PROXY: http://user:password@host:port.")
    if status == 429:
        hint = "Wait some minutes" if token else "Wait some minutes, or set HF_TOKEN, which raises the limit"
        return RvchatError("The hub has had too many requests from here", f"{hint}. {AGAIN}")
    if status >= 500:
        return RvchatError(f"The hub is not well: it answered {status}", f"Wait some minutes. {AGAIN}")
    return RvchatError(f"The hub answered {status} for {repo}", f"Look at {page}.")


def _unreachable(error: httpx2.ConnectError, endpoint: str) -> RvchatError:
    text = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in text:
            return RvchatError(
                f"The certificate of {endpoint} is not trusted: {text}",
                "Behind a company's proxy set SSL_CERT_FILE to its certificates; else check the machine's clock.",
            )
        cause = cause.__cause__ or cause.__context__
    return RvchatError(f"{endpoint} cannot be reached: {text}", "Check the network. " + PROXY)
