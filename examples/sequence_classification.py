"""Classify sequences with this package's LSTM stacks: a template for other data than language.

    python examples/sequence_classification.py
    python examples/sequence_classification.py --model block --bidirectional --num-layers 1
    python examples/sequence_classification.py --framework tensorflow --model block_fused

It needs scikit-learn, for the area under the ROC curve: pip install -e '.[bench]'.

A point moves in a circle, clockwise or counter-clockwise, and its coordinates have noise. Sequences have
different lengths. After its length a point turns back, so only a model that uses the lengths can tell which
way it went. To classify your own sequences, return them from `make_data`; `train` and `measure`
are for two classes.

Shapes: B = sequences, T = time steps, I = features (2: a point), C = classes (2).
"""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import sequence_classifier
from numpy.typing import NDArray
from sequence_classifier import CLASSIFIERS, Batch, Classifier, ClassifierConfig

from ptb_lm.common import cli, files
from ptb_lm.common.errors import DivergenceError, UserError, how_to_install
from ptb_lm.model import frameworks, parameters
from ptb_lm.model.choice import Choice
from ptb_lm.training.tensorboard import EventFile

try:
    from sklearn import metrics, model_selection
except ModuleNotFoundError:
    metrics = None

PROG = "python examples/sequence_classification.py"
STEPS, SHORTEST = 30, 10
BATCH_SIZE = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return its exit status."""
    return cli.run(PROG, lambda: train(parse(argv)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the values of the command line."""
    parser = cli.Parser(prog=PROG, description="Train an LSTM to tell which way a point turns.")
    add, default, whole = parser.add_argument, "default: %(default)s", cli.whole_number(1, 1_000_000)
    rows = sequence_classifier.CLASSIFIERS
    models = "; ".join(f"{name}: {', '.join(row.models)}" for name, row in rows.items())
    executions = "; ".join(f"{name}: {', '.join(row.executions)}" for name, row in rows.items())
    add("--framework", choices=tuple(rows), default="torch", help=default)
    add("--model", default="cudnn", help=f"the LSTM implementation ({models}); {default}")
    add("--execution", help=f"how its operations are run ({executions}); default: the first")
    add("--device", choices=frameworks.DEVICES, default="auto", help=default)
    add("--num-layers", type=whole, default=2, metavar="N", help=default)
    add("--hidden-size", type=whole, default=16, metavar="N", help=default)
    add("--bidirectional", action="store_true", help="read each sequence in both directions")
    add("--keep-prob", type=float, default=1.0, metavar="P", help=f"of dropout; {default}")
    add("--learning-rate", type=float, default=0.01, metavar="R", help=f"of Adam; {default}")
    add("--clip-value", type=float, default=0.1, metavar="G", help=f"of a gradient's elements; {default}")
    add("--epochs", type=whole, default=12, metavar="N", help=default)
    add("--sequences", type=whole, default=2000, metavar="N", help=f"all splits together; {default}")
    add("--seed", type=whole, default=1, metavar="N", help=f"of data, weights and dropout; {default}")
    add("--log-dir", type=Path, metavar="DIR", help="for TensorBoard; default: a new one in checkpoints/")
    return parser.parse_args(argv)


