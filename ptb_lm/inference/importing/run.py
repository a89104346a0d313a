"""Make a run directory of a model that another program trained."""

import dataclasses
import hashlib
from pathlib import Path

from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.errors import UserError
from ptb_lm.inference.importing import recognition
from ptb_lm.model import cells
from ptb_lm.training import run_folder
from ptb_lm.training.origins import Imported
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config

# What others call the end of a line and an unknown word.
ALIASES = {
    EOS: ("</s>", "<EOS>", "[EOS]", "xxeos", "<|endoftext|>"),
    UNK: ("<UNK>", "[UNK]", "xxunk", "<oov>", "<OOV>"),
}


def import_run(
    source: str | Path, *, vocabulary: str | Path | None = None, run_dir: str | Path | None = None
) -> tuple[Path, list[str]]:
    """Make a run of a model that another program trained; ptb_lm.load and every command can then use it.

    Hyper-parameters that the shapes do not determine are the defaults of a new run. There is no state of a
    training, and there are no results.

    Args:
        source: A file of weights (tensor_files.py lists the formats), or a run directory whose weights were
            changed or replaced; its settings are kept.
        vocabulary: A file with a word a line, in the order of the ids; None: that of the run directory.
        run_dir: The folder to make; None: a new one in checkpoints/.

    Returns:
        The run directory, and sentences about what was recognized.

    Raises:
        UserError: The weights are of no model that a run can hold, or do not fit the vocabulary; or the
            folder is in use.
        OSError: A file cannot be read or written.
    """
    from ptb_lm.inference.importing import tensor_files  # imports torch, which takes a second

    given = RunDirectory(Path(source))
    run = given.read_config() if given.path.is_dir() else None
    if run is None and vocabulary is None:
        raise UserError("--vocabulary must name a file with a word a line, in the order of the ids")
    file = given.weights if run else given.path
    words, renamed = _read_vocabulary(Path(vocabulary or given.vocabulary))
    sizes, weights, sentences = recognition.recognize(tensor_files.read(file), len(words))
    models = cells.CELLS[sizes["cell"]].layers["torch"]
    model = next(name for name in ("cudnn", *models) if name in models)
    run = run or new_config({"data": "", "model": model})
    run = dataclasses.replace(
        run,
        hyperparameters=run.hyperparameters.replace(**sizes),
        imported=Imported(file=str(file.absolute()), sha256=hashlib.sha256(file.read_bytes()).hexdigest()),
    )
    path = Path(run_dir) if run_dir else run_folder.made_first(run_folder.default_path(run))
    directory = RunDirectory(path)
    if path.exists() and any(path.iterdir()) and not directory.never_began():
        raise UserError(f"{path} exists already; nothing is overwritten")
    with directory.locked():
        directory.create(run, words)
        directory.write_weights(weights, run, words, best=None)
    return path, [*sentences, *renamed]


def _read_vocabulary(path: Path) -> tuple[Vocabulary, list[str]]:
    """Return the words, with `<eos>` and `<unk>` by these names, and sentences about what was renamed."""
    words = [word.strip("\ufeff\r") for word in Vocabulary.load(path).words]
    if spaced := [word for word in words if len(word.split()) > 1]:
        raise UserError(
            f"{path}: {spaced[0]!r} is more than a word; a line must hold one word and nothing else"
        )
    sentences = []
    for name, aliases in ALIASES.items():
        if name not in words and (alias := next(filter(words.__contains__, aliases), None)):
            words[words.index(alias)] = name
            sentences.append(f"the word {alias} is {name} in the run")
    if EOS not in words:
        raise UserError(
            f"{path} has no word for the end of a line ({EOS}, {', '.join(ALIASES[EOS])}): name it {EOS}"
        )
    return Vocabulary(words), sentences
