"""Draw runs' learning curves, each into RUN/curve.svg: perplexity and words a second by epoch.

The same run gives the same file, to the byte, by the same version of matplotlib.
"""

import io
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_lm import cli
from ptb_lm.bench.reporting.plots import FASTER, INK, MISSING, RULE, SLOWER
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.results import kept_runs
from ptb_lm.results.kept_runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROG = "python -m ptb_lm.results.curve"

# Column of metrics.jsonl -> how its line looks.
PERPLEXITIES: dict[str, dict[str, Any]] = {
    "train_perplexity": {"label": "train", "color": SLOWER, "linestyle": "--", "marker": "s"},
    "valid_perplexity": {"label": "valid", "color": FASTER, "marker": "o"},
    "unaveraged_valid_perplexity": {"label": "valid, unaveraged", "color": FASTER, "linestyle": ":"},
}


def main() -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, _draw_all)


def _draw_all() -> int:
    parser = cli.Parser(prog=PROG, description="Draw learning curves, each into RUN/curve.svg.")
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="run directories; default: all runs in results"
    )
    given: list[Path] = parser.parse_args().runs
    for run in [kept_runs.read(path) for path in given] if given else kept_runs.read_all(kept_runs.RESULTS):
        path = run.folder / "curve.svg"
        atomic_write(path, svg(run))
        print(path)
    return 0


def svg(run: Run) -> str:
    """Draw a run's learning curves.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(f"there is no picture; {MISSING}") from None
    with _style():
        figure = Figure(figsize=(5.6, 4.2))
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        _draw_perplexities(upper, run)
        _draw_speed(lower, run)
        upper.set_title(_title(run), fontsize=9, loc="left")
        figure.align_ylabels()
        figure.tight_layout(pad=0.5)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "ptb_lm",
            "text.parse_math": False,
            "font.size": 9,
            "lines.linewidth": 1.4,
            "lines.markersize": 3,
            "text.color": INK,
            "axes.edgecolor": RULE,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": RULE,
            "grid.linewidth": 0.6,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    ):
        yield


def _title(run: Run) -> str:
    planned = run.config.hyperparameters.epochs
    so_far = "" if run.result else f", {len(run.epochs)} of {planned} epochs"
    return f"{run.folder.resolve().name}{so_far}"


def _draw_perplexities(axes: "Axes", run: Run) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for column, look in PERPLEXITIES.items():
        if any(column in row for row in run.epochs):
            axes.plot(*_points(run, column), gid=column, **look)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 3 * low  # so that powers of ten and their simple multiples may all be outside
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6) if few else LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("perplexity")
    axes.tick_params(length=0)
    axes.legend(frameon=False)


def _draw_speed(axes: "Axes", run: Run) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    epochs, speeds = _points(run, "words_per_second")
    axes.plot(epochs, speeds, gid="words_per_second", color=INK, marker="o")
    axes.set_ylim(0, 1.1 * max(speeds) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("words/s")
    axes.set_xlim(0.5, len(run.epochs) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("epoch")
    axes.tick_params(length=0)


def _points(run: Run, column: str) -> tuple[list[int], list[float]]:
    """Return epochs and values; the line has a gap where there is none, or one beyond a float."""
    values = [row.get(column, math.nan) for row in run.epochs]
    return [row["epoch"] for row in run.epochs], [v if math.isfinite(v) else math.nan for v in values]


if __name__ == "__main__":
    sys.exit(main())
