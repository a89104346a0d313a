"""From the weights of a model that another program trained to a run directory."""

import dataclasses
import hashlib
from pathlib import Path

from ptb_lm.common.errors import UserError
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.inference.importing import recognition
from ptb_lm.model import cells
from ptb_lm.model.choice import Choice
from ptb_lm.training import run_folders
from ptb_lm.training.run_config import Source
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config

# Other programs' names of the end of a line and of an unknown word.
ALIASES = {
    **dict.fromkeys(("</s>", "<EOS>", "[EOS]", "xxeos", "<|endoftext|>"), EOS),
    **dict.fromkeys(("<UNK>", "[UNK]", "xxunk", "<oov>", "<OOV>"), UNK),
}


def import_run(
    source: str | Path,
    *,
    vocabulary: str | Path | None = None,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Make a run of a model that another program trained; ptb_lm.load and every command can then use it.

    Hyper-parameters that the shapes do not determine are the defaults of a new run. There is no state of a
    training, and there are no results.

    Args:
        source: A file of weights (tensor_files.py lists the formats), or a run directory whose weights were
            changed or replaced; its settings are kept.
        vocabulary: A file with a word a line, in the order of the ids; None: that of the run directory.
        run_dir: The folder to make; None: a new one in checkpoints/.
        overwrite: True to replace a run that is there.

    Returns:
        The run directory, and sentences about what was recognized.

    Raises:
        UserError: The weights are of no model that a run can hold, or do not fit the vocabulary; or the
            folder is in use.
        OSError: A file cannot be read or written.
    """
    # Imported here, because it imports torch, and a list of the commands should not.
    from ptb_lm.inference.importing import tensor_files

    origin = RunDirectory(Path(source))
    is_run = origin.path.is_dir()
    if vocabulary is None and not is_run:
        raise UserError("--vocabulary must name a file with a word a line, in the order of the ids")
    run = origin.read_config() if is_run else new_config({"data": ""})
    file = origin.weights if is_run else origin.path
    words, renamings = _read_vocabulary(Path(vocabulary or origin.vocabulary))
    sizes, weights, sentence = recognition.recognize(tensor_files.read(file), len(words))
    run = dataclasses.replace(
        run,
        choice=run.choice
        if sizes["cell"] in cells.names_for(run.choice.framework, run.choice.model)
        else Choice.create(model="basic"),
        hyperparameters=run.hyperparameters.replace(**sizes),
        imported=Source(path=str(file.absolute()), sha256=hashlib.sha256(file.read_bytes()).hexdigest()),
    )
    path = Path(run_dir) if run_dir else run_folders.create_folder(run_folders.default_path(run))
    run_folders.refuse_existing(path, overwrite=overwrite, init_from=origin.path if is_run else None)
    directory = RunDirectory(path)
    with directory.lock():
        directory.create(run, words)
        directory.write_weights(weights, run, words, best=None)
    return path, [sentence, *renamings]


def _read_vocabulary(path: Path) -> tuple[Vocabulary, list[str]]:
    """Return the words, with `<eos>` and `<unk>` by these names, and sentences about new names."""
    words = [word.strip("\ufeff\r") for word in Vocabulary.load(path).words]
    if phrases := [word for word in words if len(word.split()) > 1]:
        raise UserError(
            f"{path}: {phrases[0]!r} is more than a word; a line must hold one word and nothing else"
        )
    aliases = {name: alias for alias, name in ALIASES.items() if alias in words and name not in words}
    if EOS not in {*words, *aliases}:
        raise UserError(
            f"{path} has no word for the end of a line ({EOS} or "
            f"{', '.join(alias for alias, name in ALIASES.items() if name == EOS)}): name it {EOS}"
        )
    for name, alias in aliases.items():
        words[words.index(alias)] = name
    return Vocabulary(words), [f"the word {alias} is {name} in the run" for name, alias in aliases.items()]
