"""The display of an epoch while it trains, read from a terminal's screen and from a log."""

import contextlib
import fcntl
import math
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import runs

from ptb_lm import train
from ptb_lm.common import cli, streams
from ptb_lm.data import corpus
from ptb_lm.model.presets import SMALL
from ptb_lm.training import display, metrics, trainer
from ptb_lm.training.tensorboard import EventFile
from ptb_lm.training.window_plan import WindowPlan

pyte = pytest.importorskip("pyte")  # a terminal in Python

# The facts of a usual moment, and with every number as long as it becomes.
USUAL = ["epoch 13/13", "53%", "ppl 61.8", "left 10h, epoch 3m", "loss 4.123", "3,854 words/s", "lr 0.01234"]
LONGEST = ["epoch 100/100", "99%", "ppl 229946", "left 9.7h, epoch 83m", "loss 12.346", "1,234,568 words/s"]
LEFT = r"[\d.]+[smhd]|\?"
FACTS = (
    r"epoch (?P<epoch>\d+)/2SPACE\d+%BARppl (?P<perplexity>[\d.]+)SPACE"
    rf"left ({LEFT}), epoch ({LEFT})SPACE"
    r"loss (?P<loss>[\d.]+)SPACE(?P<speed>[\d,]+) words/sSPACElr (?P<rate>[\d.]+)"
)
STEP = "SPACEstep (?P<step>[\\d,]+)/(?P<steps>[\\d,]+)"
SCREENS = {
    80: f"{FACTS}({STEP})?".replace("BAR", " ").replace("SPACE", " "),
    200: f"{FACTS}{STEP}".replace("BAR", r" \S+ +").replace("SPACE", " "),
}
LINE = f"{FACTS}{STEP}".replace("BAR", "  ").replace("SPACE", "  ")


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the device after every step."""
    monkeypatch.setattr(trainer, "READ_SECONDS", 0.0)


# A resumed run.


@pytest.mark.parametrize("schedule", ["exponential", "one-cycle", "cosine"])
@pytest.mark.parametrize("epochs", [2, 3, 4])
@pytest.mark.parametrize("steps_left", [0, 1])
def test_a_resumed_run_tells_what_is_next_and_its_rate(
    steps_left: int, epochs: int, schedule: str, small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stopped in the second of three epochs, whose last step may be done."""
    before = SMALL.replace(batch_size=4, num_steps=5, epochs=3, schedule=schedule)
    config, plan = before.replace(epochs=epochs), WindowPlan(corpus.load(small_corpus), before, seed=1)
    steps = plan.steps(1)
    progress = metrics.Progress(commands=[""], environments=[{}, {}])
    progress.epoch, progress.step = 1, steps - steps_left
    display.print_resumed(progress, before, config, plan)
    place, *rate = capsys.readouterr().out.splitlines()
    last_step = f"continues in epoch 2, step {steps}"
    assert place == (last_step if steps_left else "continues with the validation of epoch 2")
    if schedule == "exponential" or epochs == 3 or (epochs, steps_left) == (2, 0):
        assert not rate, "no step that is left has another one"
    else:
        expected = (
            config.learning_rate_at(1, steps - 1, steps)
            if steps_left
            else config.learning_rate_at(2, 0, steps)
        )
        assert " ".join(rate).endswith(f"which is {expected:.3g} now")


# The terminal.


class Terminal:
    """A pseudo-terminal whose screen is looked at after every drawing, which a carriage return begins."""

    def __init__(self, columns: int) -> None:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.file = os.fdopen(slave, "w")
        self._master = master
        self._screen = pyte.Screen(columns or 80, 24)
        self._stream = pyte.ByteStream(self._screen)
        self.screens: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        written = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while True:
                *drawn, written = (written + os.read(self._master, 65536)).split(b"\r")
                for each in drawn:
                    self._draw(each)
        self._draw(written)

    def _draw(self, written: bytes) -> None:
        self._stream.feed(written)
        self.screens.append([line.rstrip() for line in self._screen.display])
        self._stream.feed(b"\r")

    def close(self) -> None:
        self.file.close()
        self._reader.join()
        os.close(self._master)


@pytest.mark.slow
@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("columns", SCREENS)
def test_every_number_on_the_screen_is_whole(
    columns: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(columns)
    with contextlib.closing(terminal), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal.file)
        run = runs.train_run(data, tmp_path / "run", "--decay-after", "1")
    shown = [line for screen in terminal.screens for line in screen if line.startswith("epoch")]
    told = [re.fullmatch(SCREENS[columns], line) for line in shown]
    assert None not in told, shown
    assert len(told) > 20
    for each in filter(None, told):
        loss, perplexity = float(each["loss"]), float(each["perplexity"])
        assert math.exp(loss) == pytest.approx(perplexity, abs=0.05 + perplexity * 0.0005)
        assert float(each["rate"]) == {"1": 1.0, "2": 0.5}[each["epoch"]]
    for row in runs.metrics(run):
        last = [each for each in told if each and each["epoch"] == str(row["epoch"])][-1]
        assert float(last["perplexity"]) == pytest.approx(row["train_perplexity"], abs=0.051)
        assert float(last["speed"].replace(",", "")) == pytest.approx(row["words_per_second"], abs=0.51)
    # No bar stays, and each stood in one line.
    assert not any(terminal.screens[-1])
    assert all(sum(line != "" for line in screen) <= 1 for screen in terminal.screens)


