"""A run directory: what its files must hold to be believed."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import runs
from support import assert_arrays

from ptb_lm.common.errors import UserError
from ptb_lm.common.json_fields import convert
from ptb_lm.data.preparation import Preparation
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import parameters
from ptb_lm.model.choice import MAX_SEED, Choice
from ptb_lm.model.presets import SMALL
from ptb_lm.model.ranks import Ranks
from ptb_lm.training import launch, tensors
from ptb_lm.training.run_config import InitFrom, RunConfig, Source
from ptb_lm.training.run_directory import NoEpochError, RunDirectory

RUN = RunConfig(
    preset="small",
    recipe="default",
    data="some/folder",
    choice=Choice.create(model="block", execution="compile", device="cpu", precision="fp64", seed=7),
    hyperparameters=SMALL.replace(hidden_size=3, lr_decay=1 / 1.15),
)
VOCABULARY = Vocabulary(["<eos>", "a", "ü"])
IDENTITY = {"config": RUN.to_json(), "vocabulary_sha256": VOCABULARY.sha256}

T = TypeVar("T")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run whose first epoch is done."""
    created = RunDirectory(tmp_path / "run")
    created.create(RUN, VOCABULARY)
    weights = parameters.draw_initial(RUN.hyperparameters, len(VOCABULARY), seed=7)
    tensors.save(created.weights_path, weights, IDENTITY)
    return created


def test_written_files_come_back(directory: RunDirectory) -> None:
    assert directory.read_config() == RUN
    assert directory.read_vocabulary().words == VOCABULARY.words
    expected = parameters.draw_initial(RUN.hyperparameters, len(VOCABULARY), seed=7)
    weights = directory.read_weights(RUN, VOCABULARY)
    assert_arrays(weights, expected)


def test_creating_removes_what_an_older_run_left(directory: RunDirectory) -> None:
    for stale in (directory.result_path, directory.metrics_path, directory.state_path):
        stale.write_text("old")
    for number in range(2):
        (directory.path / f"events.out.tfevents.{number}.host.1").write_text("old")
    notes = directory.path / "notes.txt"
    notes.write_text("mine")
    directory.create(RUN, VOCABULARY)
    assert runs.files(directory.path).keys() == {"config.json", "vocabulary.txt", "notes.txt"}


def test_a_run_that_is_removed_in_part_cannot_be_resumed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.state_path.write_text("old")
    unlink, removed = Path.unlink, list[Path]()

    def fail_after_the_first(path: Path, **named: bool) -> None:
        if path.suffix != ".tmp" and removed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        removed.append(path)
        unlink(path, **named)

    monkeypatch.setattr(Path, "unlink", fail_after_the_first)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        directory.create(RUN, VOCABULARY)
    assert directory.weights_path.exists()
    assert not directory.state_path.exists()


def changed_config(directory: RunDirectory, **changes: Any) -> None:
    """Change keys of config.json, or remove those that become None; `Config`'s are found by their name."""
    values = runs.without_checksum(directory.config_path.read_text())
    for name, value in changes.items():
        table = values["hyperparameters"] if name in values["hyperparameters"] else values
        table[name] = value
        if value is None:
            del table[name]
    directory.config_path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"hyperparameters": {"colour": 1}}, "no hyper-parameter 'colour'"),
        ({"hyperparameters": 3}, "hyperparameters cannot be 3: "),
        ({"model": None}, "'model' is missing"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"seed": "7"}, "seed cannot be '7'"),
        ({"seed": True}, "seed cannot be True"),
        ({"seed": -1}, f"at most {MAX_SEED}, not -1"),
        ({"seed": MAX_SEED + 1}, f"at most {MAX_SEED}, not {MAX_SEED + 1}"),
        ({"data": 3}, "data cannot be 3"),
        ({"hidden_size": 0}, "--hidden-size"),
        ({"hidden_size": 3.5}, "whole number"),
        ({"keep_prob": "1"}, "--keep-prob"),
        ({"tie_weights": 1}, "--tie-weights must be true or false"),
        ({"recipe": 1}, "recipe cannot be 1"),
        ({"source": []}, "source cannot be []: "),
        ({"source": {"path": "x"}}, "source: the key 'sha256'"),
        ({"source": {"path": "x", "colour": 1}}, "source: unknown key 'colour'"),
        ({"source": {"path": "x", "sha256": "y"}}, "source: sha256 cannot be 'y': "),
        ({"preparation": {"colour": 1}}, "a preparation must have the keys"),
        ({"framework": "theano"}, "unknown framework 'theano'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"execution": ""}, "unknown execution ''"),
        ({"precision": "auto"}, "unknown precision 'auto'"),
        ({"model": "cudnn"}, "torch has no cudnn with --execution compile"),
        ({"learning_rate": float("nan")}, "--learning-rate"),
    ],
)
def test_a_changed_configuration_is_refused(
    changes: dict[str, Any], key: str, directory: RunDirectory
) -> None:
    changed_config(directory, **changes)
    with pytest.raises(UserError, match=f"^{directory.config_path}.*{re.escape(key)}"):
        directory.read_config()


