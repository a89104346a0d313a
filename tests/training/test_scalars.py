"""TensorBoard scalars: read back with TensorBoard's own readers."""

import subprocess
import sys
from pathlib import Path

import pytest
import runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from ptb_lm import train
from ptb_lm.training.scalars import Scalars

pytestmark = pytest.mark.slow

TAGS = {
    "perplexity/train": "train_perplexity",
    "perplexity/valid": "valid_perplexity",
    "learning_rate": "learning_rate",
    "words_per_second": "words_per_second",
    "gradient_norm": "gradient_norm",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs, the last of them after a resume."""
    folder = tmp_path_factory.mktemp("scalars")
    run = runs.train_run(runs.write_corpus(folder / "data"), folder / "run")
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    return run


def test_tensorboard_reads_the_metrics(run: Path) -> None:
    rows = runs.metrics(run)
    events = EventAccumulator(str(run))
    events.Reload()
    assert set(events.Tags()["scalars"]) == TAGS.keys()
    for tag, column in TAGS.items():
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [1, 2, 3]
        # TensorBoard keeps float32.
        assert [scalar.value for scalar in scalars] == pytest.approx([row[column] for row in rows], rel=1e-7)


def test_the_weights_have_a_curve_beside_that_of_their_average(tmp_path: Path) -> None:
    run = runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "run", "--average-epochs", "1")
    rows = runs.metrics(run)
    events = EventAccumulator(str(run))
    events.Reload()
    curves = {"perplexity/valid_unaveraged": "unaveraged_valid_perplexity", **TAGS}
    assert set(events.Tags()["scalars"]) == curves.keys()
    for tag, column in curves.items():
        values = [scalar.value for scalar in events.Scalars(tag)]
        assert values == pytest.approx([row[column] for row in rows], rel=1e-7)


def test_each_process_writes_a_file_of_its_own_and_purges_what_it_repeats(run: Path) -> None:
    first, second = (
        [*EventFileLoader(str(path)).Load()] for path in sorted(run.glob("events.out.tfevents*"))
    )
    assert first[0].file_version == second[0].file_version == "brain.Event:2"
    assert [event.step for event in first[1:]] == [1, 2]
    assert (second[1].step, second[1].session_log.status) == (3, 1)  # SessionLog.START
    assert [event.step for event in second[2:]] == [3]


def test_purged_steps_are_gone_for_tensorboard(tmp_path: Path) -> None:
    """An epoch that was written, but not saved, is written again by the process that resumes."""
    write_scalars(tmp_path, {1: 10.0, 2: 20.0}, purge_step=None)
    (first,) = tmp_path.glob("events.out.tfevents*")
    first.rename(tmp_path / "events.out.tfevents.1.host.1")  # as of an earlier process
    write_scalars(tmp_path, {2: 21.0}, purge_step=2)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("x")] == [(1, 10.0), (2, 21.0)]


def write_scalars(folder: Path, values: dict[int, float], purge_step: int | None) -> None:
    scalars = Scalars(folder, purge_step=purge_step)
    for step, value in values.items():
        scalars.add({"x": value}, step)
    scalars.close()


def test_scalars_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path)
    scalars.add({"x": 1.5}, 1)
    (path,) = tmp_path.glob("events.out.tfevents*")
    try:
        assert [*EventFileLoader(str(path)).Load()][-1].step == 1
    finally:
        scalars.close()


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    """TensorBoard imports TensorFlow where it finds it, which takes seconds and takes memory on the GPU."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise RuntimeError('imported')")
    code = "\n".join(
        [
            "import sys",
            f"sys.path.insert(0, {str(tmp_path)!r})",
            "from pathlib import Path",
            "from ptb_lm.training.scalars import Scalars",
            f"scalars = Scalars(Path({str(tmp_path)!r}))",
            "scalars.add({'x': 1.0}, 1)",
            "scalars.close()",
            "assert 'tensorflow' not in sys.modules",
            "try:",
            "    import tensorflow",
            "except RuntimeError as error:",
            "    print(error)",  # it would have been found
        ]
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stderr, ended.stdout) == ("", "imported\n")


def test_files_of_one_second_are_kept_apart(tmp_path: Path) -> None:
    for value in range(3):
        write_scalars(tmp_path, {1: value}, purge_step=None)
    files = sorted(tmp_path.glob("events.out.tfevents*"))
    values = [[*EventFileLoader(str(path)).Load()][-1].summary.value[0].tensor.float_val[0] for path in files]
    assert values == [0, 1, 2]
