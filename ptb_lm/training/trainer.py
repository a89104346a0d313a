"""The training loop: epochs, validation, the best weights, stopping. It knows no framework."""

import math
import time

from ptb_lm.common import cli, host
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus, Words
from ptb_lm.model import parameters
from ptb_lm.model.backend import Backend, Loss, State
from ptb_lm.training import metrics, run_data, scoring
from ptb_lm.training.averaging_schedule import Averages
from ptb_lm.training.interrupt import Interrupted, StopRequest
from ptb_lm.training.progress import Progress
from ptb_lm.training.progress_display import LOG_SECONDS, Log, Watch
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.saves import Saves
from ptb_lm.training.scalars import Scalars
from ptb_lm.training.schemas import Row
from ptb_lm.training.state import diverged, restore
from ptb_lm.training.step_sums import StepSums

READ_SECONDS = 0.5  # how often the device is waited for: to move the bar, and to notice divergence


class Trainer:
    """Trains one run.

    Attributes:
        environment: Versions and machine facts, for the record.

    Args:
        run: The resolved configuration.
        corpus: The data.
        backend: The model, holding its initial weights.
        directory: Where the run's files are; it exists.
        stop: Asked before every step.
        command: The command line, for the record.
        started: When the command was, by time.perf_counter.
        log_seconds: Seconds between two progress lines if there is no terminal.
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
        started: float,
        log_seconds: float = LOG_SECONDS,
    ) -> None:
        self.run = run
        self.config = run.hyperparameters
        self.corpus = corpus
        self.backend, self.ranks = backend, backend.ranks
        self.directory = directory
        self.stop = stop
        # Taken now: at the end of a long run the checkout may be another.
        self.environment = {**host.environment(), **backend.environment()}
        self.progress = Progress(commands=[command], environments=[self.environment])
        self.rows = self.ranks.share(self.config.batch_size)  # those of the batch that this process trains
        self.state: State = self._zero_state()
        self.steps = run_data.count_steps(corpus, self.config)
        self.averages = Averages(backend, self.config, steps_an_epoch=self.steps)
        self._sums = StepSums(
            backend, directory, self.config, self.environment, steps=self.steps, started=started
        )
        self._log = Log(log_seconds)
        self._validation_seconds = 0.0  # of the newest epoch's; 0 before there was one
        self._entered = time.perf_counter()
        self._saves = Saves(
            directory, backend, self.averages, run=run, corpus=corpus, run_seconds=self._run_seconds
        )

    def resume(self, command: str) -> None:
        """Continue from the newest state of the run directory.

        Raises:
            UserError: There is no such state, or it belongs to another model or vocabulary.
        """
        self.state, self.progress = restore(
            self.directory, self.backend, self.averages, run=self.run, corpus=self.corpus
        )
        self.progress.commands.append(command)
        # A state may say how to compute.
        self.environment |= self.backend.environment()
        self.progress.environments.append(self.environment)

    def train(self) -> Row:
        """Train to the last epoch, score the test split with the best weights, and return the result.

        Raises:
            DivergenceError: A loss or gradient is not finite; the last good state is on disk.
            Interrupted: A signal asked to stop; the state is saved.
            UserError: There is not enough memory for a step; the newest state is on disk.
            OSError: A file cannot be written.
        """
        progress = self.progress
        done = self._steps_done()
        resumed = len(progress.environments) > 1
        scalars = self.directory.scalars(purge_step=done + 1 if resumed else None)
        try:
            self._save()  # before any work: a folder that cannot be written is noticed now
            self.directory.write_metrics(progress.rows)
            scalars.begin(self.run.to_json(), step=done)
            all_BL = corpus.rows(self.corpus.splits["train"], self.config.batch_size)
            rows_BL = self.backend.place(all_BL[self.rows])
            while progress.epoch < self.config.epochs:
                self._train_epoch(rows_BL, scalars)
                row = self._finish_epoch()
                scalars.add(metrics.scalars(row), step=self._steps_done())
            result = self._test()
            scalars.add(metrics.scalars_at_the_end(result), step=self._steps_done())
            scalars.end(step=self._steps_done())
            return result
        finally:
            scalars.close()

    def _train_epoch(self, rows_BL: Words, scalars: Scalars) -> None:
        progress, rate = self.progress, self.config.learning_rate_in(self.progress.epoch)
        pending: list[Loss] = []
        watch = Watch(
            progress,
            self.config,
            steps=self.steps,
            log=self._log,
            scalars=scalars,
            validation_seconds=self._validation_seconds,
        )
        with watch:
            self.backend.read([])
            start = time.perf_counter()
            windows = corpus.windows(rows_BL, self.config.num_steps, start=progress.step)
            for step, (x_BT, y_BT) in enumerate(windows, start=progress.step + 1):
                self.state, loss = self.backend.train_step(x_BT, y_BT, self.state, learning_rate=rate)
                self.averages.move(progress.epoch * self.steps + step)
                pending.append(loss)
                now = time.perf_counter()
                # One clock may be ahead of the others, and one process alone may hear a signal.
                due, signal_number, to_save = self.ranks.max_over_ranks(
                    [
                        now - start > READ_SECONDS or not self._sums.warm,
                        self.stop.signal_number or 0,
                        now > self._saves.next_at,
                    ],
                    after_step=True,
                )
                if due or signal_number:
                    self._sums.read(pending, progress, start=start)
                    watch.update()
                    pending = []
                    if to_save or signal_number:
                        self._save()
                    if signal_number:
                        raise Interrupted(signal_number)
                    start = time.perf_counter()  # bar and files are outside the clock
            if pending:
                self._sums.read(pending, progress, start=start)
                watch.update()

    def _finish_epoch(self) -> Row:
        """Validate, keep the weights if they are the best, and write the epoch's row."""
        progress, start = self.progress, time.perf_counter()
        try:
            with self.averages.in_place(progress):
                valid = self._perplexity("valid")
            # What the average gains or, early on, costs.
            unaveraged = self._perplexity("valid") if self.averages.exist(progress) else valid
        except Interrupted:
            self._save()  # validation is done again, training is not
            raise
        self._validation_seconds = time.perf_counter() - start
        self._sums.end_epoch(progress)
        row = metrics.epoch_row(
            progress, self.config, valid_perplexity=valid, unaveraged_valid_perplexity=unaveraged
        )
        found = (row["train_perplexity"], valid, unaveraged)
        if not all(map(math.isfinite, found)):
            what = [] if any(map(math.isnan, found)) else ["a perplexity overflowed"]
            raise diverged(self.directory, f"at the end of epoch {row['epoch']}", *what)
        if valid < progress.best_perplexity:
            progress.best_perplexity, progress.best_epoch = valid, row["epoch"]
            self._saves.keep_best(progress)
        progress.rows.append(row)
        progress.next_epoch()
        self.state = self._zero_state()
        self.directory.write_metrics(progress.rows)
        (due,) = self.ranks.max_over_ranks([self._saves.due_after_an_epoch()])
        if due or progress.epoch == self.config.epochs:
            self._save()
        cli.remark(metrics.epoch_line(row, self.config))
        return row

    def _test(self) -> Row:
        """Score the test split with the best weights, and with those of the last epoch, as the tutorial does.

        Nothing is saved any more: an interrupted test is done again from the state at the last epoch's end.
        An epoch that was done again after a crash may have ended worse than the first time, whose weights are
        kept: the best weights may then be of the last epoch's number and not of its end.
        """
        progress = self.progress
        weights = self.directory.read_weights(self.run, self.corpus.vocabulary)
        final: float | None = None
        last = progress.epoch, progress.rows[-1]["valid_perplexity"]
        if last != (progress.best_epoch, progress.best_perplexity):
            with self.averages.in_place(progress):
                final = scoring.checked(
                    self._perplexity("test"), "the test split by the last epoch's weights"
                )
        self.backend.load_weights(weights)
        test = scoring.checked(self._perplexity("test"), "the test split")
        return metrics.result(
            progress,
            test_perplexity=test,
            final_test_perplexity=test if final is None else final,
            best_possible_perplexity=self.corpus.bounds.get("test"),
            parameters=parameters.count_scalars(weights),
            engine=self.backend.engine,
            seconds=self._run_seconds(),
        )

    def _perplexity(self, split: str) -> float:
        return scoring.perplexity(
            self.backend,
            self.corpus.splits[split],
            self.config,
            batch_size=scoring.batch_size(split, self.config),
            description=split,
            check_stop=self._stop_if_asked,
        )

    def _save(self) -> None:
        self._saves.save(self.state, self.progress)

    def _stop_if_asked(self) -> None:
        (signal_number,) = self.ranks.max_over_ranks([self.stop.signal_number or 0])
        if signal_number:
            raise Interrupted(signal_number)

    def _zero_state(self) -> State:
        return self.backend.zero_state(self.rows.stop - self.rows.start)

    def _steps_done(self) -> int:
        """Return the training steps of the whole run so far: where TensorBoard's points are."""
        return self.progress.epoch * self.steps + self.progress.step

    def _run_seconds(self) -> float:
        return self.progress.run_seconds + time.perf_counter() - self._entered
