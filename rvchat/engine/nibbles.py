"""INT4 values two to a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 32

Int4Rows = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]
"""Nibbles plus 8, [rows, G, 16], input i of a group low and i + 16 high; scales [rows, G] in the file's type."""


def pack_nibbles(integers: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Integers of -8 to 7, [..., 32], plus 8: i in the low nibble and i + 16 in the high. # uint8 [..., 16]"""
    offset = (integers + np.int8(8)).astype(np.uint8)
    half = GROUP // 2
    packed: npt.NDArray[np.uint8] = offset[..., :half] + offset[..., half:] * np.uint8(16)
    return packed
