"""Makes rvchat/engine/calibration.npy: the texts in calibration.txt as ids, for rounding weights to INT4.

    python assets/calibration.py MODEL

MODEL is any Gemma 3 or 4, of which the vocabulary is read; they agree on nearly all of these ids. The passages, which
are parted by lines of %%, are joined and cut into rows of equal length, each of which begins as a text does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvchat.text.tokenizer import Tokenizer

PASSAGES = Path(__file__).with_suffix(".txt")
IDS = Path(__file__).parents[1] / "rvchat" / "engine" / "calibration.npy"
ROWS, LENGTH = 32, 256


def rows(tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """# [ROWS, LENGTH]"""
    passages = PASSAGES.read_text(encoding="utf-8").split("\n%%\n")
    ids = [i for passage in passages for i in tokenizer.encode(passage.strip("\n") + "\n\n")]
    bos, length = tokenizer.control_id("<bos>"), LENGTH - 1
    if len(ids) < ROWS * length:
        raise SystemExit(f"{PASSAGES} has {len(ids):,} tokens; {ROWS * length:,} are needed")
    return np.array([[bos, *ids[i * length : (i + 1) * length]] for i in range(ROWS)], np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    np.save(IDS, rows(Tokenizer.load(parser.parse_args().model)))


if __name__ == "__main__":
    main()
