"""The display of a training: how it begins, a bar or lines of a log, and what it has reached."""

import contextlib
import copy
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import cli, host
from ptb_lm.common.flags import path_word
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import Backend
from ptb_lm.model.config import Config
from ptb_lm.training import metrics, run_data
from ptb_lm.training.evaluation import format_perplexity, perplexity_from_nll
from ptb_lm.training.metrics import JsonObject, Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensorboard import EventFile
from ptb_lm.training.window_plan import WindowPlan

LOG_SECONDS = 30.0  # between two lines of a log
POINTS_PER_EPOCH = 50  # of an epoch in TensorBoard, at most; it shows a thousand of a curve
UNKNOWN_WIDTH = 80  # columns of a terminal that does not tell
UNKNOWN_TIME = "?"  # stands for a time that cannot be known yet
SHORTEST_BAR = 10  # columns
# How a time is shown: unit, its seconds, decimals, and how many of it are shown in the next unit.
TIME_UNITS = (
    ("s", 1, 0, 99.5),
    ("m", 60, 0, 99.5),
    ("h", 3600, 1, 9.95),
    ("h", 3600, 0, 99.5),
    ("d", 86400, 0, math.inf),
)
# Facts of an environment that affect the last digits of numbers.
ROUNDING_FACTS = (
    *("numpy", "torch", "tensorflow"),
    *("device", "kernels", "float32_products", "reduce_precision", "threads"),
)


def announce(
    run: RunConfig, data: Corpus, model: Backend, folder: Path, *, environment: JsonObject, load: host.Load
) -> None:
    """Say what is trained, on what, and where; and how it could be faster.

    Args:
        run: Configuration of the run.
        data: Text of the run.
        model: Model of the run.
        folder: Folder of the run.
        environment: Versions and machine facts of this session.
        load: Load of the machine since the command started.
    """
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in data.splits.items())
    cli.try_print_line(f"data {run.data}: {tokens} tokens, vocabulary {len(data.vocabulary):,} words")
    for line in run_data.report(run, data):
        cli.try_print_line(line)
    shapes = parameters.shapes(run.hyperparameters, len(data.vocabulary)).values()
    cli.try_print_line(
        f"model {run.choice.model}, config {run.preset}, recipe {run.recipe}: "
        f"{sum(map(math.prod, shapes)):,} parameters, {model.engine}; precision {run.choice.precision}"
    )
    for what in ("processes", "devices"):
        if count := environment.get(what):  # of one of them, if there are several
            rows = run.hyperparameters.batch_size // count
            cli.try_print_line(f"{count} {what}, {rows} row{'s' * (rows > 1)} of the batch each")
    cli.try_print_line(f"run directory {folder}")
    threads = environment.get("threads")
    busy = load.hint(threads) if isinstance(threads, int) and model.ranks.size == 1 else None
    for hint in [*model.hints, *filter(None, [busy])]:
        cli.try_print_line(f"hint: {hint}")


def print_resumed(progress: Progress, before: Config, config: Config, plan: WindowPlan) -> None:
    """Print where a resumed run continues, and what differs from before.

    Args:
        progress: Progress of the run.
        before: Hyper-parameters of the run until now.
        config: Hyper-parameters from now on.
        plan: The windows of its epochs.
    """
    if progress.epoch == config.epochs:
        cli.try_print_line(f"all {config.epochs} epochs are done; only the test is left")
    else:
        epoch, step = progress.epoch, progress.step  # of the next step that is trained
        if step < plan.steps(epoch):
            cli.try_print_line(f"continues in epoch {epoch + 1}, step {step + 1}")
        else:
            cli.try_print_line(f"continues with the validation of epoch {epoch + 1}")
            epoch, step = epoch + 1, 0
        if config.schedule != "exponential" and config.epochs != before.epochs and epoch < config.epochs:
            rate = config.learning_rate_at(epoch, step, plan.steps(epoch))
            cli.try_print_line(
                f"--schedule {config.schedule} ends with the last epoch: {config.epochs} epochs in place of "
                f"{before.epochs} change the learning rate, which is {rate:.3g} now"
            )
    # The masks of a run that had no dropout are the first ones.
    has_dropout = before.has_dropout and config.has_dropout
    print_changes(*progress.environments[-2:], has_dropout=has_dropout)


def print_changes(before: dict[str, Any], now: dict[str, Any], *, has_dropout: bool) -> None:
    """Print changes since the run stopped that affect the masks of dropout, or the last digits of numbers.

    Args:
        before: Environment of the session before.
        now: Environment of this session.
        has_dropout: True if the run has dropout.
    """
    differences = [
        f"{name.replace('_', ' ')} {before[name]} before, {now[name]} now"
        for name in ROUNDING_FACTS
        if name in before and name in now and before[name] != now[name]
    ]
    masks = ", so dropout draws other masks from now on" if has_dropout else ""
    for name in ("processes", "devices"):
        if before.get(name, 1) != now.get(name, 1):
            cli.try_print_line(
                f"the number of {name} changed from {before.get(name, 1)} to {now.get(name, 1)}{masks}"
            )
    # TensorFlow's stream goes on where it was, on every device.
    if "torch" in now and ("cuda" in before) != ("cuda" in now):
        where = ("a CPU", "a GPU") if "cuda" in now else ("a GPU", "a CPU")
        cli.try_print_line(f"the run moved from {where[0]} to {where[1]}{masks}")
    if differences:
        cli.try_print_line(
            f"from now on the numbers round differently from a run that never stopped: "
            f"{'; '.join(differences)}"
        )