def train(chosen: argparse.Namespace) -> int:
    """Train a classifier, and score the weights of its best epoch on the test split."""
    if metrics is None:
        raise UserError(f"scikit-learn is not installed; {how_to_install('bench')}")
    if chosen.sequences < 2 * BATCH_SIZE:
        raise UserError(f"--sequences must be at least {2 * BATCH_SIZE}, not {chosen.sequences}")
    data = make_data(chosen.sequences, seed=chosen.seed)
    training, others = split(data, part=0.4, seed=chosen.seed)
    valid, test = split(others, part=0.5, seed=chosen.seed)

    config = ClassifierConfig(
        input_size=data.x_BTI.shape[2],
        hidden_sizes=(chosen.hidden_size,) * chosen.num_layers,
        classes=2,
        bidirectional=chosen.bidirectional,
        learning_rate=chosen.learning_rate,
        clip_value=chosen.clip_value,
        keep_prob=chosen.keep_prob,
    )
    best_weights = sequence_classifier.initial(config, seed=chosen.seed)
    names = ("framework", "model", "execution", "device", "seed")
    choice = Choice.create(CLASSIFIERS, **{name: getattr(chosen, name) for name in names})
    model = sequence_classifier.build(config, best_weights, choice)
    folder = chosen.log_dir or files.working_folder() / "checkpoints" / time.strftime("%Y%m%d-%H%M%S-turns")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{parameters.count_scalars(best_weights):,} parameters; tensorboard --logdir {folder}")

    best_loss, best_epoch = math.inf, 0
    rng = np.random.default_rng(chosen.seed)
    with contextlib.closing(EventFile(folder)) as event_file:
        for epoch in range(1, chosen.epochs + 1):
            losses = [model.train_step(batch) for batch in batches(training, rng)]
            row = {"train/loss": float(np.mean(model.read(losses)))}
            row |= {f"valid/{name}": value for name, value in measure(model, valid).items()}
            event_file.add_scalars(row, epoch)
            if epoch == 1:
                print(f"computed by {model.engine}")  # which depends on the batches
            print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in row.items()))
            if row["valid/loss"] < best_loss:
                best_loss, best_epoch, best_weights = row["valid/loss"], epoch, model.export_weights()

    model.load_weights(best_weights)
    score = measure(model, test)
    print(f"test accuracy {score['accuracy']:.4f}, AUC {score['auc']:.4f} (weights of epoch {best_epoch})")
    return 0


def make_data(count: int, *, seed: int) -> Batch:
    """Return some labelled sequences; label 1 turns counter-clockwise."""
    rng = np.random.default_rng(seed)
    labels_B = rng.permutation(np.arange(count, dtype=np.int32) % 2)
    lengths_B = rng.integers(SHORTEST, STEPS, count, np.int32, endpoint=True)
    turn_B1 = np.where(labels_B == 1, 1, -1)[:, None] * rng.uniform(0.1, 0.5, (count, 1))
    turn_BT = np.where(np.arange(STEPS) < lengths_B[:, None], turn_B1, -turn_B1)
    angle_BT = rng.uniform(0, 2 * np.pi, (count, 1)) + turn_BT.cumsum(axis=1)
    x_BTI = np.stack([np.cos(angle_BT), np.sin(angle_BT)], axis=2)
    x_BTI += rng.standard_normal(x_BTI.shape)
    return Batch(x_BTI.astype(np.float32), labels_B, lengths_B)


def split(data: Batch, *, part: float, seed: int) -> tuple[Batch, Batch]:
    """Return the data without a part of it, and that part, each with as many of either label."""
    kept, parted = model_selection.train_test_split(
        np.arange(len(data.labels)), test_size=part, stratify=data.labels, random_state=seed
    )
    return take(data, kept), take(data, parted)


def batches(data: Batch, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield batches in random order; all of one size, because a graph is made for each size."""
    count = len(data.labels) // BATCH_SIZE
    for rows in rng.permutation(len(data.labels))[: count * BATCH_SIZE].reshape(count, BATCH_SIZE):
        yield take(data, rows)


def take(data: Batch, rows: NDArray[np.int_]) -> Batch:
    """Return some of the sequences."""
    lengths_B = None if data.lengths_B is None else data.lengths_B[rows]
    return Batch(data.x_BTI[rows], data.labels[rows], lengths_B)


def measure(model: Classifier, data: Batch) -> dict[str, float]:
    """Return the loss in nats, the accuracy, and the area under the ROC curve."""
    log_p_BC = model.predict(data.x_BTI, data.lengths_B)
    if not np.isfinite(log_p_BC).all():
        raise DivergenceError("the predictions are no longer numbers; try a smaller --learning-rate")
    return {
        "loss": -float(log_p_BC[np.arange(len(log_p_BC)), data.labels].mean()),
        "accuracy": metrics.accuracy_score(data.labels, log_p_BC.argmax(axis=1)),
        "auc": metrics.roc_auc_score(data.labels, log_p_BC[:, 1] - log_p_BC[:, 0]),
    }


if __name__ == "__main__":
    sys.exit(main())
