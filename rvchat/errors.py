"""Errors that a user sees: one sentence that says what is wrong, with the value, and a hint that says what to do."""

from __future__ import annotations


class RvchatError(Exception):
    """Something failed. `hint` says what to do about it; empty where the message already does.

    `exit_code` is what a command ends with: 1 failed, 2 wrong use or bad input.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class BadInputError(RvchatError):
    """What was given cannot be used: a wrong option, a file that is not what it should be."""

    exit_code = 2


class ModelError(BadInputError):
    """A model's files are missing, damaged, or of a kind that is not supported."""


class DoesNotFitError(ModelError):
    """A model or a request needs more memory than there is; the message has both figures."""


class EngineError(RvchatError):
    """The engine could not go on; the next request may work."""


class OutOfMemoryError(EngineError):
    """The device's memory ran out; the hint names the setting that would fit."""


class StoreError(RvchatError):
    """Conversations could not be read or written."""


class CancelledError(RvchatError):
    """The user asked for this to stop."""

    exit_code = 130
