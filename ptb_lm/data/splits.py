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
        UserError: A file or folder is missing, too short, binary or not UTF-8; or its files are not named
            alike; or it is Penn Treebank, and is to be prepared once more.
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
    name = _name_of_files(path)
    if preparation and name == PREPARED:
        raise UserError(
            f"{path / name.format(SPLITS[0])} is prepared text; what is for raw text cannot be used on it: "
            "neither its flags, nor the preparation of a run that had raw text"
        )
    return {split: Part(path / name.format(split), treatment=treatment) for split in SPLITS}


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a file of each split, all named in one way."""
    return _complete(folder) is not None


def _complete(folder: Path) -> str | None:
    return next((name for name in NAMES if len(_there(folder, name)) == len(SPLITS)), None)


def _there(folder: Path, name: str) -> list[str]:
    """Return the splits that have a file of this kind of name."""
    return [split for split in SPLITS if (folder / name.format(split)).is_file()]


def _name_of_files(folder: Path) -> str:
    """Return how the files of all three splits are named; files of two names may be of two corpora.

    Raises:
        UserError: A split is missing, or is there only by another kind of name.
    """
    if name := _complete(folder):
        return name
    of_name = {name: _there(folder, name) for name in NAMES}
    for split in SPLITS:
        if not any(split in found for found in of_name.values()):
            names = ", ".join(name.format(split) for name in NAMES)
            raise UserError(f"the folder {folder} lacks the {split} split: none of {names} is there")
    name = max(of_name, key=lambda each: len(of_name[each]))
    missing = ", ".join(name.format(split) for split in SPLITS if split not in of_name[name])
    raise UserError(
        f"the folder {folder} has files of different names, which may be of different texts: beside "
        f"{name.format(of_name[name][0])} it lacks {missing}"
    )


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
