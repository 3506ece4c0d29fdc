"""Conversations at work: one engine thread, the answers it makes, and the scripted engine that can stand in for it.

Importing this package imports neither jax nor Textual.
"""

from rvchat.session.models import Opener
from rvchat.session.session import Session

__all__ = ["Opener", "Session"]
