"""TensorBoard's file: read back with TensorBoard's own readers."""

import io
import itertools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from ptb_lm import train
from ptb_lm.training import tensorboard
from ptb_lm.training.checkpoint import Checkpoints
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensorboard import EventFile, as_record

pytestmark = pytest.mark.slow

TAGS = {
    "perplexity/train": "train_perplexity",
    "perplexity/valid": "valid_perplexity",
    "learning_rate": "learning_rate",
    "words_per_second": "words_per_second",
    "gradient_norm": "gradient_norm",
}
AT_THE_END = {"perplexity/test", "perplexity/test_of_last_epoch"}
WITHIN = {f"step/{name}" for name in ("loss", "perplexity", "gradient_norm", "learning_rate")}
SPEED = "step/words_per_second"  # an epoch so short may have been read once, by the step that is not clocked


@pytest.fixture(scope="module")
def run(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs, the last of them after a resume."""
    run = shutil.copytree(plain_run, tmp_path_factory.mktemp("scalars") / "run")
    assert train.main(["--resume", str(run), "--epochs", "3"]) == 0
    return run


def steps_an_epoch(run: Path) -> int:
    words = len(Path(json.loads((run / "config.json").read_text())["data"], "train.txt").read_text().split())
    lines = 90  # of runs.write_corpus; each ends in <eos>
    return ((words + lines) // 4 - 1) // 5  # rows, and steps of a window


def read(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run))
    events.Reload()
    return events


def test_tensorboard_reads_the_metrics_by_step(run: Path) -> None:
    rows, steps, events = runs.metrics(run), steps_an_epoch(run), read(run)
    assert set(events.Tags()["scalars"]) - {SPEED} == TAGS.keys() | AT_THE_END | WITHIN
    for tag, column in TAGS.items():
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [steps, 2 * steps, 3 * steps]
        # TensorBoard keeps float32.
        assert [scalar.value for scalar in scalars] == pytest.approx([row[column] for row in rows], rel=1e-7)


def test_points_within_an_epoch_add_up_to_its_row(run: Path) -> None:
    rows, steps, events = runs.metrics(run), steps_an_epoch(run), read(run)
    for column, tag, mean in (
        ("train_perplexity", "step/loss", math.exp),
        ("gradient_norm", "step/gradient_norm", float),
    ):
        points = events.Scalars(tag)
        assert len(points) > len(rows)
        for row in rows:
            first = (row["epoch"] - 1) * steps
            within = [point for point in points if first < point.step <= first + steps]
            assert within[-1].step == first + steps
            counts = [b - a for a, b in itertools.pairwise([first, *(point.step for point in within)])]
            total = sum(count * point.value for count, point in zip(counts, within, strict=True))
            assert mean(total / steps) == pytest.approx(row[column], rel=1e-6)
    rates = {point.value for point in events.Scalars("step/learning_rate")}
    assert rates == {row["learning_rate"] for row in rows}


def test_the_test_is_a_point_at_the_end_and_the_configuration_a_text(run: Path) -> None:
    events, result, steps = read(run), runs.result(run), steps_an_epoch(run)
    for tag, key in (
        ("perplexity/test", "test_perplexity"),
        ("perplexity/test_of_last_epoch", "final_test_perplexity"),
    ):
        before, last = events.Scalars(tag)  # the run ended twice
        assert (before.step, last.step) == (2 * steps, 3 * steps)
        assert last.value == pytest.approx(result[key], rel=1e-7)
    (*_, newest) = events.Tensors("config")
    (text,) = newest.tensor_proto.string_val
    # As it was resumed.
    assert {"| hidden_size | 6 |", '| model | "cudnn" |', "| epochs | 3 |"} <= {*text.decode().splitlines()}


def test_the_hparams_plugin_lists_the_run_with_its_hyperparameters(run: Path) -> None:
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(run.parent))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(run.parent))
    context = backend_context.Context(TBContext(logdir=str(run.parent), data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        include_metrics=True,
        allowed_statuses=[api_pb2.STATUS_SUCCESS],
        col_params=[
            api_pb2.ColParams(metric=api_pb2.MetricName(tag="perplexity/test")),
        ],
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    (group,) = handler.run().session_groups
    assert group.hparams["hidden_size"].number_value == 6
    assert group.hparams["model"].string_value == "cudnn"
    assert group.hparams["tie_weights"].bool_value is False
    values = {value.name.tag: value.value for value in group.metric_values}
    assert values["perplexity/test"] == pytest.approx(runs.result(run)["test_perplexity"], rel=1e-7)


def test_the_weights_have_a_curve_beside_that_of_their_average(tmp_path: Path) -> None:
    run = runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "run", "--average-epochs", "1")
    rows, events = runs.metrics(run), read(run)
    curves = {"perplexity/valid_unaveraged": "unaveraged_valid_perplexity", **TAGS}
    assert set(events.Tags()["scalars"]) - {SPEED} == curves.keys() | AT_THE_END | WITHIN
    for tag, column in curves.items():
        values = [scalar.value for scalar in events.Scalars(tag)]
        assert values == pytest.approx([row[column] for row in rows], rel=1e-7)


def test_each_process_writes_a_file_of_its_own_and_purges_what_it_repeats(run: Path) -> None:
    first, second = (
        [*EventFileLoader(str(path)).Load()] for path in sorted(run.glob("events.out.tfevents*"))
    )
    steps = steps_an_epoch(run)
    assert first[0].file_version == second[0].file_version == "brain.Event:2"
    assert max(event.step for event in first) == 2 * steps
    assert (second[1].step, second[1].session_log.status) == (2 * steps + 1, 1)  # SessionLog.START
    # The configuration's step is of the state that the run went on from; it has no scalar.
    assert [event.step for event in second[2:3]] == [2 * steps]
    assert min(event.step for event in second[3:]) == 2 * steps + 1


@pytest.mark.parametrize("after", ["the weights", "the row", "the state"])
def test_a_crash_at_the_end_of_an_epoch_costs_no_point(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes: the resumed run writes the point of the epoch that it does again, and no other."""
    place = {"the weights": (Checkpoints, "keep_best"), "the row": (RunDirectory, "write_metrics")}
    owner, name = place.get(after, (Checkpoints, "save"))
    whole, count = getattr(owner, name), itertools.count()

    def crash(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        # Before any work the row of no epoch and the first state are written.
        if next(count) == (after != "the weights"):
            raise ZeroDivisionError

    data = runs.write_corpus(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        patch.setattr(Checkpoints, "is_due_after_epoch", lambda self: True)
        with pytest.raises(ZeroDivisionError):
            runs.train_run(data, tmp_path / "run", "--epochs", "3")
    assert train.main(["--resume", str(tmp_path / "run")]) == 0
    steps = steps_an_epoch(tmp_path / "run")
    points = read(tmp_path / "run").Scalars("perplexity/valid")
    assert [point.step for point in points] == [steps, 2 * steps, 3 * steps]


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
    event_file = EventFile(folder, purge_step=purge_step)
    for step, value in values.items():
        event_file.add_scalars({"x": value}, step)
    event_file.close()


def test_scalars_are_written_at_once_and_a_full_disk_is_told_of_the_file(tmp_path: Path) -> None:
    """When it is written, and when it is closed with what could not be written; before, it can be read."""
    event_file = EventFile(tmp_path)
    (path,) = tmp_path.glob("events.out.tfevents*")
    event_file.add_scalars({"x": 1.5}, 1)
    assert [*EventFileLoader(str(path)).Load()][-1].step == 1
    with runs.disk_with_room_for(1000):
        for act in (
            lambda: [event_file.add_scalars({"x": 1.0}, step) for step in range(100)],
            event_file.close,
        ):
            with pytest.raises(OSError, match="File too large") as caught:
                act()
            assert caught.value.filename == str(path)


def test_a_file_that_is_there_is_not_written_and_without_a_folder_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = EventFile(None)
    nowhere.add_scalars({"x": 1.0}, 1)
    nowhere.close()
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(tensorboard, "_COUNT", itertools.repeat(0))
    monkeypatch.setattr(tensorboard.time, "time", lambda: 1.0)
    write_scalars(tmp_path, {1: 10.0}, purge_step=None)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    with pytest.raises(FileExistsError):  # of another machine of this name, or another container
        EventFile(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 3])
def test_a_record_is_that_of_tensorboards_own_writer(data: bytes) -> None:
    expected = io.BytesIO()
    RecordWriter(expected).write(data)
    assert as_record(data) == expected.getvalue()


def test_the_values_of_plugins_are_those_of_their_own_functions(tmp_path: Path) -> None:
    event_file = EventFile(tmp_path)
    event_file.begin({"a": 1, "b": {"c": "d"}}, step=0)
    event_file.end(step=0)
    event_file.close()
    (path,) = tmp_path.glob("events.out.tfevents*")
    raw = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
    (table, start), (end,) = (event.summary.value for event in raw[1:])
    assert table == text_pb("config", '| name | value |\n| --- | --- |\n| a | 1 |\n| c | "d" |\n').value[0]
    for value, tag in ((start, hparams.SESSION_START_INFO_TAG), (end, hparams.SESSION_END_INFO_TAG)):
        content = value.metadata.plugin_data.content
        # A message's map is written in no order, so that equal ones may have other bytes.
        expected = hparams.create_summary_metadata(HParamsPluginData.FromString(content))
        expected_content = expected.plugin_data.content
        assert HParamsPluginData.FromString(content) == HParamsPluginData.FromString(expected_content)
        value.metadata.plugin_data.content = expected_content
        assert value.metadata == expected
        assert (value.tag, value.tensor) == (tag, hparams.NULL_TENSOR)


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    """TensorBoard imports TensorFlow where it finds it, which takes seconds and takes memory on the GPU."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise RuntimeError('imported')")
    code = "\n".join(
        [
            "import sys",
            f"sys.path.insert(0, {str(tmp_path)!r})",
            "from pathlib import Path",
            "from ptb_lm.training.tensorboard import EventFile",
            f"event_file = EventFile(Path({str(tmp_path)!r}))",
            "event_file.add_scalars({'x': 1.0}, 1)",
            "event_file.close()",
            "assert 'tensorflow' not in sys.modules",
            "assert 'tensorboard.compat.tensorflow_stub' not in sys.modules",
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
