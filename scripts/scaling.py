"""The bytes that several devices send in a training step, and their gain: computed, not measured.

    python scripts/scaling.py --faster 10                    # of devices ten times as fast as the published
    python scripts/scaling.py --config medium --ranks 16 --gigabytes 12.5 --step-milliseconds 20

A sum over R ranks (a ring) has each send 2 (R - 1) / R of its bytes, and what is gathered goes R - 1 times.
The time on the wire is that over the bandwidth; latencies are left out. The softmax's gradient travels while
the layers are differentiated, as long as that takes; all else is waited for.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptb_lm.common import cli
from ptb_lm.common.markdown_tables import write_markdown
from ptb_lm.model import parameters
from ptb_lm.model.config import Config
from ptb_lm.model.presets import PRESETS

WORDS = 10_000  # of Penn Treebank
# The part of a step in which the softmax's gradient may travel, the layers' backward pass: two of three
# passes of the same work, where the layers are about half of it all.
HIDDEN_SHARE = 1 / 3

# GB/s that a device can send, as the makers state them, both ends at once.
LINKS = {
    "NVLink of an H100": 450.0,
    "PCIe 4.0 x16": 32.0,
    "100 Gbit/s Ethernet": 12.5,
    "10 Gbit/s Ethernet": 1.25,
}
# Published words a second of one device (benchmarks/published/figures.csv): cudnn on a Titan X.
RATES = {"small": 49_000, "medium": 24_200, "large": 10_500}
BYTES = {"fp32": 4, "bf16": 2}
SENT = (
    *("MB a rank sends in a step", "softmax", "layers"),
    *("embedding, rows", "embedding, matrix", "total, rows"),
)


class Sent(NamedTuple):
    """Bytes that a rank sends in a step."""

    softmax: float
    layers: float
    embedding: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def count_sent(config: Config, ranks: int, *, number: int, rows: bool, words: int = WORDS) -> Sent:
    """Return what a rank sends.

    Args:
        config: The hyper-parameters, with the batch of all ranks.
        ranks: R.
        number: Bytes of one.
        rows: True if the embedding's gradient goes as a row for each word of the window; else as a matrix.
        words: Words of the vocabulary.
    """
    sizes = {name: math.prod(shape) for name, shape in parameters.shapes(config, words).items()}
    softmax = words * (config.hidden_sizes[-1] + 1)
    layers = sum(size for name, size in sizes.items() if name.startswith(config.cell))
    ring = 2 * (ranks - 1) / ranks
    embedding = ring * number * words * config.embedding_width
    if rows:
        tokens = config.batch_size * config.num_steps / ranks
        embedding = (ranks - 1) * tokens * (number * config.embedding_width + 8)
    return Sent(ring * number * softmax, ring * number * layers, embedding)


def gain(config: Config, ranks: int, what: Sent, *, step: float, gigabytes: float) -> float:
    """Return the words a second of all ranks over those of one.

    Args:
        config: The hyper-parameters.
        ranks: R.
        what: Each sends.
        step: Seconds of a step of one rank with its rows.
        gigabytes: A second on the wire.
    """
    seconds = {name: size / (gigabytes * 1e9) for name, size in what._asdict().items()}
    waited = max(0.0, seconds.pop("softmax") - HIDDEN_SHARE * step) + sum(seconds.values())
    return ranks * step / (step + waited)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", choices=RATES, help="a preset (default: all)")
    parser.add_argument("--ranks", type=cli.whole_number(1), default=8, help="number of devices (default: 8)")
    parser.add_argument(
        "--gigabytes",
        type=cli.positive_number,
        help="gigabytes a second that a device sends (default: a table)",
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--step-milliseconds", type=cli.positive_number, help="of one device (default: published rates)"
    )
    speed.add_argument(
        "--faster",
        type=cli.positive_number,
        default=1.0,
        help="speed of a device as a multiple of the published one",
    )
    arguments = parser.parse_args(argv)
    links = {f"{arguments.gigabytes} GB/s": arguments.gigabytes} if arguments.gigabytes else LINKS
    presets = [arguments.config] if arguments.config else list(RATES)
    lines = []
    for name in presets:
        for precision, number in BYTES.items():
            # Weak scaling: each rank has the preset's batch.
            config = PRESETS[name].replace(batch_size=PRESETS[name].batch_size * arguments.ranks)
            rows = count_sent(config, arguments.ranks, number=number, rows=True)
            whole = count_sent(config, arguments.ranks, number=number, rows=False)
            cells = (rows.softmax, rows.layers, rows.embedding, whole.embedding, rows.total)
            lines.append([f"{name}, {precision}", *(f"{size / 1e6:.1f}" for size in cells)])
    print(write_markdown(SENT, lines))
    lines = []
    for name in presets:
        config = PRESETS[name].replace(batch_size=PRESETS[name].batch_size * arguments.ranks)
        step = PRESETS[name].batch_size * PRESETS[name].num_steps / RATES[name] / arguments.faster
        if arguments.step_milliseconds:
            step = arguments.step_milliseconds / 1e3
        for precision, number in BYTES.items():
            for how, as_rows in (("rows", True), ("matrix", False)):
                what = count_sent(config, arguments.ranks, number=number, rows=as_rows)
                gains = (
                    gain(config, arguments.ranks, what, step=step, gigabytes=wire) for wire in links.values()
                )
                lines.append([f"{name}, {precision}, {how}", *(f"{each:.1f}" for each in gains)])
    print(write_markdown(["times one device", *links], lines), end="")


if __name__ == "__main__":
    main()
