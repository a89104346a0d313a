"""The command that trains: what it refuses, and what a failure leaves behind."""

import dataclasses
import errno
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from rank_program import stopped_at_question

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs as comparison_runs
from ptb_lm.data.corpus import load
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import frameworks, rules
from ptb_lm.model.cells import CELLS
from ptb_lm.model.choice import MAX_SEED, Choice
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.hyperparameter import Hyperparameter
from ptb_lm.model.presets import PRESETS, RECIPES
from ptb_lm.torch_backend import runtime
from ptb_lm.training import display, run_data, run_flags, tensors
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_folders import DEMO
from ptb_lm.training.trainer import Trainer

pytestmark = pytest.mark.slow

GROUPS = ["data", "model", "training", "run", "speed"]  # of the flags
AWD = ["--config", "awd", "--recipe", "default"]


@pytest.fixture
def run(plain_run: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return shutil.copytree(plain_run, tmp_path / "run")


@pytest.fixture
def refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Start a new run that must be refused; return the sentence. No run directory may come of it."""

    def refuse(*more: str, data: Path = data, status: int = 2) -> str:
        problem = runs.refusal(capsys, train, *runs.arguments(data, tmp_path / "new", *more), status=status)
        assert not (tmp_path / "new").exists()
        return problem

    return refuse


@pytest.fixture
def refused_resume(run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Resume a run, which must be refused; return the sentence. The run must stay as it was."""

    def refuse(*more: object) -> str:
        before = runs.files(run)
        problem = runs.refusal(capsys, train, "--resume", run, *more)
        assert runs.files(run) == before
        return problem

    return refuse


# Names and values.


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        *(
            ([flag, "nonsense"], f"{flag}: invalid choice: 'nonsense'")
            for flag in ("--model", "--config", "--recipe", "--framework", "--precision", "--device")
        ),
        # A bound of each kind; tests/model/test_config.py has those of every hyper-parameter.
        (["--epochs", "0"], "--epochs: "),
        (["--decay-after", "-1"], "--decay-after: "),
        (["--keep-prob", "0"], "--keep-prob: "),
        (["--keep-prob", "1.5"], "at most 1, not 1.5"),
        (["--keep-prob", "nan"], "finite number, not nan"),
        (["--learning-rate", "-inf"], "finite number, not -inf"),
        (["--max-grad-norm", "1e99"], "at most 3.4e+38"),
        (["--hidden-size", "1" + "0" * 400], "at most 2147483647"),
        (["--seed", "-1"], "--seed: "),
        (["--seed", "9" * 20], f"at most {MAX_SEED}"),
        (["--epochs", "1.5"], "--epochs: "),
        (["--hidden-size", "many"], "--hidden-size: "),
        (["--lr-decay", "half"], "--lr-decay: "),
        (["--tie-weights", "--embedding-size", "5"], "--embedding-size 6, not 5"),
        (["--mogrifier-rounds", "3"], "--mogrifier-rounds would change nothing with --cell lstm"),
        (["--cell", "gru", "--mogrifier-rank", "9"], "--mogrifier-rank would change nothing with --cell gru"),
        (
            ["--cell", "mogrifier_lstm", "--mogrifier-rounds", "0", "--mogrifier-rank", "3"],
            "--mogrifier-rank would change nothing with --mogrifier-rounds 0",
        ),
        ([*AWD, "--decay-after", "9"], "--decay-after would change nothing with --lr-decay 1"),
        (
            ["--num-steps", "1", "--slowness-penalty", "1"],
            "--slowness-penalty would change nothing with --num-steps 1",
        ),
        (
            ["--num-steps", "1", "--keep-prob", "0.5", "--variational"],
            "--variational would change nothing with --num-steps 1",
        ),
        (["--embedding-keep-prob", "0.5", "--variational"], "--variational would change nothing without"),
        ([*AWD, "--average-epochs", "0"], "change nothing with --average-after-stall 5"),
        (["--recipe", "default", "--average-after-stall", "0"], "change nothing with --average-epochs 1"),
        (
            [
                "--cell",
                "mogrifier_lstm",
                "--embedding-size",
                "9",
                "--hidden-size",
                "4",
                "--mogrifier-rank",
                "5",
            ],
            "--mogrifier-rank 5 is above 4",
        ),
        (
            ["--schedule", "cosine", "--lr-decay", "0.9"],
            "--lr-decay would change nothing with --schedule cosine",
        ),
        ([*AWD, "--keep-prob", "0.5"], "--keep-prob would change nothing"),
        (
            ["--num-layers", "1", "--between-keep-prob", "0.5"],
            "--between-keep-prob would change nothing in a single layer",
        ),
        (
            [
                *("--num-layers", "1", "--keep-prob", "0.5"),
                *("--input-keep-prob", "0.6", "--output-keep-prob", "0.6"),
            ],
            "--keep-prob would change nothing with --input-keep-prob, --output-keep-prob",
        ),
        (["--vary-num-steps", "--num-steps", "9"], "--num-steps at least 10, not 9"),
        (["--optimizer", "adam"], "--optimizer adam needs a --learning-rate"),
        (["--average-epochs", "1", "--average-after-stall", "3"], "-after-stall, not both"),
        (["--lr", "0.1"], "--learning-rate"),
        (["--use_fp16"], "--precision fp16"),
        (["--optimizer", "asgd"], "--optimizer: invalid choice: 'asgd'"),
        (["--wdecay", "1e-6"], "--weight-decay"),
        (["--model", "small"], "--config small"),
        (["--model", "GRU"], "--cell gru"),
        (["--epoch", "1"], "did you mean --epochs?"),
        (["--hiden-size", "300"], "did you mean --hidden-size?"),
        (["more"], "arguments: more"),
        (["--data", "/missing"], "--data /missing: "),
        (["--num-layers", "1000000", "--hidden-size", "16"], "--num-layers"),
        (
            ["--framework", "tensorflow", "--model", "persistent"],
            "choose from basic, block, block_fused, cudnn",
        ),
        (["--batch-size", "1000"], "needs at least 2000"),
        (["--num-steps", "1000"], "need at least 4004"),
    ],
)
def test_a_new_run_is_refused(flags: list[str], key: str, refused: Callable[..., str]) -> None:
    assert key in refused(*flags)


