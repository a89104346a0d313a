"""How fast runs that differ by rounding alone drift apart: loss by loss, on real text, on the CPU.

    python -m benchmarks.studies divergence --out DIR basic/fp64 cudnn/fp64 cudnn/fp32

A variant is MODEL/PRECISION of torch; `/nudged` moves one initial weight by one unit in its last float32
place. All start from the same weights and see the same windows; each loss is compared with the first
variant's.
"""

import argparse
import itertools
from typing import Any

import numpy as np

from benchmarks.studies import write_rows
from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model import backend, parameters
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.presets import PRESETS


def run(arguments: argparse.Namespace) -> int:
    """Train the variants side by side, print and keep their differences; return the exit status."""
    config, loaded = PRESETS[arguments.config], corpus.load(arguments.data)
    models = {
        variant: _build(variant, config, len(loaded.vocabulary))
        for variant in dict.fromkeys(arguments.variants)
    }
    states = {variant: model.zero_state(config.batch_size) for variant, model in models.items()}
    windows = corpus.windows(corpus.rows(loaded.splits["train"], config.batch_size), config.num_steps)
    rows = []
    print("step  loss   relative difference of", ", ".join(arguments.variants[1:]))
    for step, (x_BT, y_BT) in enumerate(itertools.islice(windows, arguments.steps)):
        losses = {}
        for variant, model in models.items():
            states[variant], loss = model.train_step(
                x_BT, y_BT, states[variant], learning_rate=config.learning_rate
            )
            losses[variant] = model.read([loss])[0].nll / y_BT.size
        first = losses[arguments.variants[0]]
        differences = {variant: abs(losses[variant] / first - 1) for variant in arguments.variants[1:]}
        rows.append({"step": step, "loss": first, **differences})
        if step % 10 == 0:
            print(f"{step:>4}  {first:.3f} ", *(f"{value:.0e}" for value in differences.values()), flush=True)
    write_rows(arguments.out, ({"command": arguments.command, **host.environment()}, *rows))
    return 0


def _build(variant: str, config: Config, vocabulary_size: int) -> Any:
    parts = variant.split("/")
    if len(parts) < 2 or parts[2:] not in ([], ["nudged"]):
        raise UserError(f"{variant}: a variant is MODEL/PRECISION or MODEL/PRECISION/nudged")
    model, precision, *nudged = parts
    weights = parameters.draw_initial(config, vocabulary_size, seed=1)
    if nudged:
        kernel = weights["lstm.0.kernel"]
        kernel[0, 0] = np.nextafter(kernel[0, 0], np.float32(1))
    return backend.build(config, weights, Choice.create(model=model, device="cpu", precision=precision))
