"""The hub itself, through its own library: what a repository has, how a file is asked for, links in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hf
from huggingface_hub.utils._headers import build_hf_headers

from rvchat.errors import BadInputError, RvchatError
from rvchat.hub import failures
from rvchat.hub.pins import Pin, RemoteFile
from rvchat.hub.place import Place

ANSWER_S = 10.0
"""Seconds for an answer that is no file."""

_KINDS = (".json", ".jinja", ".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class Remote:
    """A hub. What it raises is what the library or the network raise; `in_words` makes a sentence of it."""

    place: Place
    token: str | bool

    @classmethod
    def at(cls, place: Place) -> Remote:
        """With the user's token, if there is one that may be used."""
        if huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            return cls(place, False)
        token = huggingface_hub.get_token()
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise BadInputError("The token for the hub has characters that none has", "Set HF_TOKEN anew.")
        return cls(place, token or False)

    def listing(self, repo: str, revision: str) -> Pin:
        """What the repository has at `revision` now. Raises NoHubError for an answer that makes no sense."""
        self._check_online()
        try:
            huggingface_hub.get_session()
        except ValueError as error:
            raise BadInputError(f"A proxy has an address that is none: {error}", failures.PROXY) from error
        api = huggingface_hub.HfApi(endpoint=self.place.endpoint, token=self.token)
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=ANSWER_S)
            siblings = [sibling for sibling in info.siblings or [] if _is_wanted(sibling.rfilename)]
            files = tuple(self._file(repo, str(info.sha), sibling) for sibling in siblings)
            return Pin(repo, revision, str(info.sha), files)
        except (hf.HfHubHTTPError, hf.HFValidationError):
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise failures.NoHubError(str(error)) from error

    def url(self, repo: str, commit: str, file: str) -> str:
        return huggingface_hub.hf_hub_url(repo, file, revision=commit, endpoint=self.place.endpoint)

    def headers(self) -> dict[str, str]:
        self._check_online()
        headers: dict[str, str] = build_hf_headers(token=self.token, library_name="rvchat")
        return {**headers, "Accept-Encoding": "identity"}

    def link(self, pin: Pin, file: RemoteFile) -> None:
        """Has the library link a file whose bytes are in the cache under the name that the pin gives it."""
        huggingface_hub.hf_hub_download(
            pin.repo,
            file.name,
            revision=pin.commit,
            cache_dir=self.place.cache,
            endpoint=self.place.endpoint,
            token=self.token,
            etag_timeout=ANSWER_S,
        )

    def in_words(self, error: BaseException, repo: str, revision: str) -> RvchatError:
        return failures.in_words(
            error, repo=repo, revision=revision, endpoint=self.place.endpoint, token=bool(self.token)
        )

    def _check_online(self) -> None:
        """The library looks at the environment only once, when it is imported."""
        if self.place.offline:
            raise hf.OfflineModeIsEnabled("offline mode is on")

    def _file(self, repo: str, commit: str, sibling: Any) -> RemoteFile:
        blob = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
        size = sibling.lfs.size if sibling.lfs is not None else sibling.size
        if blob is None or size is None:  # a mirror that lists names alone
            url = self.url(repo, commit, sibling.rfilename)
            found = huggingface_hub.get_hf_file_metadata(url, token=self.token, timeout=ANSWER_S)
            blob, size = found.etag, found.size
        return RemoteFile(sibling.rfilename, size, blob)


def _is_wanted(name: str) -> bool:
    return name.endswith(_KINDS) and ("/" not in name or name.endswith(".gguf"))
