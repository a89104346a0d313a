"""Which text is a corpus's train, valid and test split: files of a folder, or blocks of lines of one file."""

import math
from pathlib import Path

import numpy as np

from ptb_lm.data import SPLITS, text_file
from ptb_lm.data.preparation import Preparation
from ptb_lm.data.text_file import Blocks, Part
from ptb_lm.data.tokens import PLAIN
from ptb_lm.errors import UserError

PREPARED = "ptb.{}.txt"
NAMES = (PREPARED, "{}.txt", "wiki.{}.tokens", "wiki.{}.raw")  # the last two are WikiText's

BLOCKS = 200  # that a file is cut into: the lines of one are neighbours and stay together
_SEED = 1  # of what is held out, the same for all seeds of a run


def find(path: Path, preparation: Preparation | None) -> dict[str, Part]:
    """Return the text of each split.

    Raises:
        UserError: A file or folder is missing, too short, binary or not UTF-8; or it is Penn Treebank, and is
            to be prepared once more.
    """
    if path.is_file() and preparation:
        return _of_file(path, preparation)
    if not path.is_dir():
        if path.is_file():
            raise UserError(f"the data folder {path} is a file, not a folder")
        if path.exists():
            raise UserError(
                f"--data {path} is a pipe or a device; a text is read twice, so it must be a file"
            )
        raise UserError(
            f"--data {path}: there is no such file or folder; give ptb, synthetic, a folder or a file"
        )
    treatment = preparation.treatment if preparation else PLAIN
    found = {split: Part(file_of(path, split), treatment=treatment) for split in SPLITS}
    for split, part in found.items():
        if preparation and part.path.name == PREPARED.format(split):
            raise UserError(f"{part.path} is already prepared text; the flags for raw text cannot be used")
    return found


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a file of each split."""
    return all(any((folder / name.format(split)).is_file() for name in NAMES) for split in SPLITS)


def file_of(folder: Path, split: str) -> Path:
    """Return the text file of a split.

    Raises:
        UserError: It is not there.
    """
    names = [name.format(split) for name in NAMES]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"the folder {folder} lacks the {split} split: none of {', '.join(names)} is there")


def _of_file(path: Path, preparation: Preparation) -> dict[str, Part]:
    """Hold out blocks of lines that are spread over a file at random."""
    lines = text_file.count_lines(path)
    if not lines:
        raise UserError(f"{path} is empty")
    if lines < len(SPLITS):
        plural = "" if lines == 1 else "s"
        raise UserError(f"{path} has {lines} line{plural}, too few to be split into {', '.join(SPLITS)}")
    size = max(1, lines // BLOCKS)
    count = math.ceil(lines / size)
    # NumPy guarantees the raw stream of a bit generator, not that of permutation().
    order = np.argsort(np.random.PCG64(_SEED).random_raw(count), kind="stable").tolist()
    valid, test = (
        max(1, round(count * share)) for share in (preparation.valid_fraction, preparation.test_fraction)
    )
    if valid + test >= count:
        raise UserError(f"{path} has {lines} lines, but the held-out fractions leave none to train on")
    numbers = {"valid": order[:valid], "test": order[valid : valid + test], "train": order[valid + test :]}
    return {
        split: Part(path, Blocks(size, frozenset(numbers[split])), preparation.treatment) for split in SPLITS
    }
