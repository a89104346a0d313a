"""A small corpus, short runs on it, and what the tests of the commands ask of them."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from support import assert_arrays, random_weights

from ptb_lm import train
from ptb_lm.common import cli
from ptb_lm.training.metrics import Epoch

# Sizes that differ from each other, so that a run of other sizes is told apart by any of them.
SIZES = ["--hidden-size", "6", "--num-steps", "5", "--batch-size", "4"]
# The columns that a row of metrics.jsonl must have.
COLUMNS = tuple(field.name for field in msgspec.structs.fields(Epoch) if field.required)
# The keys of result.json that neither the clock nor the machine changes.
UNTIMED_RESULT = (
    "test_perplexity",
    "valid_perplexity",
    "final_test_perplexity",
    "final_valid_perplexity",
    "best_epoch",
    "epochs",
)
# What result.json holds, of no run.
RESULT: Mapping[str, Any] = {
    "test_perplexity": 78.123456789,
    "valid_perplexity": 82.75,
    "final_test_perplexity": 79.5,
    "final_valid_perplexity": 83.5,
    "best_epoch": 1,
    "epochs": 2,
    "words_per_second": 1234.5,
    "parameters": 429,
    "engine": "an engine",
    "seconds": 3.5,
    "command": "python -m ptb_lm.train",
    "command_seconds": 4.5,
    "environment": {"cores": 2},
    "earlier_environments": [],
}
FLAGS = [*SIZES, "--epochs", "2", "--device", "cpu", "--recipe", "tutorial"]


class Terminal(io.StringIO):
    """A terminal that is written to."""

    def isatty(self) -> bool:
        return True


def write_corpus(folder: Path) -> Path:
    """Write some hundred words, drawn at random, `<unk>` among them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, lines in (("train", 90), ("valid", 25), ("test", 20)):
        words = rng.zipf(1.5, size=(lines, 6)).clip(max=25)
        (folder / f"{split}.txt").write_text(
            "".join(" ".join(f"w{word}" for word in line) + " <unk>\n" for line in words)
        )
    return folder


def arguments(data: Path, run: Path, *more: str) -> list[str]:
    """Return the arguments of a training run that ends within a second; later flags win."""
    return ["--data", str(data), "--run-dir", str(run), *FLAGS, *more]


def train_run(data: Path, run: Path, *more: str) -> Path:
    """Train a run to its end; return its folder."""
    assert train.main(arguments(data, run, *more)) == 0
    return run


def write_run(
    folder: Path, words: Sequence[str], *, weights: Mapping[str, np.ndarray] | None = None, **flag_values: Any
) -> Path:
    """Write a run that was not trained: its weights are random, biases too. Return its folder.

    Args:
        folder: Folder of the run.
        words: The vocabulary.
        weights: Others than the random ones.
        flag_values: Flags of a training run, by name.
    """
    from ptb_lm.data.vocabulary import Vocabulary
    from ptb_lm.training import run_flags
    from ptb_lm.training.run_directory import RunDirectory

    sizes = {"hidden_size": 7, "num_steps": 5, "batch_size": 3, "device": "cpu"}
    if "layer_sizes" in flag_values:
        del sizes["hidden_size"]
    run = run_flags.new_config({**sizes, **flag_values})
    vocabulary, directory = Vocabulary(words), RunDirectory(folder)
    weights = weights or random_weights(run.hyperparameters, len(words), seed=1)
    directory.create(run, vocabulary)
    directory.write_weights(weights, run, vocabulary, best={"epoch": 1, "valid_perplexity": 1.0})
    return folder


def result(run: Path) -> dict[str, Any]:
    """Return a run's result."""
    return without_checksum((run / "result.json").read_text())


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics, one an epoch."""
    return [without_checksum(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def change(path: Path, by: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of JSON as a person does it who knows how: its checksum goes."""
    content = without_checksum(path.read_text())
    by(content)
    path.write_text(json.dumps(content))


def without_checksum(text: str) -> dict[str, Any]:
    """Return an object of JSON without its checksum."""
    loaded: dict[str, Any] = json.loads(text)
    return {name: value for name, value in loaded.items() if name not in ("sha256", "crc32")}


def final_state(run: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a run's newest state."""
    from ptb_lm.training import tensors
    from ptb_lm.training.run_directory import RunDirectory

    return tensors.load(RunDirectory(run).state_path)[0]


def assert_equal_runs(run: Path, expected: Path) -> None:
    """Assert the same weights, state, metrics (but for the clock) and result, to the last bit."""
    from ptb_lm.training import tensors
    from ptb_lm.training.run_directory import RunDirectory

    state, expected_state = final_state(run), final_state(expected)
    assert_arrays(state, expected_state)
    best, expected_best = (tensors.load(RunDirectory(path).weights_path)[0] for path in (run, expected))
    assert_arrays(best, expected_best)
    assert untimed_rows(run) == untimed_rows(expected)
    for key in UNTIMED_RESULT:
        assert result(run)[key] == result(expected)[key]


def untimed_rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics without what the clock says."""
    return [
        {k: v for k, v in row.items() if k not in ("words_per_second", "seconds")} for row in metrics(run)
    ]


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by relative path, with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_command(command: ModuleType, *given: object) -> int:
    """Run a command as from the shell; return its exit status."""
    try:
        return int(command.main([str(argument) for argument in given]))
    except SystemExit as end:  # argparse's way
        return int(end.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], command: ModuleType, *given: object, status: int = 2) -> str:
    """Run a command that must refuse: one line on stderr, nothing on stdout. Return the line's sentence."""
    capsys.readouterr()
    assert run_command(command, *given) == status
    out, err = capsys.readouterr()
    assert out == ""
    return sentence(err, command)


def sentence(stderr: str, command: ModuleType) -> str:
    """Return the only sentence of a command's stderr."""
    name, _, said = stderr.partition(": ")
    assert f"{name} ".startswith(f"{command.PROG} "), stderr  # or a command below it
    assert said.endswith("\n")
    assert said.count("\n") == 1
    return said.rstrip("\n")


@contextlib.contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class ParsedError(Exception):
    """A command line was parsed to its end."""


def check_parses(command: ModuleType, given: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command line, and do nothing of it."""
    parse = cli.Parser.parse_args

    def parse_alone(parser: cli.Parser, *given: Any) -> None:
        parse(parser, *given)
        raise ParsedError

    monkeypatch.setattr(cli.Parser, "parse_args", parse_alone)
    with pytest.raises(ParsedError):
        command.main(given)