@pytest.mark.parametrize(
    ("flag_values", "averages"),
    [
        ({"config": "medium", "average_after_stall": 5}, (0, 5)),
        ({"config": "awd", "average_epochs": 0.5}, (0.5, 0)),
        ({"config": "awd", "average_epochs": 0.0, "average_after_stall": 5}, (0, 5)),
        ({"config": "awd", "average_after_stall": 0}, (0, 0)),
    ],
    ids=str,
)
def test_an_average_that_is_given_takes_the_place_of_the_preset_s(
    flag_values: dict[str, Any], averages: tuple[float, int]
) -> None:
    config = run_flags.new_config(flag_values).hyperparameters
    assert (config.average_epochs, config.average_after_stall) == averages


@pytest.mark.parametrize("seeds", [[], ["--seeds", "1", "2"]])
@pytest.mark.parametrize("split", [None, "valid.txt"])
def test_a_missing_folder_or_split_is_told_before_the_framework_is_imported(
    split: str | None,
    seeds: list[str],
    refused: Callable[..., str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def importing(choice: Choice, name: str) -> None:
        raise AssertionError(name)

    folder = tmp_path / "data"
    if split:
        (shutil.copytree(data, folder) / split).unlink()
    monkeypatch.setattr(Choice, "import_function", importing)
    problem = refused(*seeds, data=folder)
    assert str(folder) in problem
    assert (split or "--data").partition(".")[0] in problem


def test_a_gpu_that_is_not_there_is_refused(refused: Callable[..., str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    assert refused("--device", "cuda").startswith("--device cuda: torch ")


@pytest.mark.parametrize("num_steps", ["35", "100"])
def test_even_the_shortest_epoch_has_an_average(num_steps: str, data: Path, tmp_path: Path) -> None:
    """Five steps, and one, whose only update makes the average the weights."""
    flags = ["--average-epochs", "1", "--num-steps", num_steps, "--epochs", "1"]
    run = runs.train_run(data, tmp_path / "run", *flags)
    saved = RunDirectory(run).read_state()
    assert saved.averages.keys() == saved.weights.keys()
    (row,) = runs.metrics(run)
    assert row["valid_perplexity"] == row["unaveraged_valid_perplexity"]
    assert row["words_per_second"] > 0
    assert runs.result(run)["words_per_second"] > 0


# Data.


@pytest.fixture
def own_data(data: Path, tmp_path: Path) -> Path:
    """A corpus to damage."""
    return shutil.copytree(data, tmp_path / "data")


@pytest.mark.parametrize(
    ("split", "content", "key"),
    [
        *(
            (split, content, key)
            for split in ("train", "valid", "test")
            for content, key in (
                (None, f"lacks the {split} split"),
                (b"", f"{split}.txt is empty"),
                (b"w1 w2\nw1 \x00 w2\n", f"{split}.txt, line 2: byte 0x00"),
                (b"w1\n\nw1 \xc3(\n", f"{split}.txt, line 3: byte 0xc3"),
                (b"w1\nw1 \xc3", f"{split}.txt, line 2: byte 0xc3"),  # cut within a character
            )
        ),
        (
            "train",
            b"w1 w2 <unk>\n" * 5 + b"w1 w2\n",
            "has 23 tokens",
        ),
        ("valid", b"w1 w2 w3 w1 w2 w3\n", "valid split has 7"),
        ("test", b"\n", "test split has 1"),
    ],
)
def test_a_split_that_is_of_no_use_is_refused(
    split: str, content: bytes | None, key: str, own_data: Path, refused: Callable[..., str]
) -> None:
    path = own_data / f"{split}.txt"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert key in refused(data=own_data)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_an_unknown_word_without_unk_is_refused(
    split: str, own_data: Path, refused: Callable[..., str]
) -> None:
    for path in own_data.iterdir():
        path.write_text(re.sub(r"<unk>|w\d+", "w0", path.read_text()))
    path = own_data / f"{split}.txt"
    path.write_text("w0\n\nw0 zebra w0\n" + path.read_text())
    assert f"{path}, line 3: the word 'zebra'" in refused(data=own_data)


def test_a_train_split_of_one_window_trains_in_an_empty_folder_and_goes_on(
    own_data: Path, tmp_path: Path
) -> None:
    (own_data / "train.txt").write_text("w1 w2 <unk>\n" * 6)
    (tmp_path / "empty").mkdir()
    expected = runs.train_run(own_data, tmp_path / "empty")
    stopped = tmp_path / "stopped"
    with stopped_at_question(1):  # in the first epoch's validation
        assert train.main(runs.arguments(own_data, stopped)) == 143
    assert RunDirectory(stopped).read_state().progress.step == 1
    assert train.main(["--resume", str(stopped)]) == 0
    runs.assert_equal_runs(stopped, expected)


# The run directory.


def leave_alone(run: Path) -> None:
    pass


def put_something_else(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()
    for name in ("config.json", "vocabulary.txt", "metrics.jsonl", ".secret.tmp"):
        (run / name).write_text("mine")


def put_a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.write_text("mine")


def put_a_file_above(run: Path) -> None:
    put_a_file(run.parent)


def edit_the_seed(run: Path) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))


@pytest.mark.parametrize(
    ("prepare", "flags", "key"),
    [
        (leave_alone, [], "--overwrite"),
        (put_something_else, [], "another --run-dir"),
        (put_something_else, ["--overwrite"], "another --run-dir"),
        (edit_the_seed, [], "another --run-dir"),
        (edit_the_seed, ["--overwrite"], "another --run-dir"),
        (put_a_file, [], "is a file"),
        (put_a_file, ["--overwrite"], "is a file"),
        (put_a_file_above, [], "Not a directory"),
        # Another mistake.
        (leave_alone, ["--overwrite", "--batch-size", "1000"], "tokens"),
        (leave_alone, ["--overwrite", "--model", "nonsense"], "nonsense"),
        (leave_alone, ["--overwrite", "--data", "/missing"], "/missing"),
    ],
)
def test_a_new_run_leaves_existing_files_alone(
    prepare: Callable[[Path], None],
    flags: list[str],
    key: str,
    plain_run: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = shutil.copytree(plain_run, tmp_path / "mine" / "run")
    prepare(run)
    before = runs.files(tmp_path)
    problem = runs.refusal(capsys, train, *runs.arguments(data, run, *flags))
    assert key in problem
    assert runs.files(tmp_path) == before


def test_two_processes_do_not_work_in_one_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When the other one has ended, or was killed as it wrote, the run goes on."""
    for name in (".metrics.jsonl.abc.tmp", "state/.training.safetensors.abc.tmp"):
        (run / name).write_text("half")
    before = runs.files(run)
    with RunDirectory(run).lock():
        problem = runs.refusal(capsys, train, "--resume", run, "--epochs", "3")
    assert str(run) in problem
    assert runs.files(run) == before
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    assert "epoch 3, step 1\n" in capsys.readouterr().out
    assert not list(run.rglob("*.tmp"))


def test_a_finished_run_is_reported_and_not_done_again(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the run's own flags, too. Metrics that are missing, cut, too few or too many are written again."""
    before = runs.files(run)
    metrics, path = before["metrics.jsonl"], run / "metrics.jsonl"
    own = [*runs.FLAGS, "--seed", "1", "--model", "cudnn", "--config", "small", "--data", str(data)]
    lines = metrics.splitlines(keepends=True)
    extra = {**json.loads(lines[-1]), "epoch": len(lines) + 1}
    extra.pop("crc32")
    too_many = metrics + json.dumps(extra).encode() + b"\n"
    for flags, broken in (([], b""), (own, b""), ([], metrics[:-30]), ([], lines[0]), ([], too_many)):
        (run / ".config.json.abc.tmp").write_text("half")
        path.unlink()
        if broken:
            path.write_bytes(broken)
        capsys.readouterr()
        assert train.main(["--resume", str(run), *flags]) == 0
        printed = capsys.readouterr().out
        assert "is finished" in printed
        assert f"test perplexity {runs.result(run)['test_perplexity']:.2f}" in printed
        assert runs.files(run) == before


def test_a_finished_run_learns_where_its_text_lies_and_is_not_trained_otherwise(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor computed on another device, which it then does not record."""
    moved = shutil.copytree(data, tmp_path / "moved")
    runs.change(run / "config.json", lambda config: config.update(device="auto"))
    assert train.main(["--resume", str(run), "--data", str(moved), "--device", "cpu"]) == 0
    config = RunDirectory(run).read_config()
    assert (config.data, config.choice.device) == (str(moved), "auto")
    for without in ("", "result.json"):  # as of a test that was interrupted
        if without:
            (run / without).unlink()
        before = runs.files(run)
        problem = runs.refusal(capsys, train, "--resume", str(run), "--learning-rate", "0.5")
        assert "--epochs" in problem
    assert runs.files(run) == before


def test_a_run_that_went_on_and_was_not_tested_again_is_not_finished(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later epoch was better, so that the result of its earlier end is still there."""
    more = ("--epochs", "3", "--learning-rate", "1e-30")
    expected = shutil.copytree(run, tmp_path / "expected")
    assert train.main(["--resume", str(expected), *more]) == 0

    def interrupt(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_test", interrupt)
        assert train.main(["--resume", str(run), *more]) == 130
    assert runs.result(run)["epochs"] == 2
    assert train.main(["--resume", str(run)]) == 0
    assert runs.result(run)["epochs"] == 3
    runs.assert_equal_runs(run, expected)


def test_overwrite_leaves_nothing_of_the_older_run(run: Path, data: Path, tmp_path: Path) -> None:
    sizes = ("--hidden-size", "5", "--epochs", "1")
    fresh = runs.files(runs.train_run(data, tmp_path / "fresh", *sizes))
    (run / ".metrics.jsonl.abc.tmp").write_text("half")
    older = runs.files(run)
    over = runs.files(runs.train_run(data, run, *sizes, "--overwrite"))
    assert not {name for name in over if name.startswith("events")} & older.keys()
    assert len(over) == len(fresh)
    for name in ("config.json", "vocabulary.txt"):
        assert over[name] == fresh[name]
    assert over["metrics.jsonl"].count(b"\n") == 1
    assert runs.result(run)["test_perplexity"] == runs.result(tmp_path / "fresh")["test_perplexity"]


def test_a_parent_folder_without_permission_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # Not in tmp_path: root gives up its rights here, and with them the way into its own folders.
    with tempfile.TemporaryDirectory() as name:
        root = os.geteuid() == 0
        if root and not all(above.stat().st_mode & stat.S_IXOTH for above in Path(name).parents):
            pytest.skip("others may not enter the folder of temporary files")
        Path(name).chmod(0o755)
        umask = os.umask(0o022)  # or root's own may let nobody else read the text
        data, parent = runs.write_corpus(Path(name) / "data"), Path(name) / "parent"
        parent.mkdir(mode=0o555)
        os.umask(umask)
        runs.train_run(data, Path(name) / "run")  # imports all that root alone may be able to read
        capsys.readouterr()
        if root:
            os.seteuid(65534)
        try:
            problem = runs.refusal(capsys, train, *runs.arguments(data, parent / "run"))
        finally:
            if root:
                os.seteuid(0)
        assert problem == f"{parent / 'run'}: Permission denied"
        assert list(parent.iterdir()) == []


# Resuming.


def edit_config(old: str, new: str) -> Callable[[Path], None]:
    """Return a change of a run's configuration, which leaves it without a checksum."""

    def edit(run: Path) -> None:
        text = json.dumps(runs.without_checksum((run / "config.json").read_text()), indent=2)
        assert text.count(old) == 1
        (run / "config.json").write_text(text.replace(old, new))

    return edit


def truncate_state(kept: int) -> Callable[[Path], None]:
    """Return a change that cuts a run's state off."""

    def truncate(run: Path) -> None:
        state = RunDirectory(run).state_path
        state.write_bytes(state.read_bytes()[:kept])

    return truncate


def replace_generator(generator: np.ndarray | None) -> Callable[[Path], None]:
    """Return a change of the random stream in a run's state."""

    def change(run: Path) -> None:
        arrays, metadata = tensors.load(RunDirectory(run).state_path)
        del arrays["training.torch.generator"]
        if generator is not None:
            arrays["training.torch.generator"] = generator
        tensors.save(RunDirectory(run).state_path, arrays, metadata)

    return change


def remove_the_state(run: Path) -> None:
    RunDirectory(run).state_path.unlink()


def put_weights_for_the_state(run: Path) -> None:
    shutil.copy(run / "weights.safetensors", RunDirectory(run).state_path)


def put_weights_of_the_first_epoch(run: Path) -> None:
    """As a copy of the file has them that was made while the run trained."""
    arrays, metadata = tensors.load(run / "weights.safetensors")
    first = runs.metrics(run)[0]
    best = {name: first[name] for name in ("epoch", "valid_perplexity")}
    tensors.save(run / "weights.safetensors", arrays, {**metadata, "best": best})


def put_weights_of_the_demo(run: Path) -> None:
    shutil.copy(DEMO / "weights.safetensors", run)


@pytest.mark.parametrize(
    ("change", "flags", "key"),
    [
        (leave_alone, ["--hidden-size", "7"], "--hidden-size 7"),
        (leave_alone, ["--num-layers", "1"], "--num-layers 1"),
        (leave_alone, ["--batch-size", "3"], "--batch-size 3"),
        (leave_alone, ["--num-steps", "4"], "--num-steps 4"),
        (leave_alone, ["--init-scale", "0.2"], "--init-scale 0.2"),
        (leave_alone, ["--seed", "2"], "--seed 2"),
        (leave_alone, ["--config", "medium"], "--config medium"),
        (leave_alone, ["--recipe", "default"], "--recipe default"),
        (leave_alone, ["--average-epochs", "1"], "--average-epochs 1.0"),
        # How it is computed: another run may begin with its weights.
        (leave_alone, ["--model", "basic"], "--init-from"),
        (leave_alone, ["--precision", "fp64"], "--init-from"),
        (leave_alone, ["--framework", "tensorflow"], "--framework tensorflow"),
        (leave_alone, ["--mogrifier-rounds", "5"], "--mogrifier-rounds would change nothing"),
        (leave_alone, ["--embedding-size", "7"], "--embedding-size 7"),
        (leave_alone, ["--tie-weights"], "--tie-weights differs from the run's --no-tie-weights;"),
        (leave_alone, ["--epochs", "1"], "already done 2 epochs"),
        (leave_alone, ["--overwrite"], "--run-dir"),
        (leave_alone, ["--run-dir", "/new"], "--run-dir: not allowed with argument --resume"),
        (
            edit_config('"framework": "torch"', '"framework": "other"'),
            [],
            "config.json: unknown framework 'other'",
        ),
        (edit_config('"seed"', '"colour": 1, "seed"'), [], "config.json: unknown key 'colour'"),
        (edit_config('"hidden_size"', '"colour": 1, "hidden_size"'), [], "no hyper-parameter 'colour'"),
        (edit_config('"seed": 1,', ""), [], "config.json: the key 'seed' is missing"),
        (edit_config('"batch_size": 4', '"batch_size": 0'), [], "config.json: --batch-size"),
        (edit_config('"seed": 1,', '"seed": 1'), [], "config.json"),
        *((truncate_state(kept), [], "training.safetensors is truncated") for kept in (0, 5, 1000, -1)),
        (remove_the_state, [], "training.safetensors is missing"),
        (put_weights_for_the_state, [], "training.safetensors does not hold"),
        *(
            (change, flags, problem)
            for change, problem in (
                (put_weights_of_the_first_epoch, "weights.safetensors holds the weights of epoch 1, but in "),
                (put_weights_of_the_demo, "weights.safetensors was trained with another vocabulary than "),
            )
            for flags in ([], ["--epochs", "3"])
        ),
        *(
            (replace_generator(generator), [], "training.safetensors does not fit")
            for generator in (
                np.ones(16, np.uint8),  # of an impossible offset
                np.zeros(24, np.uint8),
                np.zeros(16, np.float32),
                None,
            )
        ),
    ],
)
def test_resuming_is_refused(
    change: Callable[[Path], None], flags: list[str], key: str, run: Path, refused_resume: Callable[..., str]
) -> None:
    change(run)
    assert key in refused_resume(*flags)


@pytest.mark.parametrize(
    ("flags_of_run", "flags", "key"),
    [
        (
            ["--schedule", "one-cycle"],
            ["--lr-decay", "0.9"],
            "--lr-decay would change nothing with --schedule one",
        ),
        (
            ["--config", "modern"],
            ["--keep-prob", "0.5"],
            "--keep-prob would change nothing with --input-keep",
        ),
        *(
            (
                layers,
                ["--between-keep-prob", "0.5"],
                "--between-keep-prob would change nothing in a single layer",
            )
            for layers in (["--num-layers", "1"], ["--layer-sizes", "300"])
        ),
    ],
)
def test_resuming_refuses_what_would_change_nothing(
    flags_of_run: list[str], flags: list[str], key: str
) -> None:
    config = run_flags.new_config(train.parse_flags(flags_of_run))
    with pytest.raises(UserError, match=f"^{key}"):
        run_flags.resumed_config(config, train.parse_flags(flags))


def test_a_change_is_refused_with_what_may_change(refused_resume: Callable[..., str]) -> None:
    named = re.findall(r"(--[a-z-]+)[, ]", refused_resume("--seed", "2").partition(";")[2])
    assert {"--data", "--epochs", "--learning-rate", "--keep-prob"} <= {*named}
    assert "--seed" not in named


def test_a_run_cannot_end_before_the_epoch_that_it_is_in(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are no longer those of the end of an epoch."""
    corpus, directory = load(str(data)), RunDirectory(run)
    state = directory.read_state(corpus)
    state.progress.step = 1
    directory.write_state(state, corpus=corpus, run=directory.read_config())
    (run / "result.json").unlink()
    problem = runs.refusal(capsys, train, "--resume", run, "--epochs", "2")
    assert problem.startswith("--epochs 2:")
    assert problem.endswith("begun epoch 3; give at least 3")
    state.progress.step = 0
    directory.write_state(state, corpus=corpus, run=directory.read_config())
    assert train.main(["--resume", str(run)]) == 0
    assert "all 2 epochs" in capsys.readouterr().out


def test_a_switch_may_be_off_where_it_would_change_nothing() -> None:
    config = run_flags.new_config({"num_steps": 1, "variational": False}).hyperparameters
    assert (config.num_steps, config.variational) == (1, False)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--epochs", "3"),
        ("--learning-rate", "0.5"),
        ("--lr-decay", "0.9"),
        ("--keep-prob", "0.9"),
        ("--recurrent-keep-prob", "0.9"),
    ],
)
def test_resuming_may_change_how_training_goes_on(flag: str, value: str, run: Path) -> None:
    assert train.main(["--resume", str(run), "--epochs", "4", flag, value]) == 0
    name = flag.removeprefix("--").replace("-", "_")
    assert getattr(RunDirectory(run).read_config().hyperparameters, name) == float(value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda lines: [*lines, "zebra\n"], "words) is not that of {run}"),
        (lambda lines: lines[1:] + lines[:1], "the data differ"),  # of the same words
    ],
)
def test_resuming_with_other_text_is_refused(
    change: Callable[[list[str]], list[str]],
    key: str,
    own_data: Path,
    run: Path,
    refused_resume: Callable[..., str],
) -> None:
    text = own_data / "train.txt"
    text.write_text("".join(change(text.read_text().splitlines(keepends=True))))
    assert key.format(run=run) in refused_resume("--data", own_data)


def test_a_new_word_in_a_text_without_unk_is_told_as_other_text(tmp_path: Path) -> None:
    for split, text in (("train", "a\n"), ("valid", "a\n"), ("test", "a zebra\n")):
        (tmp_path / f"{split}.txt").write_text(text)
    run = run_flags.new_config({"data": str(tmp_path)})
    problem = r"test.txt, line 1: the word 'zebra' .*: it is not the text of a/run, or .* has changed$"
    with pytest.raises(UserError, match=problem):
        run_data.load_again(run, Vocabulary(("a", "<eos>")), run_name="a/run")


def test_other_text_than_the_synthetic_is_told_as_such(data: Path) -> None:
    """No other text tells whether vocabulary.txt has changed."""
    run = run_flags.new_config({"data": "synthetic"})
    with pytest.raises(UserError, match=rf"^the vocabulary of the data {data} .* is not that of a/run"):
        run_data.load_again(run, Vocabulary(("<eos>",)), moved_to=str(data), run_name="a/run")


def test_resuming_with_a_damaged_vocabulary_is_refused(run: Path, refused_resume: Callable[..., str]) -> None:
    path = run / "vocabulary.txt"
    path.write_text(path.read_text() + "zebra\n")
    assert refused_resume().startswith(f"vocabulary.txt of {run} has changed")


def test_a_text_that_is_gone_is_refused_with_its_run(refused_resume: Callable[..., str]) -> None:
    """A flag that names none is told as such."""
    run = run_flags.new_config({"data": "gone"})
    with pytest.raises(UserError, match=r"^there is no file or folder gone, the text of a/run; .* --data$"):
        run_data.load_again(run, Vocabulary(("<eos>",)), run_name="a/run")
    assert refused_resume("--data", "gone").startswith("--data gone: there is no such file or folder")


def test_resuming_something_that_is_no_run_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, file = tmp_path / "missing", data / "train.txt"
    for path, key in ((missing, "does not exist"), (data, "config.json"), (file, "run directory")):
        assert key in runs.refusal(capsys, train, "--resume", path)
    assert not missing.exists()


@pytest.mark.parametrize(
    ("sizes", "tensor"),
    [
        (["--hidden-size", "7"], "'embedding' has shape"),
        (["--num-layers", "1"], "'lstm.1."),
        (["--num-layers", "3"], "'lstm.2."),
        (["--batch-size", "3"], "'h' has shape (2, 3, 6), not (2, 4, 6)"),  # the weights would fit
    ],
)
@pytest.mark.parametrize("claims_to_fit", [False, True], ids=["", "with the configuration of this run"])
def test_resuming_from_another_runs_state_is_refused(
    claims_to_fit: bool,
    sizes: list[str],
    tensor: str,
    run: Path,
    data: Path,
    tmp_path: Path,
    refused_resume: Callable[..., str],
) -> None:
    other = runs.train_run(data, tmp_path / "other", "--epochs", "1", *sizes)
    state = run / "state" / "training.safetensors"
    own = tensors.load(state)[1]["config"]
    shutil.copy(other / "state" / "training.safetensors", state)
    if not claims_to_fit:
        assert refused_resume().startswith(f"{run / 'config.json'} and {state} differ: ")
        return
    arrays, metadata = tensors.load(state)
    tensors.save(state, arrays, {**metadata, "config": own})
    problem = refused_resume()
    assert problem.startswith(f"{state} does not fit")
    assert tensor in problem


def stream_of_a_gpu(seed: int, offset: int) -> np.ndarray:
    """The state of a GPU's generator, as torch saves it."""
    return np.array([seed, offset], np.int64).view(np.uint8)


def test_a_run_of_a_gpu_goes_on_on_a_cpu_with_other_masks(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They depend on the masks of before: another stream there is another one here."""
    first = runs.train_run(data, tmp_path / "run", "--keep-prob", "0.5", "--epochs", "1")
    perplexities = set()
    for name, stream in (("cpu", None), ("one", stream_of_a_gpu(1, 8)), ("two", stream_of_a_gpu(1, 12))):
        run = shutil.copytree(first, tmp_path / name)
        state = run / "state" / "training.safetensors"
        arrays, metadata = tensors.load(state)
        if stream is not None:
            arrays["training.torch.generator"] = stream
            there = metadata["progress"]["environments"][-1]
            there |= {"device": "NVIDIA H100", "cuda": "13.0", "cudnn": 92000}
            del there["kernels"], there["float32_products"], arrays["training.torch.cpu"]
        tensors.save(state, arrays, metadata)
        capsys.readouterr()
        assert train.main(["--resume", str(run), "--epochs", "2", "--device", "cpu"]) == 0
        out = capsys.readouterr().out
        assert ("from a GPU to a CPU, so dropout draws" in out) == (stream is not None)
        assert (": device NVIDIA H100 before, cpu (" in out) == (stream is not None)
        assert "float32 products" not in out
        perplexities.add(runs.metrics(run)[1]["train_perplexity"])
    assert len(perplexities) == 3


CPU = {"torch": "2", "device": "cpu (x86_64)", "threads": 2, "kernels": "native", "float32_products": "MKL"}
GPU = {"torch": "2", "device": "NVIDIA H100", "threads": 2, "cuda": "13.0"}
TENSORFLOW = {"tensorflow": "2", "device": "cpu (x86_64)"}


@pytest.mark.parametrize(
    ("before", "now", "masks", "rounding"),
    [
        (CPU, CPU, "", ""),
        (CPU, GPU, "from a CPU to a GPU", "device cpu (x86_64) before, NVIDIA H100 now"),
        (GPU, CPU, "from a GPU to a CPU", "device NVIDIA H100 before, cpu (x86_64) now"),
        (
            TENSORFLOW,
            {**TENSORFLOW, "device": "NVIDIA H100", "cuda": "13.0"},
            "",
            "device cpu (x86_64) before, NVIDIA H100 now",
        ),
        ({**CPU, "kernels": "torch"}, CPU, "", "kernels torch before, native now"),
        (
            {**CPU, "processes": 2, "reduce_precision": "bfloat16"},
            {**CPU, "processes": 2, "reduce_precision": "float32"},
            "",
            "reduce precision bfloat16 before, float32 now",
        ),
    ],
    ids=["nothing", "to a GPU", "to a CPU", "of TensorFlow", "of the kernels", "of the sums"],
)
def test_a_resumed_run_tells_differences_of_its_environment(
    before: dict[str, object],
    now: dict[str, object],
    masks: str,
    rounding: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    display.print_changes(before, now, has_dropout=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == bool(masks) + bool(rounding)
    if masks:
        assert f"{masks}, so dropout" in lines[0]
    if rounding:
        assert lines[-1].endswith(f": {rounding}")
    display.print_changes(before, now, has_dropout=False)
    assert "dropout" not in capsys.readouterr().out


# Failures on the way.


@pytest.mark.parametrize("rate", ["1e9", "3e38"], ids=["seen by validation", "seen by a step"])
def test_divergence_keeps_the_last_good_state(
    rate: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = runs.files(run)
    capsys.readouterr()
    assert train.main(["--resume", str(run), "--epochs", "4", "--learning-rate", rate]) == 1
    problem = runs.sentence(capsys.readouterr().err, train)
    assert re.search(r"diverged .*\b3(, step \d+ of \d+)?: ", problem)
    assert f"--resume {run} with a smaller --learning-rate continues" in problem
    assert "(--init-scale)" in problem

    after = runs.files(run)
    for name in ("weights.safetensors", "metrics.jsonl", "vocabulary.txt"):
        assert after[name] == before[name]
    arrays, metadata = tensors.load(run / "state" / "training.safetensors")
    assert metadata["progress"]["epoch"] == 2
    assert all(np.isfinite(array).all() for array in arrays.values())

    assert train.main(["--resume", str(run), "--learning-rate", "0.5"]) == 0
    assert runs.result(run)["epochs"] == 4


def test_a_result_keeps_the_settings_that_trained_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if the run goes on by others, which fail in their first step; and it can go back to its end."""
    before = RunDirectory(run).read_config()
    assert train.main(["--resume", str(run), "--epochs", "4", "--learning-rate", "3e38"]) == 1
    assert RunDirectory(run).read_config() != before
    shown = comparison_runs.read_run(run).config.hyperparameters
    assert shown.replace(epochs=2) == before.hyperparameters
    assert "--epochs" in runs.refusal(capsys, train, "--resume", run, "--epochs", "2", "--learning-rate", "2")
    assert train.main(["--resume", str(run), "--epochs", "2"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert RunDirectory(run).read_config() == before


def test_a_run_that_diverges_from_the_start_can_be_resumed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "new"
    wild = runs.arguments(data, run, "--learning-rate", "3e38", "--init-scale", "5")
    wild += ["--slowness-penalty", "1", "--weight-decay", "1e-9", "--layer-init-scale", "1"]
    assert train.main(wild) == 1
    problem = runs.sentence(capsys.readouterr().err, train)
    assert "training diverged in epoch 1" in problem
    changes = "a smaller --learning-rate or --slowness-penalty or --weight-decay"
    assert problem.count(changes) == 2  # of what goes on, and of a new run
    assert "(--init-scale, --layer-init-scale)" in problem
    assert not (run / "weights.safetensors").exists()
    assert train.main(["--resume", str(run), "--learning-rate", "0.5"]) == 0
    assert runs.result(run)["epochs"] == 2


def test_initial_weights_that_diverge_need_a_new_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "new"
    assert train.main(runs.arguments(data, run, "--init-scale", "1e30")) == 1
    assert train.main(["--resume", str(run), "--learning-rate", "1e-6"]) == 1, "the weights are what diverges"
    assert capsys.readouterr().err.count("(--init-scale)") == 2
    assert train.main(runs.arguments(data, run, "--init-scale", "0.1", "--overwrite")) == 0


def test_a_full_disk_keeps_the_last_good_state(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = runs.files(run)
    capsys.readouterr()
    resume = ["--resume", str(run), "--epochs", "3"]
    with runs.disk_with_room_for(len(before["state/training.safetensors"]) - 1):
        assert train.main(resume) == 1
    state = run / "state" / "training.safetensors"
    sentence, _, again = runs.sentence(capsys.readouterr().err, train).partition("; continue with: ")
    assert sentence == f"{state}: File too large"
    assert shlex.split(again) == ["python", "-m", "ptb_lm.train", "--resume", str(run)]
    after = runs.files(run)
    for name in ("state/training.safetensors", "weights.safetensors", "result.json", "metrics.jsonl"):
        assert after[name] == before[name]
    assert not [name for name in after if name.endswith(".tmp")]

    assert train.main(resume) == 0
    assert runs.result(run)["epochs"] == 3


def test_a_full_disk_stops_a_new_run_before_it_works(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "new"
    with runs.disk_with_room_for(2000):
        assert train.main(runs.arguments(data, run)) == 1
    assert runs.sentence(capsys.readouterr().err, train).endswith("training.safetensors: File too large")
    # Nothing is lost, so nothing is in the way of the next try.
    runs.train_run(data, run)


@pytest.mark.parametrize("room", [10, 1000])  # for neither of its first files, and for one of them
def test_a_full_disk_costs_no_run_that_is_to_be_replaced(room: int, run: Path, data: Path) -> None:
    before = runs.files(run)
    assert len(before["vocabulary.txt"]) < 1000 < len(before["config.json"])
    with runs.disk_with_room_for(room):
        assert train.main(runs.arguments(data, run, "--overwrite")) == 1
    assert runs.files(run) == before


def test_a_disk_that_is_full_as_it_is_flushed_costs_no_run(
    run: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a network a file may be written, and only then turn out to have no room."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = runs.files(run)
    monkeypatch.setattr(os, "fsync", refuse)
    assert train.main(runs.arguments(data, run, "--overwrite")) == 1
    assert runs.files(run) == before


def test_the_folder_of_the_state_is_made_again(run: Path, data: Path) -> None:
    corpus, directory = load(str(data)), RunDirectory(run)
    saved, config = directory.state_path.read_bytes(), directory.read_config()
    state = directory.read_state(corpus)
    shutil.rmtree(directory.state_path.parent)
    directory.write_state(state, corpus=corpus, run=config)
    assert directory.state_path.read_bytes() == saved


def test_weights_that_improve_take_the_old_result_away(run: Path) -> None:
    """So result.json is true of the weights beside it, even if a later epoch fails."""
    weights = (run / "weights.safetensors").read_bytes()
    third_good_fourth_wild = ["--epochs", "4", "--decay-after", "3", "--lr-decay", "3e38"]
    assert train.main(["--resume", str(run), *third_good_fourth_wild]) == 1
    assert (run / "weights.safetensors").read_bytes() != weights
    assert not (run / "result.json").exists()


# A run that ends well.


def test_a_run_holds_the_files_that_the_design_names(plain_run: Path) -> None:
    names = {re.sub(r"tfevents\..*", "tfevents", name) for name in runs.files(plain_run)}
    assert names == {
        "config.json",
        "events.out.tfevents",
        "metrics.jsonl",
        "result.json",
        "state/training.safetensors",
        "vocabulary.txt",
        "weights.safetensors",
    }


def test_the_preset_and_the_flags_make_the_configuration(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "new"
    flags = ["--batch-size", "4", "--keep-prob", "0.9"]
    assert train.main(["--config", "test", "--data", str(data), "--run-dir", str(run), *flags]) == 0
    config = RunDirectory(run).read_config()
    assert config.hyperparameters == PRESETS["test"].replace(batch_size=4, keep_prob=0.9)
    assert (config.preset, config.choice) == ("test", Choice.create())


@pytest.mark.parametrize("recipe", [None, "default", "tutorial"])
def test_the_recipe_decides_how_a_preset_is_trained(recipe: str | None) -> None:
    flag_values = {"config": "medium", "keep_prob": 0.9, **({"recipe": recipe} if recipe else {})}
    run = run_flags.new_config(flag_values)
    assert run.recipe == (recipe or "default")
    assert run.hyperparameters == RECIPES[recipe or "default"]["medium"].replace(keep_prob=0.9)


@pytest.mark.parametrize("preset", ["modern", "awd"])
def test_a_recipe_that_changes_nothing_is_refused(preset: str) -> None:
    with pytest.raises(UserError, match=f"--recipe tutorial would change nothing with --config {preset}"):
        run_flags.new_config({"config": preset, "recipe": "tutorial"})


def test_a_switch_is_turned_off_as_it_is_turned_on(data: Path, tmp_path: Path) -> None:
    on = ["--tie-weights", "--variational", "--epochs", "1"]
    run = runs.train_run(data, tmp_path / "new", *on, "--no-variational")
    found = RunDirectory(run).read_config().hyperparameters
    assert (found.tie_weights, found.variational) == (True, False)
    assert "softmax.kernel" not in tensors.load(run / "weights.safetensors")[0]


def test_the_weights_are_canonical(plain_run: Path) -> None:
    weights, metadata = tensors.load(plain_run / "weights.safetensors")
    words = len((plain_run / "vocabulary.txt").read_text().splitlines())
    assert {name: array.shape for name, array in weights.items()} == {
        "embedding": (words, 6),
        "lstm.0.kernel": (6, 24),
        "lstm.0.recurrent_kernel": (6, 24),
        "lstm.0.bias": (24,),
        "lstm.1.kernel": (6, 24),
        "lstm.1.recurrent_kernel": (6, 24),
        "lstm.1.bias": (24,),
        "softmax.kernel": (6, words),
        "softmax.bias": (words,),
    }
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    assert metadata["config"] == RunDirectory(plain_run).read_config().to_json()


@pytest.mark.parametrize("name", ["a new one", "-x"])
def test_stdout_tells_what_the_files_hold(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    run = Path(name)
    assert train.main(["--data", str(data), f"--run-dir={name}", *runs.FLAGS]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no progress bar: this is not a terminal
    result = runs.result(run)
    # What would be faster depends on the machine.
    first, *lines = [line for line in out.splitlines() if not line.startswith("hint: ")]
    assert first.startswith("cudnn in fp32: ")
    assert (
        f"config small, recipe tutorial: {result['parameters']:,} parameters, {result['engine']}" in lines[1]
    )
    assert lines[2] == f"run directory {run}"
    assert [line.split("  ")[:2] for line in lines[3:5]] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert lines[5].startswith(f"test perplexity {result['test_perplexity']:.2f} (valid ")
    (last,) = lines[6:]
    written, *commands = re.split("; next: |, | or ", last)
    assert written == f"written to {run / 'result.json'}"
    for command in commands:  # each of them is one
        _, _, module, *given = shlex.split(command.replace("FILE", str(data / "test.txt")))
        assert runs.run_command(importlib.import_module(module), *given) == 0, command


def test_a_run_says_what_is_faster_here_and_what_a_resumed_one_changes(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptb_lm.common.host.Load.hint", lambda self, threads: f"{threads} threads are many")
    flags = ("--precision", "fp16", "--model", "block_fused", "--epochs", "1")
    run = runs.train_run(data, tmp_path / "new", *flags)
    out = capsys.readouterr().out
    assert "; precision fp16\n" in out
    assert "hint: fp16 is slow" in out
    assert "hint: 1 threads are many\n" in out
    corpus = load(str(data))
    state = RunDirectory(run).read_state(corpus)
    state.progress.environments[-1]["threads"] = 7
    RunDirectory(run).write_state(state, corpus=corpus, run=RunDirectory(run).read_config())
    assert train.main(["--resume", str(run), "--epochs", "2"]) == 0
    assert "threads 7 before, 1 now" in capsys.readouterr().out


def choice_of(run: Path) -> tuple[str, str]:
    config = json.loads((run / "config.json").read_text())
    return config["model"], config["precision"]


def test_a_run_takes_the_fastest_says_so_and_keeps_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, too."""
    run, features = tmp_path / "new", {rules.KERNELS, rules.BFLOAT16}
    machine = rules.MachineFacts(device="cpu", name="a CPU here", features=frozenset(features))
    monkeypatch.setattr(runtime, "examine", lambda device: machine)
    runs.train_run(data, run, "--hidden-size", "200", "--num-layers", "1", "--epochs", "1")
    assert choice_of(run) == ("block_fused", "bf16")
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.match(r"block_fused in bf16, for a CPU here: .* \(.*\); --model cudnn --precision fp32 ", first)
    # This CPU may be another one, and slow in bfloat16.
    assert "hint" not in "".join(line for line in lines if "bf16 is slow on this CPU" not in line)
    monkeypatch.setattr(runtime, "examine", lambda device: dataclasses.replace(machine, features=frozenset()))
    assert train.main(["--resume", str(run), "--epochs", "2", "--model", "auto"]) == 0
    assert choice_of(run) == ("block_fused", "bf16")
    assert "precision bf16" in capsys.readouterr().out
    assert runs.refusal(capsys, train, "--resume", run, "--epochs", "3", "--precision", "fp32")


def test_what_is_named_is_what_trains(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", "block", "--precision", "fp32", "--epochs", "1")
    run = runs.train_run(data, tmp_path / "new", *flags)
    assert choice_of(run) == ("block", "fp32")
    assert capsys.readouterr().out.startswith("data ")
    flags = ("--init-from", str(run), "--epochs", "1", "--cell", "lstm")
    other = runs.train_run(data, tmp_path / "other", *flags)
    assert choice_of(other) == ("cudnn", "fp32"), "a new run chooses anew"


def test_stdout_tells_of_the_last_epoch_where_it_is_not_the_best(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--decay-after", "1", "--lr-decay", "20", "--max-grad-norm", "1000")
    run = runs.train_run(data, tmp_path / "new", *flags)
    told, result = capsys.readouterr().out.splitlines()[-2], runs.result(run)
    assert result["best_epoch"] == 1
    assert result["final_valid_perplexity"] > result["valid_perplexity"]
    _, _, last = told.partition("; the last epoch's weights: test ")
    assert [*map(float, last.split(", valid "))] == pytest.approx(
        [result["final_test_perplexity"], result["final_valid_perplexity"]], rel=0.005
    )


# Help.


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert runs.run_command(train, "--help") == 0
    text = capsys.readouterr().out
    groups_of_flags, _, named = text.partition("\nMore flags, ")
    for action in train._parser()._actions:
        flag = action.option_strings[-1 if action.dest == "help" else 0]
        seldom = action.dest in train.RARE_FLAGS
        assert bool(re.search(rf"\s{flag}[,.]", named)) == seldom, flag
        assert is_described(flag, groups_of_flags) != seldom, flag
    groups = re.findall(r"^(\w+).*:$", groups_of_flags, re.M)
    assert [name for name in groups if name in GROUPS] == GROUPS
    # A flag has a line or two, a group a heading.
    assert max(len(flag.splitlines()) for flag in re.split(r"\n  (?=-)|\n\n", groups_of_flags)) <= 2
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 50


def is_described(flag: str, text: str) -> bool:
    return bool(re.search(rf"^  (-h, )?(--\[no-\]{flag[2:]}|{flag})\b.* \w", text, re.M))


def test_a_longer_help_describes_each_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert runs.run_command(train, "--help-all") == 0
    text = capsys.readouterr().out
    for action in train._parser()._actions:
        flag = action.option_strings[-1 if action.dest == "help" else 0]
        assert is_described(flag, text), flag
    assert max(len(flag.splitlines()) for flag in re.split(r"\n  (?=-)|\n\n", text)) <= 2


def test_the_presets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Each value of the two tables, read back."""
    assert runs.run_command(train, "--help-presets") == 0
    _, *parts, meanings = capsys.readouterr().out.split("\n\n")
    assert all(f"\n  {each.flag} " in meanings for each in HYPERPARAMETERS)
    tables = list(zip(parts[::2], parts[1::2], strict=True))
    heads = [table.splitlines()[0].split() for table, _ in tables]
    assert sorted(itertools.chain(*heads)) == sorted(PRESETS)
    for presets, (table, same) in zip(heads, tables, strict=True):
        _, *rows = table.splitlines()
        assert max(map(len, rows)) <= 100
        shown = {each.flag: ["-"] * len(presets) for each in HYPERPARAMETERS}
        listed = {flag: values for flag, *values in (re.split("  +", row) for row in rows)}
        values_of_all = " ".join(same.removeprefix("All have ").split()).rstrip(".").split(", ")
        for flag, value in (each.split(" ", 1) for each in values_of_all):
            listed[flag] = [value] * len(presets)
        assert listed.keys() <= shown.keys()
        shown |= listed
        for each, (column, preset) in itertools.product(HYPERPARAMETERS, enumerate(presets)):
            found = re.fullmatch(r"(.+?)(?: \[(.+)\])?", shown[each.flag][column])
            assert found is not None
            by_default, tutorial = found.groups()
            for recipe, value in (("default", by_default), ("tutorial", tutorial or by_default)):
                config = RECIPES[recipe][preset]
                real = getattr(config, each.name)
                if value == "-":
                    with pytest.raises(UserError, match=f"{each.flag} would change nothing"):
                        run_flags.with_flags(config, {each.name: real})
                    continue
                assert read_back(each, value) == (real if each.kind is str else pytest.approx(real, rel=1e-3))


def read_back(each: Hyperparameter, shown: str) -> Any:
    """The value that --help-presets shows so."""
    if each.is_sequence:
        return () if shown == "no" else tuple(map(each.kind, shown.split()))
    return {"no": False, "yes": True}[shown] if each.kind is bool else each.kind(shown)


def test_the_models_are_shown_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.run_command(train, "--help-models") == 0
    text = " ".join(capsys.readouterr().out.split())
    for row in frameworks.FRAMEWORKS.values():
        for model, about in row.models.items():
            assert f"{model} {about}" in text
    for cell, row in CELLS.items():
        assert f"{cell} {row.about}" in text