@pytest.mark.parametrize(
    ("content", "key"),
    [
        *((text, "configuration") for text in (b"[]", b"3", b'"text"', b"null")),
        *((text, "JSON") for text in (b"", b"{", b"{'a': 1}", b"\xff\xfe", bytes(100))),
    ],
)
def test_a_configuration_that_is_none_is_refused(content: bytes, key: str, directory: RunDirectory) -> None:
    directory.config_path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{directory.config_path} .*{key}"):
        directory.read_config()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("missing", "missing does not exist"),
        (".", r"config\.json is missing"),
        ("runs", "holds runs: .*seed-1$"),
        ("file", "file is not a run"),
    ],
)
def test_a_folder_that_is_no_run_directory_is_named(name: str, key: str, tmp_path: Path) -> None:
    for run in ("seed-2", "seed-1"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.json").write_text("{}")
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match=key):
        RunDirectory(tmp_path / name).read_config()


@pytest.mark.parametrize(
    ("changes", "metadata", "problem"),
    [
        # As many words, so that the shapes are no help.
        ({}, {**IDENTITY, "vocabulary_sha256": Vocabulary(["<eos>", "ü", "a"]).sha256}, "another vocabulary"),
        ({}, {}, "another vocabulary"),
        ({}, {"vocabulary_sha256": VOCABULARY.sha256}, "configuration"),
        # As a header says whose float32 was turned into float64, of a file without a hash.
        ({"softmax.bias": np.zeros(3)}, IDENTITY, "'softmax.bias' .*float64, not float32;"),
        *(
            (changes, IDENTITY, f"does not fit .*config\\.json: .* {problem}")
            for changes, problem in (
                ({"softmax.bias": np.zeros(4, np.float32)}, r"'softmax.bias' .*\(4,\), not \(3,\)"),
                ({"embedding": np.zeros(9, np.float32)}, r"'embedding' .*\(9,\), not \(3, 3\)"),
                ({"lstm.2.bias": np.zeros(12, np.float32)}, "'lstm.2.bias' does not belong"),
                ({"lstm.1.kernel": None}, "'lstm.1.kernel' is missing"),
            )
        ),
    ],
)
def test_weights_of_another_model_or_text_are_refused(
    changes: dict[str, Any], metadata: dict[str, Any], problem: str, directory: RunDirectory
) -> None:
    weights = directory.read_weights(RUN, VOCABULARY) | changes
    kept = {name: array for name, array in weights.items() if array is not None}
    tensors.save(directory.weights_path, kept, metadata)
    with pytest.raises(UserError, match=rf"weights\.safetensors .*{problem}"):
        directory.read_weights(RUN, VOCABULARY)


def test_a_configuration_that_makes_other_words_of_text_is_refused(directory: RunDirectory) -> None:
    other = dataclasses.replace(RUN, preparation=Preparation(lowercase=True))
    with pytest.raises(UserError, match="differ in how the text was prepared"):
        directory.read_weights(other, VOCABULARY)


def test_a_run_without_weights_says_why(directory: RunDirectory) -> None:
    """Whether it has trained an epoch or not: the weights of one may not be saved yet."""
    directory.weights_path.unlink()
    for rows in ([], [epoch(1)]):
        directory.write_metrics(rows)
        with pytest.raises(UserError, match=r"safetensors is missing; .*restore it, or,"):
            directory.read_weights(RUN, VOCABULARY)


