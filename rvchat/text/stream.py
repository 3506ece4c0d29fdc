"""Token ids to text as they come, without ever showing half a character."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

BAD = "\ufffd"


class TokenStream:
    """Decodes ids one after another. A character spelled in several byte pieces is held back until it is whole; bytes
    that cannot become one are U+FFFD, one each. What was returned is never taken back, so that of a run of byte pieces
    that is valid only at first, `Tokenizer.decode` gives U+FFFD alone and a stream what it had shown."""

    def __init__(self, piece: Callable[[int], str | bytes], hidden: Container[int] = ()) -> None:
        self._piece, self._hidden = piece, hidden
        self._held = bytearray()

    def feed(self, ids: Iterable[int]) -> str:
        """The text that `ids` make certain."""
        out: list[str] = []
        held = self._held
        for number in ids:
            if number in self._hidden:
                continue
            piece = self._piece(number)
            if isinstance(piece, str):
                if held:
                    out.append(BAD * len(held))
                    held.clear()
                out.append(piece)
            else:
                out.append(self._byte(piece))
        return "".join(out)

    def finish(self) -> str:
        """What is left: U+FFFD for each byte of an unfinished character. The stream can go on with a new text."""
        rest = BAD * len(self._held)
        self._held.clear()
        return rest

    def _byte(self, byte: bytes) -> str:
        held = self._held
        held += byte
        try:
            whole = held.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            # The newest byte broke what was held; it may still begin a character of its own.
            bad = BAD * (len(held) - 1)
            held.clear()
            return bad + self._byte(byte) if bad else BAD
        held.clear()
        return whole


def decode_bytes(run: bytes | bytearray) -> str:
    """`run` as UTF-8, or one U+FFFD a byte where it is not."""
    try:
        return run.decode()
    except UnicodeDecodeError:
        return BAD * len(run)
