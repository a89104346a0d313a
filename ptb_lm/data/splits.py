"""The train, valid and test split of a corpus: files of a folder, or parts of one file."""

import itertools
import math
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from ptb_lm.common.errors import UserError
from ptb_lm.data import SPLITS, tables, text, text_file
from ptb_lm.data.preparation import PLAIN, Preparation
from ptb_lm.data.text_file import LineBlocks, TextSlice

ALIASES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
PREPARED_PREFIX = "ptb."
# The patterns of file names in a folder, the preferred first: a prefix, {} for the split, a suffix.
# -* stands for the numbers of one of several files. The last is a folder of tables.
NAMES = [
    *map(
        "".join,
        itertools.product(
            (PREPARED_PREFIX, "", "wiki."),
            ("{}",),
            ("", "-*"),
            (".txt", ".tokens", ".raw", "", *tables.TABLES),
            ("", *tables.COMPRESSION_SUFFIXES),
        ),
    ),
    "{}/",
]
USUAL = ("ptb.{}.txt", "{}.txt", "wiki.{}.tokens", "{}.jsonl", "{}-*.parquet")  # the names in a message
BLOCKS = 200  # the number of blocks that a file is cut into: the lines of a block stay together

_SEED = 1  # chooses the lines that are held out; the same for all seeds of a run
_NAME = re.compile(
    rf"(ptb\.|wiki\.)?({'|'.join(itertools.chain(*ALIASES.values()))})(-\d+-of-\d+(?:-\w+)?)?((?:\.\w+)*)"
)
_Files = dict[str, list[Path]]  # by split


def find(path: Path, preparation: Preparation | None, column: str | None = None) -> dict[str, TextSlice]:
    """Return the text of each split.

    Raises:
        UserError: A file or folder is missing, too short, binary or not UTF-8; or its files are not named
            alike; or it is Penn Treebank, and is to be prepared once more; or a table has no such column.
    """
    tokenizer = preparation or PLAIN
    if str(path).startswith(tables.HUB):
        files = tables.hub_files(str(path).removeprefix(tables.HUB))
        paths = _by_split(files)
        if absent := [split for split in SPLITS if split not in paths]:
            raise UserError(f"{path} lacks the {absent[0]} split; it has {', '.join(files)}")
    elif path.is_dir():
        name, paths = _files(path)
        if preparation and name.startswith(PREPARED_PREFIX):
            raise UserError(
                f"{paths['train'][0]} is prepared text; the flags for raw text cannot be used on it, nor "
                "can the preparation of a run that was trained on raw text"
            )
    elif path.exists() or text_file.URL.fullmatch(str(path)):
        text_file.check_file(path)
        if preparation is None:
            raise UserError(f"the data folder {path} is a file, not a folder")
        return _slices_of_file(TextSlice(path, tokenizer=tokenizer, column=column), preparation)
    else:
        raise UserError(
            f"--data {path}: there is no such file or folder; give ptb, synthetic, a folder or a file"
        )
    return {
        split: TextSlice(paths[split][0], None, tokenizer, column, tuple(paths[split][1:]))
        for split in SPLITS
    }


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a file of each split, all named in one way."""
    return folder.is_dir() and any(len(found) == len(SPLITS) for found in _files_by_name(folder).values())


def _by_split(files: dict[str, list[Path]]) -> _Files:
    """Return files by split, from those by their name for it."""
    return {split: files[each] for split in SPLITS for each in reversed(ALIASES[split]) if each in files}


def _files_by_name(folder: Path) -> dict[str, _Files]:
    """Return the files of each split by the pattern of their names, in the order of NAMES."""
    found: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.iterdir(), key=_by_numbers):
        if match := _NAME.fullmatch(path.name):
            prefix, split, shard, suffix = match.groups("")
            is_folder = path.is_dir() and path.name == split
            inside = path.iterdir() if is_folder else ()
            # What `datasets` computed from a split lies beside it, and so does .json about it.
            kinds = {*tables.TABLES} - {".json"}
            parts = [
                each
                for each in sorted(inside, key=_by_numbers)
                if tables.format_of(each) in kinds and each.name[:6] != "cache-"
            ]
            name = "{}/" if is_folder else f"{prefix}{{}}{'-*' if shard else ''}{suffix}"
            found[name][split] += parts or [path]
    return {name: _by_split(found[name]) for name in NAMES if name in found}


def _by_numbers(path: Path) -> tuple[list[str | int], str]:
    """Return what sorts files by the numbers in their names: part 10 comes after part 2."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def _files(folder: Path) -> tuple[str, _Files]:
    """Return the pattern of the files of all splits, and the files; two patterns may be of two corpora.

    Raises:
        UserError: A split is missing, or is there only by another kind of name; or one of its files is.
    """
    by_name = _files_by_name(folder)
    for split in SPLITS:
        if not any(split in found for found in by_name.values()):
            names = ", ".join(name.format(split) for name in USUAL)
            raise UserError(f"the folder {folder} lacks the {split} split: none of {names} is there")
    name = max(by_name, key=lambda each: len(by_name[each]))
    found = by_name[name]
    if absent := [split for split in SPLITS if split not in found]:
        names = ", ".join(name.format(split) for split in absent)
        raise UserError(
            f"the folder {folder} has {next(iter(found.values()))[0].name}, but not {names}; files "
            "with other kinds of names may belong to another text, and are not used with it"
        )
    for paths in found.values():
        for path in paths:
            text_file.check_file(path)
        total = re.search(r"-\d+-of-(\d+)(?:[-.]|$)", paths[0].name)
        if total and int(total[1]) != len(paths):
            raise UserError(
                f"the folder {folder} has only {len(paths)} of the {int(total[1])} files {paths[0].name} …"
            )
    return name, found


def _slices_of_file(whole: TextSlice, preparation: Preparation) -> dict[str, TextSlice]:
    """Hold out blocks of lines that are spread over a file at random; words at its end if it has no lines."""
    lines = sum(chunk.count("\n") for _, chunk in text_file.chunks(whole))  # and all of it is text
    by_words = lines < len(SPLITS)
    size = 1 if by_words else max(1, lines // BLOCKS)
    # The word that stands for the end of the last line is left out.
    count = text.count_words(whole) - 1 if by_words else math.ceil(lines / size)
    valid, test = (
        max(1, round(count * share)) for share in (preparation.valid_fraction, preparation.test_fraction)
    )
    train = count - valid - test
    if train < 1:
        has = f"{lines} line{'s' * (lines != 1)}" + f" and {count} word{'s' * (count != 1)}" * by_words
        if count >= len(SPLITS):
            raise UserError(
                f"{whole.path} has {has}, of which --valid-fraction {preparation.valid_fraction:g} and "
                f"--test-fraction {preparation.test_fraction:g} leave none to train on"
            )
        raise UserError(
            f"{whole.path} has {has}, too few to be split into {', '.join(SPLITS)}; a folder of train.txt, "
            f"valid.txt and test.txt is not split{f'; {text.NO_SPACES}' * by_words}"
        )
    if by_words:
        spans = {"train": (0, train), "valid": (train, train + valid), "test": (train + valid, count)}
        return {split: replace(whole, span=span) for split, span in spans.items()}
    # NumPy guarantees the raw stream of a bit generator, not that of permutation().
    order = np.argsort(np.random.PCG64(_SEED).random_raw(count), kind="stable").tolist()
    numbers = {"valid": order[:valid], "test": order[valid : valid + test], "train": order[valid + test :]}
    return {split: replace(whole, blocks=LineBlocks(size, frozenset(numbers[split]))) for split in SPLITS}
