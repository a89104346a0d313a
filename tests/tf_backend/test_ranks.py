"""TF_CONFIG's workers, in one process: the rank of each, whom an error names, all that is refused.

How they train together is in test_distribution.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runs

from ptb_lm import train
from ptb_lm.common.errors import LostRankError, UserError
from ptb_lm.model import backend
from ptb_lm.model import ranks as model_ranks
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import SMALL
from ptb_lm.model.ranks import Ranks

tf = pytest.importorskip("tensorflow")

from ptb_lm.tf_backend import ranks as tf_ranks  # noqa: E402
from ptb_lm.tf_backend.ranks import TensorFlowRanks, join  # noqa: E402

pytestmark = pytest.mark.slow

WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def place(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], job: str = "worker", index: int = 0
) -> None:
    task = {"type": job, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def fake_strategy(**_: Any) -> Any:
    """The part of a strategy that TensorFlowRanks needs; a whole one would wait for the other workers."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    count = sum(map(len, resolver.cluster_spec().as_dict().values()))
    return SimpleNamespace(cluster_resolver=resolver, num_replicas_in_sync=count)


@pytest.mark.parametrize(
    ("cluster", "job", "index", "rank"),
    [
        (WORKERS, "worker", 0, 0),
        (WORKERS, "worker", 2, 2),
        (WITH_CHIEF, "chief", 0, 0),
        (WITH_CHIEF, "worker", 0, 1),
        (WITH_CHIEF, "worker", 1, 2),
    ],
)
def test_the_chief_is_the_first_rank(
    cluster: dict[str, Any], job: str, index: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, cluster, job, index)
    ranks = TensorFlowRanks(fake_strategy())
    assert (ranks.rank, ranks.size, ranks.is_first) == (rank, 3, rank == 0)


@pytest.mark.parametrize(
    ("cluster", "error", "waited", "noun"),
    [
        (WORKERS, tf.errors.UnavailableError, 1, "rank 1 of 3"),
        (WITH_CHIEF, tf.errors.UnavailableError, 1, "rank 2 of 3"),
        (WORKERS, tf.errors.DeadlineExceededError, 7, "a rank did not answer for 7 seconds"),
        (WORKERS, tf.errors.DeadlineExceededError, 1, "rank 1 of 3 has ended"),
    ],
)
def test_a_lost_rank_is_named(
    cluster: dict[str, Any], error: Any, waited: int, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, cluster, next(iter(cluster)))
    monkeypatch.setenv(model_ranks.RANK_TIMEOUT, "7")
    message = "the heartbeat of these tasks stopped: /job:worker/replica:0/task:1"
    ranks = TensorFlowRanks(fake_strategy())
    clock = iter([100.0, 100.0 + waited])
    monkeypatch.setattr(tf_ranks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(LostRankError, match=f"^{noun}"), ranks.collective():
        raise error(None, None, message)


TASKS = "/job:worker/replica:0/task:0, /job:worker/replica:0/task:2"


@pytest.mark.parametrize(
    ("message", "noun"),
    [
        (f"the heartbeat of these tasks stopped: {TASKS}", "rank 2 of 3 has"),  # not this one
        (f"the connection between {TASKS} was closed", "a rank has"),  # who has ended is not known
    ],
)
def test_a_rank_that_may_be_there_is_not_called_lost(
    message: str, noun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, WORKERS)
    with pytest.raises(LostRankError, match=f"^{noun}"), TensorFlowRanks(fake_strategy()).collective():
        raise tf.errors.UnavailableError(None, None, message)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"cluster": WORKERS},
        {"cluster": WORKERS, "task": None},
        {"cluster": WORKERS, "task": {"type": "evaluator", "index": 0}},
        {"task": {"type": "worker", "index": 0}},
    ],
)
def test_a_process_that_is_no_worker_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(value) if value else "")
    with pytest.raises(UserError, match="chief"):
        join(device="cpu", reduce_precision="fp32")


def test_gradients_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, WORKERS)
    with pytest.raises(UserError, match="--reduce-precision"):
        join(device="cpu", reduce_precision="bf16")


def test_gradients_of_a_process_s_devices_are_not_rounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = runs.write_corpus(tmp_path / "data")
    more = ("--framework", "tensorflow", "--devices", "2", "--reduce-precision", "bf16")
    refusal = runs.refusal(capsys, train, *runs.arguments(data, tmp_path / "run", *more))
    assert "--reduce-precision" in refusal
    assert not (tmp_path / "run").exists()


def test_a_worker_with_several_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, WORKERS)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind, kind])
    with pytest.raises(UserError, match="sees 2"):
        join(device="auto", reduce_precision="fp32")


@pytest.mark.parametrize(("several", "noun"), [("processes", "process"), ("devices", "device")])
def test_xla_does_not_train_on_several(several: str, noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, WORKERS)
    ranks = Ranks(2) if several == "devices" else TensorFlowRanks(fake_strategy())
    choice = Choice.create(framework="tensorflow", model="basic", device="cpu", execution="xla")
    with pytest.raises(UserError, match=rf"--execution xla .* one {noun}\b"):
        backend.build(SMALL, {}, choice, ranks)


def test_a_process_of_torchrun_is_not_the_only_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place(monkeypatch, {"worker": ["a:1"]})
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", fake_strategy)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
    refusal = runs.refusal(capsys, train, "--data", "synthetic", "--framework", "tensorflow")
    assert "torchrun" in refusal
    assert "TF_CONFIG" in refusal
