"""The training loop: epochs, validation, the best weights, stopping. It knows no framework."""

import dataclasses
import math
import time

from ptb_lm import cli, host
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus, Words
from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays, Backend, Loss, State
from ptb_lm.training import metrics, scoring
from ptb_lm.training.averaging_schedule import Averages
from ptb_lm.training.interrupt import Interrupted, StopRequest
from ptb_lm.training.progress import Progress
from ptb_lm.training.progress_display import LOG_SECONDS, Log, Watch
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.scalars import Scalars
from ptb_lm.training.schemas import Row
from ptb_lm.training.state import collect, diverged, restore

READ_SECONDS = 0.5  # how often the device is waited for: to move the bar, and to notice divergence
SAVE_SECONDS = 300.0  # how much work a lost process may lose
# On a GPU an epoch may take two seconds, and saving one. So the ends of epochs save in a tenth of the time.
SHARE_OF_SAVES = 0.1
CHEAP_SECONDS = 0.2  # what takes no longer is saved at the end of each epoch


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
        self.steps = count_steps(corpus, run)
        self.tokens = self.config.batch_size * self.config.num_steps  # a step
        self.averages = Averages(backend, self.config, steps_an_epoch=self.steps)
        self._warm = False  # the first step of a process compiles, and is not clocked
        self._first = 0, 0.0  # its tokens and seconds
        self._log = Log(log_seconds)
        self._validation_seconds = 0.0  # of the newest epoch's; 0 before there was one
        self._save_seconds = 0.0  # of the newest save
        self._best: Arrays | None = None  # the best weights, where they are not on disk yet
        self._started = started
        self._entered = self._saved = time.perf_counter()

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
                due, signal_number, to_save = self.ranks.greatest(
                    [
                        now - start > READ_SECONDS or not self._warm,
                        self.stop.signal_number or 0,
                        now - self._saved > SAVE_SECONDS,
                    ],
                    in_step=True,
                )
                if due or signal_number:
                    self._read(pending, start)
                    watch.update()
                    pending = []
                    if to_save or signal_number:
                        self._save()
                    if signal_number:
                        raise Interrupted(signal_number)
                    start = time.perf_counter()  # bar and files are outside the clock
            if pending:
                self._read(pending, start)
                watch.update()

    def _read(self, pending: list[Loss], start: float) -> None:
        """Wait for some steps, stop the clock, and add up what they measured."""
        progress, measured = self.progress, self.backend.read(pending)
        seconds = time.perf_counter() - start
        if self._warm:
            progress.clocked_seconds += seconds
            progress.clocked_tokens += len(pending) * self.tokens
        else:
            # How long a user waits for it: imports, the text, the model, compilation.
            self.environment["seconds_to_first_step"] = start + seconds - self._started
            self._warm = True
            self._first = len(pending) * self.tokens, seconds
        for nll, gradient_norm, new_loss_scale in measured:
            progress.step += 1
            when = f"in epoch {progress.epoch + 1}, step {progress.step} of {self.steps}"
            if new_loss_scale and math.isfinite(nll):
                cli.remark(
                    f"{when}, a gradient overflowed float16: the step is skipped, and the loss scale is "
                    f"{new_loss_scale:g} from here on"
                )
                gradient_norm = 0.0  # it moved nothing
            if not (math.isfinite(nll) and math.isfinite(gradient_norm)):
                raise diverged(self.directory, when)
            progress.nll += nll
            progress.gradient_norms += gradient_norm

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
        if not progress.clocked_tokens:  # an epoch of one step has no other
            progress.clocked_tokens, progress.clocked_seconds = self._first
        row = metrics.epoch_row(
            progress, self.config, valid_perplexity=valid, unaveraged_valid_perplexity=unaveraged
        )
        found = (row["train_perplexity"], valid, unaveraged)
        if not all(map(math.isfinite, found)):
            what = [] if any(map(math.isnan, found)) else ["a perplexity overflowed"]
            raise diverged(self.directory, f"at the end of epoch {row['epoch']}", *what)
        if valid < progress.best_perplexity:
            progress.best_perplexity, progress.best_epoch = valid, row["epoch"]
            with self.averages.in_place(progress):
                self._best = self.backend.export_weights()
        progress.rows.append(row)
        progress.next_epoch()
        self.state = self._zero_state()
        self.directory.write_metrics(progress.rows)
        (due,) = self.ranks.greatest([self._save_is_due()])
        if due or progress.epoch == self.config.epochs:
            self._save()
        cli.remark(metrics.epoch_line(row, self.config))
        return row

    def _test(self) -> Row:
        """Score the test split with the best weights, and with those of the last epoch, as the tutorial does.

        Nothing is saved any more: an interrupted test is done again from the state at the last epoch's end.
        """
        progress = self.progress
        weights = self.directory.read_weights(self.run, self.corpus.vocabulary)
        final: float | None = None
        if progress.best_epoch != progress.epoch:
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
            parameters=parameters.count(weights),
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

    def _save_is_due(self) -> bool:
        """Return whether the end of an epoch saves."""
        age = time.perf_counter() - self._saved
        return self._save_seconds <= max(CHEAP_SECONDS, SHARE_OF_SAVES * age)

    def _save(self) -> None:
        """Write the newest training state, and the best weights of the epochs until then."""
        start = time.perf_counter()
        saved = collect(self.directory, self.backend, self.averages, self.state, self.progress)
        if self._best is not None:
            self._write_best(self._best)
            self._best = None
        progress = dataclasses.replace(self.progress, run_seconds=self._run_seconds())
        self.directory.write_state(saved._replace(progress=progress), corpus=self.corpus, run=self.run)
        self._saved = time.perf_counter()
        self._save_seconds = self._saved - start

    def _write_best(self, weights: Arrays) -> None:
        best = {"epoch": self.progress.best_epoch, "valid_perplexity": self.progress.best_perplexity}
        # What a resumed run reported before it went on is not true of these weights.
        self.directory.remove_result()
        self.directory.write_weights(weights, self.run, self.corpus.vocabulary, best=best)

    def _stop_if_asked(self) -> None:
        (signal_number,) = self.ranks.greatest([self.stop.signal_number or 0])
        if signal_number:
            raise Interrupted(signal_number)

    def _zero_state(self) -> State:
        return self.backend.zero_state(self.rows.stop - self.rows.start)

    def _steps_done(self) -> int:
        """Return the training steps of the whole run so far: where TensorBoard's points are."""
        return self.progress.epoch * self.steps + self.progress.step

    def _run_seconds(self) -> float:
        return self.progress.run_seconds + time.perf_counter() - self._entered


def count_steps(corpus_: Corpus, run: RunConfig) -> int:
    """Return the training steps of an epoch, after checking that every split is long enough.

    Raises:
        UserError: A split is too short.
    """
    config = run.hyperparameters
    for split in ("valid", "test"):
        rows = scoring.batch_size(split, config)
        corpus.check_evaluation(corpus_.splits[split], batch_size=rows, split=split)
    return corpus.count_windows(
        corpus_.splits["train"], batch_size=config.batch_size, num_steps=config.num_steps
    )
