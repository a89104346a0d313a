"""Words per second of a model beside a plain torch loop of the same sizes, interleaved in one process.

    python scripts/speed_vs_plain.py --config small --model cudnn --data data/ptb --out results/NAME

The plain loop is what people write: nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_ and SGD.
Both train on the same windows of the first epoch, in turn, a block of steps each; the ratio is taken block by
block, so that a machine that speeds up or slows down does so for both. The first block of each is warm-up.
"""

import argparse
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ptb_lm import backend, corpus, datasets, parameters, runlog
from ptb_lm.config import PRESETS, Config
from ptb_lm.files import atomic_write
from ptb_lm.text import Ids

Windows = Sequence[tuple[Ids, Ids]]


class PlainModel(nn.Module):
    """The language model of torch's own modules."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        hidden, drop = config.hidden_size, 1 - config.keep_prob
        self.embedding = nn.Embedding(vocabulary_size, hidden)
        self.lstm = nn.LSTM(hidden, hidden, config.num_layers, dropout=drop)
        self.linear = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(drop)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -config.init_scale, config.init_scale)

    def forward(self, x_TB: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the logits [T, B, V] and the state."""
        output_TBH, state = self.lstm(self.dropout(self.embedding(x_TB)), state)
        return self.linear(self.dropout(output_TBH)), state


class PlainLoop:
    """Trains a PlainModel with SGD on the CPU."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        self.config = config
        self.model = PlainModel(config, vocabulary_size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.learning_rate)
        shape = (config.num_layers, config.batch_size, config.hidden_size)
        self.state = (torch.zeros(shape), torch.zeros(shape))

    def train(self, windows: Windows) -> float:
        """Train on some windows; return the negative log likelihood of their targets, in nats."""
        total = 0.0
        for x_BT, y_BT in windows:
            x_TB, y_TB = (torch.from_numpy(ids.T.astype(np.int64)) for ids in (x_BT, y_BT))
            self.state = (self.state[0].detach(), self.state[1].detach())
            logits_TBV, self.state = self.model(x_TB, self.state)
            mean = nn.functional.cross_entropy(logits_TBV.flatten(0, 1), y_TB.flatten())
            self.optimizer.zero_grad()
            (mean * self.config.num_steps).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            total += mean.item() * y_BT.size
        return total


class OurLoop:
    """Trains a backend as the trainer does."""

    def __init__(self, config: Config, vocabulary_size: int, model: str) -> None:
        weights = parameters.initial(config, vocabulary_size, seed=1)
        self.learning_rate = config.learning_rate
        self.backend = backend.build(
            config, weights, framework="torch", model=model, device="cpu", precision="fp32", seed=1
        )
        self.state = self.backend.zero_state(config.batch_size)

    def train(self, windows: Windows) -> float:
        """Train on some windows; return the negative log likelihood of their targets, in nats."""
        losses = []
        for x_BT, y_BT in windows:
            self.state, loss = self.backend.train_step(
                x_BT, y_BT, self.state, learning_rate=self.learning_rate
            )
            losses.append(loss)
        return sum(measured.nll for measured in self.backend.read(losses))


def main() -> None:
    """Measure, print a summary, and write OUT/result.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", choices=tuple(PRESETS), default="small")
    parser.add_argument("--model", choices=backend.MODELS, default="cudnn")
    parser.add_argument("--data", default="ptb")
    parser.add_argument(
        "--block", type=int, default=50, help="steps of one loop before it is the other's turn"
    )
    parser.add_argument("--steps", type=int, help="how many steps (default: the whole first epoch)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    config, loaded = PRESETS[arguments.config], datasets.load(arguments.data)
    rows_BL = corpus.rows(loaded.splits["train"], config.batch_size)
    windows = itertools.islice(corpus.windows(rows_BL, config.num_steps), arguments.steps)
    ours = OurLoop(config, len(loaded.vocabulary), arguments.model)
    loops: dict[str, PlainLoop | OurLoop] = {
        "plain": PlainLoop(config, len(loaded.vocabulary)),
        "ours": ours,
    }
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    nll, tokens = dict.fromkeys(loops, 0.0), 0
    while block := list(itertools.islice(windows, arguments.block)):
        words = sum(y_BT.size for _, y_BT in block)
        tokens += words
        for name, loop in loops.items():
            start = time.perf_counter()
            nll[name] += loop.train(block)
            speeds[name].append(words / (time.perf_counter() - start))
    ratios = sorted(
        ours / plain for ours, plain in list(zip(speeds["ours"], speeds["plain"], strict=True))[1:]
    )
    result = {
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        "blocks": len(ratios),
        "steps_per_block": arguments.block,
        "words_per_second_median": {name: statistics.median(values[1:]) for name, values in speeds.items()},
        "train_perplexity": {name: runlog.perplexity(value, tokens) for name, value in nll.items()},
        "words_per_second": speeds,
        "command": shlex.join(["python", *sys.argv]),
        "environment": {**runlog.environment(), **ours.backend.environment()},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "result.json", json.dumps(result, indent=1) + "\n")
    medians = result["words_per_second_median"]
    print(
        f"{arguments.config}, {arguments.model}: {medians['ours']:,.0f} words/s, "
        f"plain {medians['plain']:,.0f}; ratio {result['ratio_median']:.3f} (median of {len(ratios)} blocks)"
    )


if __name__ == "__main__":
    main()