def epoch(number: int, **more: float) -> dict[str, float]:
    """A row of metrics.jsonl."""
    return {**dict.fromkeys(runs.COLUMNS, 1e-300), "epoch": number, **more}


def test_the_metrics_come_back_and_are_written_whole(directory: RunDirectory) -> None:
    rows = [epoch(1, gradient_norm=0.1), epoch(2)]
    directory.write_metrics(rows)
    assert directory.read_metrics() == rows
    directory.write_metrics(rows[:1])
    assert [runs.without_checksum(line) for line in directory.metrics_path.read_text().splitlines()] == rows[
        :1
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no epochs"),
        (b"\n", ", line 1 is not"),
        (json.dumps(epoch(1)).encode() + b"\n{", ", line 2 is not"),
        (b"[" * 100_000, ", line 1 is not"),
        (b"\xff\xfe", ", line 1 is not"),
        *((text, ", line 1: .*JSON object") for text in (b"[]", b"1", b"null")),
        (b'{"epoch": 1}', ", line 1: .*'learning_rate'"),
        *(
            (
                json.dumps({**epoch(1), key: value}).encode(),
                f", line 1: .*{key} cannot be {re.escape(repr(value))}: ",
            )
            for key, value in (
                ("seconds", "1"),
                ("seconds", float("nan")),
                ("seconds", -1),
                ("epoch", True),
                ("valid_perplexity", 0),
                ("valid_perplexity", float("inf")),
                ("gradient_norm", []),
            )
        ),
    ],
)
def test_metrics_that_are_none_are_refused(content: bytes, problem: str, directory: RunDirectory) -> None:
    directory.metrics_path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{directory.metrics_path}.*{problem}"):
        directory.read_metrics()


def test_missing_metrics_are_named(directory: RunDirectory) -> None:
    with pytest.raises(UserError, match=rf"^{directory.metrics_path} is missing; --resume") as caught:
        directory.read_metrics()
    assert not isinstance(caught.value, NoEpochError)  # there are weights of an epoch
    directory.path.rename(directory.path.with_name("elsewhere"))
    with pytest.raises(UserError, match=rf"^the run directory {directory.path} does not exist$"):
        directory.read_metrics()


def test_a_run_that_has_ended_is_not_one_without_an_epoch(directory: RunDirectory) -> None:
    directory.write_result(runs.RESULT)
    directory.metrics_path.write_text("")
    with pytest.raises(UserError, match=rf"^{directory.metrics_path} ends before epoch 2") as caught:
        directory.read_metrics()
    assert not isinstance(caught.value, NoEpochError)


def test_a_run_without_an_epoch_is_told_apart(directory: RunDirectory) -> None:
    """It has begun; or it never did."""
    for prepare in (lambda: directory.write_metrics([]), lambda: directory.create(RUN, VOCABULARY)):
        prepare()
        with pytest.raises(NoEpochError, match=rf"^{directory.metrics_path} (holds no epochs|is missing)"):
            directory.read_metrics()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "'test_perplexity' is missing"),
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        (json.dumps({**runs.RESULT, "test_perplexity": 10**400}), "test_perplexity cannot be 1000"),
        (json.dumps({**runs.RESULT, "environment": {"cores": "2"}}), "cores cannot be '2': "),
        (json.dumps({**runs.RESULT, "earlier_environments": [{"started": 3}]}), "earlier_environments"),
        (json.dumps({**runs.RESULT, "hyperparameters": {"colour": 3}}), "colour"),
        (json.dumps({**runs.RESULT, "hyperparameters": {"epochs": 0}}), "--epochs"),
        (
            json.dumps({**runs.RESULT, "earlier_environments": ["0"]}),
            "earlier_environments cannot be ['0']: ",
        ),
        *(
            (
                json.dumps({**runs.RESULT, key: value}),
                f"{key} cannot be {value!r}: ",
            )
            for key, value in (
                ("test_perplexity", "1"),
                ("test_perplexity", float("nan")),
                ("epochs", 2.5),
                ("epochs", 2**60),
                ("environment", []),
                ("earlier_environments", {}),
                ("command", 3),
                ("seconds", "long"),
            )
        ),
    ],
)
def test_a_result_that_is_none_is_refused(content: str, problem: str, directory: RunDirectory) -> None:
    directory.result_path.write_text(content)
    with pytest.raises(UserError) as caught:
        directory.read_result()
    assert str(caught.value).startswith(f"{directory.result_path} is not")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("model", "basic"), ("precision", "fp32"), ("num_steps", 21), ("seed", 8)]
)
def test_a_configuration_that_is_not_that_of_the_weights_is_refused(
    name: str, value: object, directory: RunDirectory
) -> None:
    """Each is a value that the flags would take."""
    weights = parameters.draw_initial(RUN.hyperparameters, len(VOCABULARY), seed=7)
    directory.write_weights(weights, RUN, VOCABULARY, best={"epoch": 1, "valid_perplexity": 2.0})
    assert directory.read_weights(directory.read_config(), VOCABULARY).keys() == weights.keys()
    changed_config(
        directory, data="elsewhere", device="auto", keep_prob=0.3
    )  # a resumed run may change these
    assert directory.read_weights(directory.read_config(), VOCABULARY).keys() == weights.keys()
    changed_config(directory, **{name: value})
    problem = rf"config\.json and .*weights\.safetensors differ: {name} .+ there, {value!r} here$"
    with pytest.raises(UserError, match=problem):
        directory.read_weights(directory.read_config(), VOCABULARY)