def report(result: dict[str, Any], directory: RunDirectory) -> None:
    """Say what a run has reached."""
    bound = result.get("best_possible_perplexity")
    best = f"; the best any model can do is {bound:.2f}" if bound else ""
    cli.try_print_line(
        f"test perplexity {format_perplexity(result['test_perplexity'])}{best} "
        f"(valid {format_perplexity(result['valid_perplexity'])}, "
        f"epoch {result['best_epoch']}; {result['words_per_second']:,.0f} words/s; "
        f"{result['seconds']:,.0f} s){_final_epoch(result)}"
    )
    run = path_word(directory.path)
    cli.try_print_line(
        f"written to {directory.result_path}; next: {cli.command_name('evaluate')} {run} --text FILE, "
        f"{cli.command_name('score')} {run} FILE or {cli.command_name('generate')} {run}"
    )


def _final_epoch(result: dict[str, Any]) -> str:
    """Return the scores of the last epoch's weights, if they are not the best ones."""
    test, valid = result["final_test_perplexity"], result["final_valid_perplexity"]
    if (result["epochs"], valid) == (result["best_epoch"], result["valid_perplexity"]):
        return ""
    return f"; the last epoch's weights: test {format_perplexity(test)}, valid {format_perplexity(valid)}"


class Display:
    """Shows the progress of a training: a bar at a terminal, lines in a log, points in TensorBoard.

    Args:
        progress: Progress of the run.
        config: Hyper-parameters of the run.
        plan: Windows of the run.
        log_seconds: Time between two lines of a log, which is printed if there is no terminal.
        event_file: TensorBoard's file.
    """

    def __init__(
        self,
        progress: Progress,
        config: Config,
        plan: WindowPlan,
        *,
        log_seconds: float,
        event_file: EventFile,
    ) -> None:
        self.progress, self.config, self.plan = progress, config, plan
        self.log_seconds, self.event_file = log_seconds, event_file
        self._logged = time.perf_counter()  # when the newest line was printed

    @contextlib.contextmanager
    def epoch(self, *, validation_seconds: float) -> Iterator[None]:
        """Show an epoch in this context, from its first step, or the step where a run continues, to its end.

        Args:
            validation_seconds: Duration of the validation after an epoch; 0 if it is not known yet.
        """
        self._validation_seconds = validation_seconds
        self.steps = self.plan.steps(self.progress.epoch)
        self._point = copy.copy(self.progress)  # where the newest point is
        self._bar = cli.progress_bar(self.steps, initial=self.progress.step, bar_format=fit_bar([], 0))
        with self._bar:
            yield

    def update(self) -> None:
        """Show the steps that have been done since the last time."""
        step = self.progress.step
        if not self._bar.disable:
            self._bar.n = step
            self._bar.bar_format = fit_bar(self._facts(), self._bar.format_dict["ncols"] or UNKNOWN_WIDTH)
            self._bar.refresh()
        elif sys.stdout is not None and time.perf_counter() - self._logged >= self.log_seconds:
            self._logged = time.perf_counter()
            cli.try_print_line("  ".join(self._facts()))
        if step == self.steps or step - self._point.step >= self.steps / POINTS_PER_EPOCH:
            epoch = self.progress.epoch
            tokens = self.plan.tokens(epoch, step) - self.plan.tokens(epoch, self._point.step)
            values = metrics.step_scalars(self._point, self.progress, tokens=tokens, rate=self._rate())
            self.event_file.add_scalars(values, step=self.plan.steps_before(epoch) + step)
            self._point = copy.copy(self.progress)

    def _facts(self) -> list[str]:
        """Return facts about where the run is, the most important ones first; a step of the epoch is done."""
        progress, config, steps = self.progress, self.config, self.steps
        done, tokens = (self.plan.tokens(progress.epoch, count) for count in (progress.step, steps))
        speed = progress.words_per_second
        a_word = 1 / speed if speed else math.nan  # nothing is clocked yet
        epoch_seconds = (tokens - done) * a_word + self._validation_seconds
        epochs_after = config.epochs - progress.epoch - 1
        run_seconds = epoch_seconds + epochs_after * (tokens * a_word + self._validation_seconds)
        loss = progress.nll / done
        return [
            f"epoch {progress.epoch + 1}/{config.epochs}",
            f"{100 * progress.step // steps}%",
            f"ppl {_short(perplexity_from_nll(loss, 1))}",
            f"left {duration(run_seconds)}, epoch {duration(epoch_seconds)}",
            f"loss {loss:.3f}",
            f"{speed:,.0f} words/s",
            f"lr {self._rate():.4g}",
            f"step {progress.step:,}/{steps:,}",
        ]

    def _rate(self) -> float:
        """Return the learning rate of the newest step."""
        step = max(self.progress.step - 1, 0)
        return self.config.learning_rate_at(self.progress.epoch, step, self.steps)


def fit_bar(facts: Sequence[str], columns: int) -> str:
    """Return tqdm's format of a bar with as many facts as fit so many columns; none of them is cut."""
    while len(text := " ".join(facts)) > max(columns, 0):
        facts = facts[:-1]
    if columns - len(text) > SHORTEST_BAR:
        return " ".join([*facts[:2], "{bar}", *facts[2:]])
    return text or " "  # without a format tqdm has one of its own


def duration(seconds: float) -> str:
    """Return a time in at most four characters and its unit: 95s, 12m, 1.8h, 37h, 12d."""
    for name, unit, digits, limit in TIME_UNITS:
        if seconds / unit < limit:
            return f"{seconds / unit:.{digits}f}{name}"
    return UNKNOWN_TIME  # it is not finite


def _short(perplexity: float) -> str:
    if perplexity < 999.95:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 1e7 else f"{perplexity:.1e}"
