"""How much faster sentences are scored side by side than one after the other, and how much they could be.

    python -m benchmarks.studies scoring --config medium --precision fp32 --out DIR

Sentences are of random words and lengths, weights are random, and both ways take turns in one process. What
batches could reach is the machine's fastest matrix products, measured beside each round, over the products of
a word.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.studies import write_rows
from ptb_lm.bench.language_workloads import PTB_VOCABULARY
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common import cli, host
from ptb_lm.common.markdown_tables import write_markdown
from ptb_lm.data.vocabulary import EOS, Vocabulary
from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.model import parameters
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import RECIPES

SENTENCES, ALONE = 1000, 20  # side by side, and one after the other
TITLES = (
    *("words of a sentence", "one after the other:", "side by side:", "ratio (lowest to highest round):"),
    *("of the fastest products:", "ratio at their rate:"),
)
LONGEST = (10, 40)  # words of a sentence; its length is any up to this, each as likely


def run(arguments: argparse.Namespace) -> int:
    """Print a table of words per second, and keep it with its rows in OUT; return the exit status."""
    config = RECIPES["default"][arguments.config].replace(vary_num_steps=False, optimizer="sgd")
    task = LanguageTask(config=config, vocabulary_size=PTB_VOCABULARY)
    choice = Choice.create(model=arguments.model, device="cpu", precision=arguments.precision)
    words = Vocabulary([EOS, *(f"w{number}" for number in range(1, PTB_VOCABULARY))])
    model = LanguageModel(config, parameters.draw_initial(config, PTB_VOCABULARY, seed=1), choice, words)
    gflop = 2 * task.multiply_adds / task.items / 1e9  # of a word
    rows = []
    for longest in LONGEST:
        texts = _texts(words, longest)
        for timed in range(-1, arguments.rounds):  # the first one warms up
            row = {
                "longest": longest,
                "alone": _rate(model, [[text] for text in texts[:ALONE]]),
                "batched": _rate(model, [texts]),
                "limit": _gflops(config.hidden_sizes[-1], arguments.precision) / gflop,
            }
            if timed >= 0:
                rows.append(row)
    text = f"{model.backend.engine}\n\n{table(rows)}"
    cli.print_line(text)
    facts = {"command": arguments.command, **host.environment(), **model.backend.environment()}
    write_rows(arguments.out, (facts, *rows), table_md=text)
    return 0


def _texts(vocabulary: Vocabulary, longest: int) -> list[str]:
    stream = np.random.default_rng(longest)
    lengths = stream.integers(1, longest + 1, size=SENTENCES)
    return [
        " ".join(vocabulary.words[i] for i in stream.integers(1, len(vocabulary), size=length))
        for length in lengths
    ]


def _rate(model: LanguageModel, calls: list[list[str]]) -> float:
    """Return words per second, every `<eos>` among them."""
    started = time.perf_counter()
    words = sum(model.score(sentences).tokens for sentences in calls)
    return words / (time.perf_counter() - started)


def _gflops(hidden: int, precision: str) -> float:
    """Return the machine's rate: of large products, of the softmax's, of a layer's input's."""
    from ptb_lm.torch_backend import machine_speed

    products = tuple(
        (2048, k, n, "") for k, n in ((2048, 2048), (hidden, PTB_VOCABULARY), (hidden, 4 * hidden))
    )
    return float(machine_speed.measure_products("cpu", precision, products)["gflops"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of some rounds: the medians, and the lowest and the highest ratio of a round.

    Args:
        rows: Words per second of a round: alone, batched, and what the fastest products allow; and the
            longest sentence that there was.
    """
    lines = []
    for longest in LONGEST:
        some = [row for row in rows if row["longest"] == longest]
        ratios = [row["batched"] / row["alone"] for row in some]
        alone, batched = (statistics.median(row[way] for row in some) for way in ("alone", "batched"))
        share = statistics.median(row["batched"] / row["limit"] for row in some)
        at_limit = statistics.median(row["limit"] / row["alone"] for row in some)
        ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        numbers = (f"{alone:,.0f}", f"{batched:,.0f}", ratio, f"{share:.0%}", f"{at_limit:.1f}")
        lines.append([f"1 to {longest}", *numbers])
    return write_markdown(TITLES, lines)