@pytest.mark.parametrize(
    "best", [None, [], {}, {"epoch": "1", "valid_perplexity": 2.0}, {"epoch": 1, "valid_perplexity": None}]
)
def test_weights_that_do_not_say_of_which_epoch_they_are_are_refused(
    best: Any, directory: RunDirectory
) -> None:
    directory.write_weights(directory.read_weights(RUN, VOCABULARY), RUN, VOCABULARY, best=best)
    with pytest.raises(UserError, match=r"weights\.safetensors .*epoch"):
        directory.read_best(RUN, VOCABULARY)


def test_null_counts_as_missing(directory: RunDirectory) -> None:
    """Also in what other commands read without a check of their own."""
    nulls = {"device": None, "processor": None, "threads": None}
    directory.write_result(
        {
            **runs.RESULT,
            "environment": {"cores": 2, **nulls},
            "earlier_environments": [{"cores": 3, **nulls}],
            "hyperparameters": None,
            "best_possible_perplexity": None,
            "of": None,
        }
    )
    sessions = {"environment": {"cores": 2}, "earlier_environments": [{"cores": 3}]}
    assert directory.read_result() == {**runs.RESULT, **sessions}
    row = {**epoch(1), "unaveraged_valid_perplexity": None, "of": None}
    directory.metrics_path.write_text(json.dumps(row))
    assert directory.read_metrics() == [epoch(1)]


def test_the_result_comes_back_once_the_run_has_ended_until_it_goes_on(directory: RunDirectory) -> None:
    assert directory.read_result() is None
    directory.write_result({**runs.RESULT, "of": "a later version"})
    assert directory.read_result() == {**runs.RESULT, "of": "a later version"}
    weights = directory.read_weights(RUN, VOCABULARY)
    directory.write_weights(weights, RUN, VOCABULARY, best={"epoch": 2, "valid_perplexity": 1.0})
    assert directory.read_result() is None


@pytest.mark.parametrize("kind", ["socket", "device"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", RunDirectory.read_config),
        ("metrics.jsonl", RunDirectory.read_metrics),
        ("result.json", RunDirectory.read_result),
        ("vocabulary.txt", RunDirectory.read_vocabulary),
        ("weights.safetensors", lambda directory: directory.read_weights(RUN, VOCABULARY)),
        ("state/training.safetensors", RunDirectory.read_state),
    ],
)
def test_what_is_no_file_is_not_read(
    name: str, read: Callable[[RunDirectory], object], kind: str, directory: RunDirectory
) -> None:
    """A socket or a device here; a pipe, too, but without the check a test of it would not end."""
    path = directory.path / name
    path.unlink(missing_ok=True)
    if kind == "socket":
        os.mknod(path, stat.S_IFSOCK)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(UserError, match=rf"^{path} is a pipe or a device"):
        read(directory)


