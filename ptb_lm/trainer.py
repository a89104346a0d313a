"""The training loop: epochs, validation, the best weights, stopping and resuming. It knows no framework."""

import dataclasses
import math
import shlex
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ptb_lm import averaging, corpus, evaluation, parameters, runlog
from ptb_lm.backend import Arrays, Backend, Loss, State, Words
from ptb_lm.corpus import Corpus
from ptb_lm.errors import DivergenceError, UserError
from ptb_lm.interrupt import Interrupted, StopRequest
from ptb_lm.progress import Progress
from ptb_lm.rundir import RunConfig, RunDirectory, SavedState
from ptb_lm.schedule import learning_rate

READ_SECONDS = 0.5  # how often the device is waited for: to move the bar, and to notice divergence
SAVE_SECONDS = 300.0  # how much work a lost process may lose


class Trainer:
    """Trains one run.

    Args:
        run: The resolved configuration.
        corpus: The data.
        backend: The model, holding its initial weights.
        directory: Where the run's files are; it exists.
        stop: Asked before every step.
        command: The command line, for the record.
    """

    def __init__(
        self,
        run: RunConfig,
        corpus: Corpus,
        backend: Backend,
        directory: RunDirectory,
        *,
        stop: StopRequest,
        command: str,
    ) -> None:
        self.run = run
        self.config = run.hyperparameters
        self.corpus = corpus
        self.backend = backend
        self.directory = directory
        self.stop = stop
        # Taken now: at the end of a long run the checkout may be another.
        self._environment = {**runlog.environment(), **backend.environment()}
        self.progress = Progress(commands=[command], environments=[self._environment])
        self.state: State = backend.zero_state(self.config.batch_size)
        self.steps = count_steps(corpus, run)
        self.tokens = self.config.batch_size * self.config.num_steps  # a step
        self._warm = False  # the first step of a process compiles, and is not clocked
        self._entered = self._saved = time.perf_counter()

    def resume(self, command: str) -> None:
        """Go on from the run directory's newest state.

        Raises:
            UserError: There is no such state, or it belongs to another model or vocabulary.
        """
        weights, training, progress, averages = self.directory.read_state(self.corpus)
        try:
            for arrays in (weights, averages) if self._updates(progress) else (weights,):
                parameters.check(arrays, self.config, len(self.corpus.vocabulary))
            carried = (self.config.num_layers, self.config.batch_size, self.config.hidden_size)
            for name in ("h", "c"):
                if training[name].shape != carried:
                    raise UserError(f"the tensor {name!r} has shape {training[name].shape}, not {carried}")
            self.backend.load_weights(weights)
            if self._updates(progress):
                self.backend.average(1.0)  # makes room for them
                with self.backend.averaged():
                    self.backend.load_weights(averages)
            self.state = self.backend.load_training_state(training)
        except (UserError, KeyError) as error:
            raise UserError(f"{self.directory.state} does not fit this run: {error}") from None
        if progress.epoch > self.config.epochs:
            raise UserError(f"--epochs {self.config.epochs}: the run has {progress.epoch} epochs already")
        self.progress = progress
        best = self.directory.read_best()
        if progress.best_epoch and not best:
            raise UserError(f"{self.directory.weights} is missing: the best weights so far")
        if best and best["valid_perplexity"] < progress.best_perplexity:
            # The process died after it wrote these weights and before it wrote its state.
            progress.best_epoch, progress.best_perplexity = best["epoch"], best["valid_perplexity"]
        self.progress.commands.append(command)
        self.progress.environments.append(self._environment)

    def train(self) -> runlog.Row:
        """Train to the last epoch, score the test split with the best weights, and return the result.

        Raises:
            DivergenceError: A loss or gradient is not finite; the last good state is on disk.
            Interrupted: A signal asked to stop; the state is saved.
            OSError: A file cannot be written.
        """
        progress = self.progress
        first = progress.epoch == 0 and progress.step == 0
        # Imported here, because TensorBoard takes a second, and --help should not.
        from ptb_lm.scalars import Scalars

        scalars = Scalars(self.directory.path, purge_step=None if first else progress.epoch + 1)
        try:
            self._save()  # before any work: a folder that cannot be written is noticed now
            runlog.write_metrics(self.directory.metrics, progress.rows)
            rows_BL = self.backend.place(corpus.rows(self.corpus.splits["train"], self.config.batch_size))
            while progress.epoch < self.config.epochs:
                self._train_epoch(rows_BL)
                row = self._finish_epoch()
                scalars.add({tag: row[key] for tag, key in SCALARS.items()}, step=row["epoch"])
            return self._test()
        finally:
            scalars.close()

    def _train_epoch(self, rows_BL: Words) -> None:
        progress, rate = self.progress, learning_rate(self.config, self.progress.epoch)
        pending: list[Loss] = []
        description = f"epoch {progress.epoch + 1}/{self.config.epochs}"
        with runlog.progress(self.steps, description, initial=progress.step) as bar:
            self.backend.read([])
            start = time.perf_counter()
            windows = corpus.windows(rows_BL, self.config.num_steps, start=progress.step)
            for step, (x_BT, y_BT) in enumerate(windows, start=progress.step + 1):
                self.state, loss = self.backend.train_step(x_BT, y_BT, self.state, learning_rate=rate)
                self._average(progress.epoch * self.steps + step)
                pending.append(loss)
                due = time.perf_counter() - start > READ_SECONDS
                if due or not self._warm or self.stop.signal_number:
                    self._read(pending, start)
                    bar.update(len(pending))
                    bar.set_postfix(self._postfix(), refresh=False)
                    pending = []
                    self._stop_if_asked(save=True)
                    if time.perf_counter() - self._saved > SAVE_SECONDS:
                        self._save()
                    start = time.perf_counter()  # bar and files are outside the clock
            if pending:
                self._read(pending, start)

    def _average(self, steps_done: int) -> None:
        if averaging.due(self.config, steps_done):
            update = averaging.updates(self.config, steps_done)
            weight = averaging.weight(self.config, update=update, steps_an_epoch=self.steps)
            self.backend.average(weight)

    def _updates(self, progress: Progress) -> int:
        """Return how often the average of the weights has been updated."""
        return averaging.updates(self.config, progress.epoch * self.steps + progress.step)

    def _judged(self) -> AbstractContextManager[None]:
        """Return a context in which the backend's weights are those to score and to keep."""
        return self.backend.averaged() if self._updates(self.progress) else nullcontext()

    def _read(self, pending: list[Loss], start: float) -> None:
        """Wait for some steps, stop the clock, and add up what they measured."""
        progress, measured = self.progress, self.backend.read(pending)
        seconds = time.perf_counter() - start
        if self._warm:
            progress.clocked_seconds += seconds
            progress.clocked_tokens += len(pending) * self.tokens
        self._warm = True
        for nll, gradient_norm in measured:
            progress.step += 1
            if not (math.isfinite(nll) and math.isfinite(gradient_norm)):
                raise self._diverged(f"in epoch {progress.epoch + 1}, step {progress.step} of {self.steps}")
            progress.nll += nll
            progress.gradient_norms += gradient_norm

    def _finish_epoch(self) -> runlog.Row:
        """Validate, keep the weights if they are the best, and write the epoch's row."""
        progress, config = self.progress, self.config
        try:
            with self._judged():
                valid = self._perplexity("valid")
        except Interrupted:
            self._save()  # validation is done again, training is not
            raise
        if not (math.isfinite(valid) and math.isfinite(self.progress.train_perplexity(self.tokens))):
            raise self._diverged(f"at the end of epoch {progress.epoch + 1}")
        row: runlog.Row = {
            "epoch": progress.epoch + 1,
            "learning_rate": learning_rate(config, progress.epoch),
            "train_perplexity": self.progress.train_perplexity(self.tokens),
            "valid_perplexity": valid,
            "words_per_second": self.progress.words_per_second,
            "seconds": progress.clocked_seconds,
            "gradient_norm": progress.gradient_norms / self.steps,
        }
        if valid < progress.best_perplexity:
            progress.best_perplexity, progress.best_epoch = valid, row["epoch"]
            # What a resumed run reported before it went on is not true of these weights.
            self.directory.result.unlink(missing_ok=True)
            self._write_best()
        progress.rows.append(row)
        progress.next_epoch()
        self.state = self.backend.zero_state(config.batch_size)
        runlog.write_metrics(self.directory.metrics, progress.rows)
        self._save()
        runlog.say(
            f"epoch {row['epoch']:>2}/{config.epochs}  learning rate {row['learning_rate']:.4g}  perplexity: "
            f"train {row['train_perplexity']:.2f}, valid {valid:.2f}  {row['words_per_second']:,.0f} words/s"
        )
        return row

    def _test(self) -> runlog.Row:
        """Score the test split with the best weights, and with those of the last epoch, as the tutorial does.

        Nothing is saved any more: an interrupted test is done again from the state at the last epoch's end.
        """
        rows = self.progress.rows
        final: float | None = None
        weights = self.directory.read_weights(self.run, self.corpus.vocabulary)
        if self.progress.best_epoch != self.progress.epoch:
            with self._judged():
                final = self._perplexity("test")
        self.backend.load_weights(weights)
        test = self._perplexity("test")
        tokens = sum(row["words_per_second"] * row["seconds"] for row in rows)
        return {
            "test_perplexity": test,
            "valid_perplexity": self.progress.best_perplexity,
            "final_test_perplexity": test if final is None else final,
            "final_valid_perplexity": rows[-1]["valid_perplexity"],
            "best_possible_perplexity": self.corpus.bounds.get("test"),
            "best_epoch": self.progress.best_epoch,
            "epochs": self.progress.epoch,
            "words_per_second": tokens / max(sum(row["seconds"] for row in rows), 1e-9),
            "parameters": parameters.count(weights),
            "engine": self.backend.engine,
            "seconds": self._run_seconds(),
            "command": " && ".join(self.progress.commands),
            "environment": self._environment,
            "earlier_environments": self.progress.environments[:-1],
        }

    def _perplexity(self, split: str) -> float:
        return evaluation.perplexity(
            self.backend,
            self.corpus.splits[split],
            self.config,
            batch_size=evaluation.batch_size(split, self.config),
            description=split,
            check_stop=lambda: self._stop_if_asked(save=False),
        )

    def _write_best(self) -> None:
        best = {"epoch": self.progress.best_epoch, "valid_perplexity": self.progress.best_perplexity}
        with self._judged():
            weights = self.backend.export_weights()
        self.directory.write_weights(weights, self.run, self.corpus.vocabulary, best=best)

    def _save(self) -> None:
        """Write the newest training state; a state that is not finite is never written."""
        weights = self.backend.export_weights()
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise self._diverged(f"by epoch {self.progress.epoch + 1}, step {self.progress.step}")
        training = self.backend.export_training_state(self.state)
        saved = dataclasses.replace(self.progress, run_seconds=self._run_seconds())
        averages: Arrays = {}
        if self._updates(self.progress):
            with self.backend.averaged():
                averages = self.backend.export_weights()
        self.directory.write_state(SavedState(weights, training, saved, averages), corpus=self.corpus)
        self._saved = time.perf_counter()

    def _stop_if_asked(self, *, save: bool) -> None:
        # Read once: a signal may arrive at any time, and what is reported as saved must be.
        if number := self.stop.signal_number:
            if save:
                self._save()
            raise Interrupted(number)

    def _diverged(self, when: str) -> DivergenceError:
        return DivergenceError(
            f"training diverged {when}: the loss, a gradient or a weight is not finite; the last good state "
            f"is kept, and {shlex.join(['--resume', str(self.directory.path)])} with a smaller "
            "--learning-rate goes on from it"
        )

    def _run_seconds(self) -> float:
        return self.progress.run_seconds + time.perf_counter() - self._entered

    def _postfix(self) -> dict[str, Any]:
        perplexity = self.progress.train_perplexity(self.tokens)
        return {
            "loss": f"{math.log(perplexity):.3f}",
            "perplexity": f"{perplexity:.1f}",
            "wps": f"{self.progress.words_per_second:,.0f}",
        }


# TensorBoard tag -> column of metrics.jsonl.
SCALARS = {
    "perplexity/train": "train_perplexity",
    "perplexity/valid": "valid_perplexity",
    "learning_rate": "learning_rate",
    "words_per_second": "words_per_second",
    "gradient_norm": "gradient_norm",
}


def count_steps(corpus_: Corpus, run: RunConfig) -> int:
    """Return the training steps of an epoch, after checking that every split is long enough.

    Raises:
        UserError: A split is too short.
    """
    config = run.hyperparameters
    for split in ("valid", "test"):
        rows = evaluation.batch_size(split, config)
        corpus.check_evaluation(corpus_.splits[split], batch_size=rows, split=split)
    return corpus.count_windows(
        corpus_.splits["train"], batch_size=config.batch_size, num_steps=config.num_steps
    )
