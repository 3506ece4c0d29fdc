"""INT4 values two to a byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GROUP = 32


def pack_nibbles(integers: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Integers of -8 to 7, [..., 32], plus 8: i in the low nibble and i + 16 in the high. # uint8 [..., 16]"""
    offset = (integers + np.int8(8)).astype(np.uint8)
    half = GROUP // 2
    packed: npt.NDArray[np.uint8] = offset[..., :half] + offset[..., half:] * np.uint8(16)
    return packed
