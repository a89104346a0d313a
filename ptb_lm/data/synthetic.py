"""The synthetic corpus: text drawn from a known process, so that the best possible perplexity is known."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write
from ptb_lm.data import SPLITS
from ptb_lm.data.newswire import newswire
from ptb_lm.data.vocabulary import EOS

VERSION = 1  # of the text: goes up with any change to the numbers, the tables or the sampling
_SEEDS = {"train": 1, "valid": 2, "test": 3}
_TOKENS = {"train": 400_000, "valid": 25_000, "test": 25_000}  # a split ends with the last whole sentence
_GENERATOR = {"version": VERSION, "seeds": _SEEDS, "tokens": _TOKENS}


def ensure(folder: Path) -> None:
    """Write train.txt, valid.txt, test.txt and perplexity.json into `folder`, unless all are right already.

    Raises:
        OSError: The folder cannot be made, read or written.
    """
    if _is_current(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    model, words = newswire()
    record: dict[str, object] = {"generator": _GENERATOR}
    digests = {}
    for split in SPLITS:
        ids = model.sample(_TOKENS[split], _SEEDS[split])
        ids = ids[: len(ids) - ids[::-1].index(words.index(EOS))]
        if split != "train":
            record[split] = model.perplexity(ids)
        text = (" ".join(words[i] for i in ids) + " ").replace(" <eos> ", "\n").encode()
        digests[split] = hashlib.sha256(text).hexdigest()
        atomic_write(folder / f"{split}.txt", text)
    # Last, so that the record never vouches for texts that were not written.
    record["sha256"] = digests
    record["record_sha256"] = _digest(record)
    atomic_write(folder / "perplexity.json", json.dumps(record, indent=2) + "\n")


def bound(folder: Path) -> dict[str, float]:
    """Return the exact perplexities of "valid" and "test" under the process that wrote them.

    Raises:
        UserError: `folder` does not hold the record that `ensure` writes.
    """
    record = _record(folder)
    return {split: float(record[split]) for split in ("valid", "test")}


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "perplexity.json"
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        if record.pop("record_sha256") == _digest(record):
            return record
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{path} does not hold the perplexities of the synthetic corpus")


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _is_current(folder: Path) -> bool:
    try:
        record = _record(folder)
        digests = {s: hashlib.sha256((folder / f"{s}.txt").read_bytes()).hexdigest() for s in SPLITS}
    except (FileNotFoundError, UserError):
        return False
    return bool(record.get("generator") == _GENERATOR and record.get("sha256") == digests)
