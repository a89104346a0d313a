"""The training loop: epochs, validation, the best weights, stopping. It knows no framework."""

import contextlib
import math
import time
from collections.abc import Sequence

import msgspec

from ptb_lm.common import cli
from ptb_lm.common.errors import OutOfMemoryError
from ptb_lm.common.signals import StopRequest, TrainingInterrupted
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus, TokenArray
from ptb_lm.model import parameters
from ptb_lm.model.backend import Backend, Loss, State
from ptb_lm.training import evaluation, metrics
from ptb_lm.training.averaging import Averages
from ptb_lm.training.checkpoint import Checkpoints, divergence_error
from ptb_lm.training.display import LOG_SECONDS, Display
from ptb_lm.training.metrics import JsonObject, Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.tensorboard import EventFile
from ptb_lm.training.window_plan import WindowPlan

READ_SECONDS = 0.5  # how often the device is waited for: to move the bar, and to notice divergence


class Trainer:
    """Trains one run.

    Args:
        run: The resolved configuration.
        corpus: The data.
        backend: The model, holding its initial weights.
        directory: Files of the run; the folder exists.
        stop: Request to stop, which is looked at after every step.
        command: The command line, for the record.
        environment: Versions and machine facts, for the record.
        command_start: Time when the command started, by time.perf_counter.
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
        environment: JsonObject,
        command_start: float,
        log_seconds: float = LOG_SECONDS,
    ) -> None:
        self.run, self.config = run, run.hyperparameters
        self.corpus = corpus
        self.backend, self.ranks = backend, backend.ranks
        self.directory = directory
        self.stop, self.command_start = stop, command_start
        self.progress = Progress(commands=[command], environments=[environment])
        self.rows = self.ranks.share(self.config.batch_size)  # those of the batch that this process trains
        self.state: State = self._zero_state()
        self.plan = WindowPlan(corpus, self.config, seed=run.choice.seed)
        self.averages = Averages(backend, self.config, self.plan)
        # The first window of each length may compile. Its step is read by itself and left out of the clock,
        # unless an epoch has no other steps.
        self._trained_lengths = set[int]()  # those that this process has trained
        self._first_step: tuple[int, float] | None = None  # (tokens, seconds) of the newest such step
        self.log_seconds = log_seconds
        self._validation_seconds = 0.0  # duration of the newest validation; 0 before there was one
        self._trainer_start = time.perf_counter()
        self.checkpoints = Checkpoints(directory, backend, self.averages, corpus)

    def resume(self, before: RunConfig) -> None:
        """Continue from the newest state of the run directory.

        Args:
            before: The content of config.json.

        Raises:
            UserError: There is no such state, or it belongs to another model or vocabulary.
        """
        (command,), (environment,) = self.progress.commands, self.progress.environments
        self.state, self.progress = self.checkpoints.restore(self.run)
        self.run = self.run.going_on(before, epoch=self.progress.epoch, step=self.progress.step)
        self.progress.commands.append(command)
        # A state may say how to compute.
        self.progress.environments.append(environment | self.backend.environment())

    def is_trained(self) -> bool:
        """Return whether all steps of the planned epochs are done; validation and test may be left."""
        epoch, step = self.progress.epoch, self.progress.step
        last = self.config.epochs - 1
        return epoch > last or (epoch == last and step == self.plan.steps(epoch))

    def train(self) -> JsonObject:
        """Train to the last epoch, score the test split with the best weights, and return the result.

        Raises:
            DivergenceError: A loss or gradient is not finite; the last good state is on disk.
            TrainingInterrupted: A signal asked to stop; the state is saved.
            UserError: There is not enough memory for a step; the newest state is on disk.
            OSError: A file cannot be written.
        """
        progress = self.progress
        steps_done = self.steps_done()
        is_resumed = len(progress.environments) > 1
        event_file = EventFile(
            self.directory.path if self.ranks.is_first else None,
            purge_step=steps_done + 1 if is_resumed else None,
        )
        display = Display(
            progress, self.config, self.plan, log_seconds=self.log_seconds, event_file=event_file
        )
        with contextlib.closing(event_file):
            self._save()  # before any work: a folder that cannot be written is noticed now
            self.directory.write_metrics(progress.rows)
            event_file.begin(self.run.to_json(), step=steps_done)
            all_BL = corpus.rows(self.corpus.splits["train"], self.config.batch_size)
            rows_BL = self.backend.to_device(all_BL[self.rows])
            while progress.epoch < self.config.epochs:
                self._train_epoch(rows_BL, display)
                self._finish_epoch(event_file)
            result = self._test()
            event_file.add_scalars(metrics.scalars(result, metrics.RESULT_SCALARS), step=self.steps_done())
            event_file.end(step=self.steps_done())
            return result

    def _train_epoch(self, rows_BL: TokenArray, display: Display) -> None:
        progress, unread = self.progress, list[Loss]()
        steps, steps_before = self.plan.steps(progress.epoch), self.plan.steps_before(progress.epoch)
        averaging_start = self.averages.start_step(progress)
        if self.config.average_after_stall and averaging_start == steps_before + progress.step:
            cli.try_print_line(
                f"validation has stalled: from epoch {progress.epoch + 1} on, the weights are averaged"
            )
        with display.epoch(validation_seconds=self._validation_seconds):
            self.backend.read([])  # waits for the device, so that the clock starts when it is idle
            start = time.perf_counter()
            windows = self.plan.windows(rows_BL, progress.epoch, start=progress.step)
            for step, (x_BT, y_BT) in enumerate(windows, start=progress.step):
                rate = self.config.learning_rate_at(progress.epoch, step, steps)
                is_new_length = x_BT.shape[1] not in self._trained_lengths
                if is_new_length and unread:
                    self._read(unread, start=start)
                    unread, start = [], time.perf_counter()
                self._trained_lengths.add(x_BT.shape[1])
                self.state, loss = self.backend.train_step(x_BT, y_BT, self.state, learning_rate=rate)
                unread.append(loss)
                if averaging_start is not None:
                    self.averages.update_if_due(steps_before + step + 1 - averaging_start)
                now = time.perf_counter()
                # One clock may be ahead of the others, and one process alone may hear a signal.
                should_read, signal_number, should_save = self.ranks.max_over_ranks(
                    [
                        now - start > READ_SECONDS or is_new_length,
                        self.stop.signal_number or 0,
                        now > self.checkpoints.next_save_time,
                    ],
                    after_step=True,
                )
                if should_read or signal_number:
                    self._read(unread, start=start, is_clocked=not is_new_length)
                    display.update()
                    unread = []
                    if should_save or signal_number:
                        self._save()
                    if signal_number:
                        raise TrainingInterrupted(signal_number)
                    start = time.perf_counter()  # bar and files are outside the clock
            if unread:
                self._read(unread, start=start)
                display.update()

    def _read(self, losses: Sequence[Loss], *, start: float, is_clocked: bool = True) -> None:
        """Wait for some steps, which began at `start`; stop the clock, and add up what they measured.

        Raises:
            DivergenceError: A loss or gradient is not finite.
        """
        progress = self.progress
        measurements = self.backend.read(losses)
        seconds = time.perf_counter() - start
        epoch, step = progress.epoch, progress.step
        tokens = self.plan.tokens(epoch, step + len(losses)) - self.plan.tokens(epoch, step)
        if is_clocked:
            progress.clocked_seconds += seconds
            progress.clocked_tokens += tokens
        else:
            if not self._first_step:  # how long a user waits: imports, the text, the model, compilation
                environment = progress.environments[-1]
                environment["seconds_to_first_step"] = start + seconds - self.command_start
            self._first_step = tokens, seconds
        for nll, gradient_norm, new_loss_scale in measurements:
            progress.step += 1
            when = f"in epoch {progress.epoch + 1}, step {progress.step} of {self.plan.steps(epoch)}"
            if new_loss_scale and math.isfinite(nll):
                cli.try_print_line(
                    f"{when}, a gradient overflowed float16: the step is skipped, and the loss scale is "
                    f"{new_loss_scale:g} from here on"
                )
                gradient_norm = 0.0  # it moved nothing
            if not (math.isfinite(nll) and math.isfinite(gradient_norm)):
                raise divergence_error(self.directory, self.run, when)
            progress.nll += nll
            progress.gradient_norms += gradient_norm

    def _finish_epoch(self, event_file: EventFile) -> None:
        """Validate, keep the weights if they are the best, and write the epoch's row.

        The state is written last, if it is due: what a crash before it repeats is written again.
        """
        progress, start = self.progress, time.perf_counter()
        try:
            with self.averages.use(progress):
                valid = self._perplexity("valid")
            # What the average gains or, early on, costs.
            without_average = self._perplexity("valid") if self.averages.have_values(progress) else valid
        except (TrainingInterrupted, OutOfMemoryError) as error:
            # Validation is done again, training is not. Ranks save together, and one alone may lack memory.
            if self.ranks.size == 1 or isinstance(error, TrainingInterrupted):
                self._save()
            raise
        self._validation_seconds = time.perf_counter() - start
        if not progress.clocked_tokens and self._first_step:  # the epoch has no other steps
            progress.clocked_tokens, progress.clocked_seconds = self._first_step
        steps = self.plan.steps(progress.epoch)
        first_rate, last_rate = (
            self.run.learning_rate_at(progress.epoch, step, steps) for step in (0, steps - 1)
        )
        tokens = self.plan.tokens(progress.epoch, progress.step)
        row: JsonObject = {
            "epoch": progress.epoch + 1,
            "learning_rate": first_rate,
            "train_perplexity": evaluation.perplexity_from_nll(progress.nll, tokens),
            "valid_perplexity": valid,
            **({"unaveraged_valid_perplexity": without_average} if self.config.has_average else {}),
            "words_per_second": progress.words_per_second,
            "seconds": progress.clocked_seconds,
            "gradient_norm": progress.gradient_norms / progress.step,
        }
        perplexities = (row["train_perplexity"], valid, without_average)
        if not all(map(math.isfinite, perplexities)):
            what = [] if any(map(math.isnan, perplexities)) else ["a perplexity overflowed"]
            raise divergence_error(self.directory, self.run, f"at the end of epoch {row['epoch']}", *what)
        if valid < progress.best_perplexity:
            progress.best_perplexity, progress.best_epoch = valid, row["epoch"]
            self.checkpoints.keep_best(progress)
        progress.rows.append(row)
        progress.next_epoch()
        self.state = self._zero_state()
        self.directory.write_metrics(progress.rows)
        event_file.add_scalars(metrics.scalars(row, metrics.EPOCH_SCALARS), step=self.steps_done())
        (is_due,) = self.ranks.max_over_ranks([self.checkpoints.is_due_after_epoch()])
        if is_due or progress.epoch == self.config.epochs:
            self._save()
        cli.try_print_line(metrics.epoch_line(row, self.config, last_rate=last_rate))

    def _test(self) -> JsonObject:
        """Score the test split with the best weights, and with those of the last epoch, as the tutorial does.

        Nothing is saved any more: an interrupted test is done again from the state at the last epoch's end.

        The number of the best epoch alone does not tell whether the best weights are the last ones. After a
        crash the last epoch may have been trained a second time and have ended worse; the best weights are
        then those of the first time. So the perplexities are compared, too.
        """
        progress = self.progress
        weights = self.directory.read_weights(self.run, self.corpus.vocabulary)
        final: float | None = None
        last = progress.epoch, progress.rows[-1]["valid_perplexity"]
        if last != (progress.best_epoch, progress.best_perplexity):
            with self.averages.use(progress):
                final = evaluation.check_finite(
                    self._perplexity("test"), "the test split by the last epoch's weights"
                )
        self.backend.load_weights(weights)
        test = evaluation.check_finite(self._perplexity("test"), "the test split")
        init_from = self.run.init_from
        return {
            "test_perplexity": test,
            "valid_perplexity": progress.best_perplexity,
            "final_test_perplexity": test if final is None else final,
            "final_valid_perplexity": progress.rows[-1]["valid_perplexity"],
            "best_possible_perplexity": self.corpus.bounds.get("test"),
            "best_epoch": progress.best_epoch,
            "epochs": progress.epoch,
            "words_per_second": metrics.words_per_second(progress.rows),
            "parameters": parameters.count_scalars(weights),
            "engine": self.backend.engine,
            "seconds": self._run_seconds(),
            "command": " && ".join(progress.commands),
            "environment": progress.environments[-1],
            "earlier_environments": progress.environments[:-1],
            "command_seconds": time.perf_counter() - self.command_start,
            "hyperparameters": self.config.to_json(),
            **({"init_from": msgspec.structs.asdict(init_from)} if init_from else {}),
        }

    def _perplexity(self, split: str) -> float:
        return evaluation.evaluate_perplexity(
            self.backend,
            self.corpus.splits[split],
            self.config,
            batch_size=evaluation.row_count(split, self.config),
            description=split,
            check_stop=self._check_stop,
        )

    def _save(self) -> None:
        self.checkpoints.save(self.run, self.state, self.progress, run_seconds=self._run_seconds())

    def _check_stop(self) -> None:
        (signal_number,) = self.ranks.max_over_ranks([self.stop.signal_number or 0])
        if signal_number:
            raise TrainingInterrupted(signal_number)

    def _zero_state(self) -> State:
        return self.backend.zero_state(self.rows.stop - self.rows.start)

    def steps_done(self) -> int:
        """Return the training steps of the whole run so far: where TensorBoard's points are."""
        return self.plan.steps_before(self.progress.epoch) + self.progress.step

    def _run_seconds(self) -> float:
        return self.progress.run_seconds + time.perf_counter() - self._trainer_start
