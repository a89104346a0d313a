"""From the weights of a model that another program trained to a run directory.

No Python object in a file of weights is built or run.
"""

import dataclasses
import hashlib
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch  # safetensors.numpy lacks bfloat16
import torch

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import absolute, refuse_pipe
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary, read_words
from ptb_lm.inference.importing import keras_files, recognition
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.training import run_folders
from ptb_lm.training.run_config import Source
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import new_config
from ptb_lm.training.tensors import check_room

# Other programs' names of the end of a line and of an unknown word.
ALIASES = {
    **dict.fromkeys(("</s>", "<EOS>", "[EOS]", "xxeos", "<|endoftext|>"), EOS),
    **dict.fromkeys(("<UNK>", "[UNK]", "xxunk", "<oov>", "<OOV>"), UNK),
}

BFLOAT16 = np.dtype("V2")  # bfloat16 in .npz and HDF5, which have no name for it: two bytes


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
        source: A file of weights (`read_tensors` lists the formats), or a run directory whose weights were
            changed or replaced; its settings are kept.
        vocabulary: A file with one word per line, in the order of the ids; None: that of the run directory.
        run_dir: The folder to make; None: a new one in checkpoints/.
        overwrite: True to replace a run that is there.

    Returns:
        The run directory, and sentences about what was recognized.

    Raises:
        UserError: The weights are of no model that a run can hold, or do not fit the vocabulary; or the
            folder is in use, or not named where it is to be replaced.
        OSError: A file cannot be read or written.
    """
    if overwrite and run_dir is None:
        raise UserError("--overwrite needs --run-dir")
    origin = RunDirectory(Path(source))
    if not origin.path.exists():
        raise UserError(f"{origin.path} does not exist")
    is_run = origin.path.is_dir()
    if vocabulary is None and not is_run:
        raise UserError("--vocabulary must name a file with one word per line, in the order of the ids")
    run = origin.read_config() if is_run else new_config({"data": ""})
    file = origin.weights_path if is_run else origin.path
    own = origin.read_vocabulary() if vocabulary is None else None
    run_vocabulary, renamings = (
        (own, list[str]())  # a run's words stay as they are
        if own is not None and EOS in own.ids
        else _read_vocabulary(Path(vocabulary or origin.vocabulary_path))
    )
    sizes, weights, sentence = recognition.recognize(read_tensors(file), len(run_vocabulary))
    run = dataclasses.replace(
        run,
        choice=run.choice
        if sizes["cell"] in cells.names_for(run.choice.framework, run.choice.model)
        else Choice.create(model="basic"),
        hyperparameters=run.hyperparameters.replace(**sizes),
        imported=Source(path=str(absolute(file)), sha256=hashlib.sha256(file.read_bytes()).hexdigest()),
    )
    path = Path(run_dir) if run_dir else run_folders.create_folder(run_folders.default_path(run))
    run_folders.refuse_existing(path, overwrite=overwrite, init_from=file)
    directory = RunDirectory(path)
    with directory.lock():
        run_folders.refuse_existing(path, overwrite=overwrite, init_from=file)  # one may have come meanwhile
        directory.create(run, run_vocabulary)
        directory.write_weights(weights, run, run_vocabulary, best=None)
    return path, [sentence, *renamings]


def _read_vocabulary(path: Path) -> tuple[Vocabulary, list[str]]:
    """Return the words, with `<eos>` and `<unk>` by these names, and sentences about new names."""
    words = [word.strip("\ufeff \t\r") for word in read_words(path)]
    if "" in words:
        raise UserError(f"{path}, line {words.index('') + 1}: it is empty; a line must hold a word")
    if several := [word for word, count in Counter(words).items() if count > 1]:
        raise UserError(f"{path} has the word {several[0]!r} more than once")
    if phrases := [word for word in words if len(word.split()) > 1]:
        raise UserError(
            f"{path}: {phrases[0]!r:.100} is more than a word; a line must hold one word and nothing else"
        )
    aliases = {name: alias for alias, name in ALIASES.items() if alias in words and name not in words}
    sentences = [f"the word {alias} is {name} in the run" for name, alias in aliases.items()]
    for name, alias in aliases.items():
        words[words.index(alias)] = name
    if EOS not in words:
        raise UserError(f"{path} has no word for the end of a line ({_names(EOS)}): name it {EOS}")
    if UNK not in words:
        sentences.append(
            f"the vocabulary has no word for unknown words ({_names(UNK)}), so a text with other words "
            "is refused"
        )
    return Vocabulary(words), sentences


def _names(word: str) -> str:
    """Return the names of a word that `_read_vocabulary` knows, for people."""
    return f"{word} or {', '.join(alias for alias, name in ALIASES.items() if name == word)}"


def read_tensors(path: Path) -> Arrays:
    """Return the floating-point tensors of a file's model by name, in float32; empty ones are left out.

    The end of its name tells what it is: .safetensors, NumPy's .npz, Keras' .keras or .h5; else torch's.

    Raises:
        UserError: It is no such file, is truncated, holds several models, or a number that is not finite.
        OSError: It cannot be opened.
    """
    refuse_pipe(path)
    path.open("rb").close()  # libraries say less clearly that it cannot be
    try:
        found = READERS.get(path.suffix.lower(), _read_torch)(path)
        if not isinstance(found, Mapping):
            raise UserError(f"{path} holds a {type(found).__name__}, not the state_dict of a model")
        # A checkpoint holds the model's state_dict beside the optimizer's, losses and more: tables without a
        # matrix.
        tables = map(_floats, (found, *found.values()))
        states = [table for table in tables if any(array.ndim > 1 for array in table.values())]
    except (UserError, MemoryError):
        raise
    except ModuleNotFoundError as error:  # TensorFlow and Keras bring h5py
        raise UserError(
            f"{path} needs the package {error.name}, which is not installed; pip install {error.name}"
        ) from None
    except Exception as error:  # whatever a library raises where a file is not what it seems
        reason = str(error).split("\n")[0].split(". ")[0] or type(error).__name__
        raise UserError(f"the weights in {path} cannot be read ({reason})") from None
    if len(states) != 1:
        raise UserError(f"{path} must hold the state_dict of one model, and holds {len(states)}")
    if wrong := [name for name, array in states[0].items() if not np.isfinite(array).all()]:
        raise UserError(f"{path}: the tensor {wrong[0]!r} has a number that is not finite")
    return states[0]


def _floats(table: Any) -> Arrays:
    values = table.items() if isinstance(table, Mapping) else ()
    tensors = {name: _to_tensor(value) for name, value in values if isinstance(name, str)}
    return {
        name: tensor.detach().float().numpy()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.numel()
    }


def _to_tensor(value: Any) -> torch.Tensor:
    """Return a tensor, or an array of floating-point numbers as one; of anything else an empty one."""
    if isinstance(value, np.ndarray | np.generic):  # h5py has scalars
        if value.dtype == BFLOAT16:
            return torch.from_numpy(np.asarray(value).view(np.int16)).view(torch.bfloat16)
        if value.dtype.kind == "f":
            return torch.as_tensor(value)
    return value if isinstance(value, torch.Tensor) else torch.empty(0)


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # that it is TorchScript
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "TorchScript" not in str(error):
            raise
        raise UserError(
            f"{path} is not a state_dict. Whole models are not read, because that would run code from the "
            "file: save only the tensors, with torch.save(model.state_dict(), FILE). The name of a file that "
            f"is not torch's ends in {', '.join(READERS)}"
        ) from None


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    check_room(2 * path.stat().st_size)
    return safetensors.torch.load(path.read_bytes())  # load_file opens no path that is not UTF-8


READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _read_safetensors,
    ".npz": np.load,
    ".keras": keras_files.read_keras,
    ".h5": keras_files.read_hdf5,
    ".hdf5": keras_files.read_hdf5,
}