@pytest.mark.parametrize("fate", ["removed", "moved", "moved and replaced", "replaced by a file"])
def test_a_process_uses_no_other_folder_than_the_one_it_locked(fate: str, directory: RunDirectory) -> None:
    """Else it would mix its files with those of the next run there."""
    weights, best = directory.read_weights(RUN, VOCABULARY), {"epoch": 1, "valid_perplexity": 2.0}
    steps = (
        lambda: directory.create(RUN, VOCABULARY),
        lambda: directory.write_config(RUN),
        lambda: directory.write_metrics([epoch(1)]),
        lambda: directory.write_weights(weights, RUN, VOCABULARY, best=best),
        lambda: directory.write_result(runs.RESULT),
        lambda: directory.read_weights(RUN, VOCABULARY),
        directory.remove_leftovers,
    )
    with directory.lock():
        for step in steps:
            step()
        if fate == "removed":
            shutil.rmtree(directory.path)
        else:
            directory.path.rename(directory.path.with_name("elsewhere"))
        if fate == "replaced by a file":
            directory.path.write_text("a file")
        elif fate == "moved and replaced":
            other = RunDirectory(directory.path)
            with other.lock():
                other.create(dataclasses.replace(RUN, data="another/folder"), VOCABULARY)
                (other.path / ".config.json.abc.tmp").write_text("half")
        before = runs.files(directory.path.parent)
        for step in steps:
            with pytest.raises(UserError, match=rf"^the run directory {directory.path} was .*moved"):
                step()
        assert runs.files(directory.path.parent) == before


def test_a_folder_that_is_lost_in_the_middle_of_a_save_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def move_and_replace(path: Path, target: Path) -> Path:
        directory.path.rename(directory.path.with_name("elsewhere"))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", move_and_replace)
    with directory.lock(), pytest.raises(UserError, match=f"^the run directory {directory.path} was "):
        directory.write_result(runs.RESULT)


class OneOfTwo(Ranks):
    """A rank of two whose work is done one after the other; what the first has sent waits for the second."""

    size = 2

    def __init__(self, rank: int, sent: deque[Any]) -> None:
        super().__init__()
        self.rank, self.sent = rank, sent

    def broadcast(self, outcome: T) -> T:
        if not self.is_first:
            received: T = self.sent.popleft()
            return received
        self.sent.append(outcome)
        return outcome

    def gather(self, value: T) -> list[T]:
        return [value] * self.size


def test_ranks_agree_that_a_run_had_saved_nothing(tmp_path: Path) -> None:
    folder, sent = tmp_path / "run", deque[Any]()
    RunDirectory(folder).create(RUN, VOCABULARY)
    for rank in range(2):
        with pytest.raises(UserError, match="had saved nothing"):
            launch.parse_request({"resume": folder}, "", OneOfTwo(rank, sent))
    assert not sent


def test_a_locked_folder_may_get_another_name_beside_its_own(directory: RunDirectory) -> None:
    with directory.lock():
        elsewhere = directory.path.rename(directory.path.with_name("elsewhere"))
        directory.path.symlink_to(elsewhere)
        directory.write_result(runs.RESULT)
    assert RunDirectory(elsewhere).read_result() == runs.RESULT


# The origins of a text and of initial weights.

HASH = hashlib.sha256(b"a text").hexdigest()
SOURCE = Source(path="/text", sha256=HASH)
START = InitFrom(run="/run", weights_sha256=HASH, test_perplexity=None, new_words=2)


@pytest.mark.parametrize("record", [SOURCE, START])
def test_a_record_is_read_as_it_was_written(record: Source | InitFrom) -> None:
    assert convert(msgspec.to_builtins(record), type(record)) == record


@pytest.mark.parametrize("wrong", ["", "basic", HASH[:-1], HASH + "0", HASH.upper(), "g" + HASH[1:], 1])
@pytest.mark.parametrize(("record", "name"), [(SOURCE, "sha256"), (START, "weights_sha256")])
def test_a_digest_that_is_no_sha256_is_refused(record: Source | InitFrom, name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} cannot be {wrong!r}: "):
        convert({**msgspec.to_builtins(record), name: wrong}, type(record))