@pytest.mark.parametrize("columns", [0, 1])
def test_a_terminal_that_does_not_tell_its_width_has_80_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(columns)
    with contextlib.closing(terminal), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal.file)
        with cli.progress_bar(9, "a text") as bar:
            assert (bar.format_dict["ncols"], bar.format_dict["nrows"]) == (80, 24)


@pytest.mark.parametrize("write", [cli.print_line, streams.print_to_stderr])
def test_lines_break_between_words_and_a_command_stays_in_one_piece(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"epoch": 7, "learning_rate": 0.0001234, "train_perplexity": 12345.6, "valid_perplexity": 9876.5}
    epoch = metrics.epoch_line({**row, "words_per_second": 1_234_567}, SMALL, last_rate=0.0001234)
    model = "model cudnn, config demo: 270,878 parameters, torch.nn.LSTM on cpu (oneDNN); products by oneDNN"
    command = "ptb-lm train --resume '/a folder/with spaces' --framework tensorflow"
    table = f"| {'a cell of a table':<85} |"
    lines = [epoch, model, f"SIGINT: saved; continue with: {command}", table]
    terminal = Terminal(80)
    with contextlib.closing(terminal), monkeypatch.context() as patch:
        patch.setattr(sys, "stdout" if write is cli.print_line else "stderr", terminal.file)
        for line in lines:
            write(line)
    screen = terminal.screens[-1]
    assert command in [line.strip() for line in screen]
    assert max(map(len, (epoch, model))) > 80
    assert {word for line in screen for word in line.split()} == {*" ".join(lines).split()}


@pytest.mark.parametrize("facts", [USUAL, LONGEST], ids=["usual", "longest"])
@pytest.mark.parametrize("columns", range(-1, 120))
def test_a_text_of_any_width_has_the_first_facts_whole(facts: list[str], columns: int) -> None:
    text = re.sub(" ?{bar}", "", display.fit_bar(facts, columns)).strip()
    fitting = [some for n in range(len(facts) + 1) if len(some := " ".join(facts[:n])) <= max(columns, 0)]
    assert text == fitting[-1]


def test_80_columns_show_all_of_usual_length() -> None:
    assert display.fit_bar(USUAL, 80) == " ".join(USUAL)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (99.4, "99s"),
        (99.6, "2m"),
        (5940, "99m"),
        (5980, "1.7h"),
        (35_000, "9.7h"),
        (35_900, "10h"),
        (360_000, "4d"),
        (math.nan, "?"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert display.duration(seconds) == text


# The log.


def lines(printed: str) -> list[re.Match[str]]:
    told = [line for line in printed.splitlines() if "  step " in line]
    matches = [re.fullmatch(LINE, line) for line in told]
    assert all(matches), told
    return [match for match in matches if match]


@pytest.mark.slow
@pytest.mark.usefixtures("every_step")
def test_a_log_has_a_line_each_interval(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.train_run(data, tmp_path / "run", "--log-interval", "1e-9", "--decay-after", "1")
    told = lines(capsys.readouterr().out)
    steps = int(told[0]["steps"].replace(",", ""))
    assert [(int(each["epoch"]), int(each["step"].replace(",", ""))) for each in told] == [
        (epoch, step) for epoch in (1, 2) for step in range(1, steps + 1)
    ]
    for row in runs.metrics(run):
        (last,) = [
            each for each in told if (each["epoch"], each["step"]) == (str(row["epoch"]), f"{steps:,}")
        ]
        assert float(last["perplexity"]) == pytest.approx(row["train_perplexity"], abs=0.051)
        assert float(last["loss"]) == pytest.approx(math.log(row["train_perplexity"]), abs=0.00051)
        assert float(last["rate"]) == row["learning_rate"]


def test_the_time_left_is_that_of_the_words_and_validations_to_come(
    small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a word a second: 280 of this epoch's 700 words are left, three epochs, and four validations."""
    config = SMALL.replace(batch_size=4, num_steps=5, epochs=5)
    plan = WindowPlan(corpus.load(small_corpus), config, seed=1)
    progress = metrics.Progress(epoch=1, step=21, nll=420.0, clocked_tokens=400, clocked_seconds=400.0)
    assert (plan.tokens(1, plan.steps(1)), plan.tokens(1, progress.step)) == (700, 420)
    with contextlib.closing(EventFile(None)) as event_file:
        shown = display.Display(progress, config, plan, log_seconds=0, event_file=event_file)
        with shown.epoch(validation_seconds=100):
            shown.update()
    left = re.search(rf"left ({LEFT}), epoch ({LEFT})", capsys.readouterr().out)
    assert left
    assert left.groups() == ("46m", "6m")  # 380 + 3 * 800 seconds, and 280 + 100


@pytest.mark.slow
@pytest.mark.usefixtures("every_step")
def test_a_short_run_has_no_such_line_by_default(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.train_run(data, tmp_path / "run")
    assert lines(capsys.readouterr().out) == []


@pytest.mark.parametrize("value", ["0", "-1", "nan", "often"])
def test_an_impossible_interval_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    problem = runs.refusal(capsys, train, "--log-interval", value)
    assert f"number above 0, not {value!r}" in problem
