"""What is seen of an epoch while it trains, read from a terminal's screen and from a log."""

import contextlib
import dataclasses
import fcntl
import math
import os
import re
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest
import runs

from ptb_lm import train
from ptb_lm.training import progress_text, trainer
from ptb_lm.training.progress_text import Status

pyte = pytest.importorskip("pyte")  # a terminal in Python

NOW = Status(
    epoch=3,
    epochs=13,
    step=1234,
    steps=2323,
    loss=4.1234,
    words_per_second=3854.4,
    learning_rate=0.8,
    epoch_seconds=201,
    run_seconds=37_000,
)
# Every number as long as it becomes.
LONGEST = Status(
    epoch=100,
    epochs=100,
    step=99_999,
    steps=100_000,
    loss=12.3456,
    words_per_second=1_234_567.8,
    learning_rate=0.00012345,
    epoch_seconds=5_000,
    run_seconds=35_000,
)
FACTS = r"loss (?P<loss>[\d.]+)(,)? (ppl|perplexity) (?P<perplexity>[\d.]+)(,)? (?P<speed>[\d,]+) words/s(,)?"
LEFT = r"[\d.]+[smhd]|\?"
SCREENS = {
    80: rf"epoch (?P<epoch>\d+)/2 \d+% (\S+ +)?{FACTS} lr (?P<rate>[\d.]+) left ({LEFT}), run ({LEFT})",
    200: rf"epoch (?P<epoch>\d+)/2 +\d+% \S+ +{FACTS} learning rate (?P<rate>[\d.]+), "
    rf"left: epoch ({LEFT}), run ({LEFT})",
}
LINE = (
    r"epoch +(?P<epoch>\d+)/2  step (?P<step>[\d,]+)/(?P<steps>[\d,]+)  loss (?P<loss>[\d.]+)  "
    r"perplexity (?P<perplexity>[\d.]+)  (?P<speed>[\d,]+) words/s  learning rate (?P<rate>[\d.]+)  "
    rf"left: epoch ({LEFT}), run ({LEFT})"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_corpus(tmp_path_factory.mktemp("watch") / "data")


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the device after every step."""
    monkeypatch.setattr(trainer, "READ_SECONDS", 0.0)


# The terminal.


class Terminal:
    """A pseudo-terminal whose screen is looked at after every drawing, which a carriage return begins."""

    def __init__(self, columns: int) -> None:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.file = os.fdopen(slave, "w")
        self._master = master
        self._screen = pyte.Screen(columns, 24)
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


@pytest.mark.parametrize("now", [NOW, LONGEST], ids=["usual", "longest"])
@pytest.mark.parametrize("columns", range(1, 220))
def test_a_text_of_any_width_has_whole_words_only(now: Status, columns: int) -> None:
    left, right = progress_text.fitted(now, columns)
    assert len(f"{left} {right}".rstrip()) <= columns
    known = {
        word.strip(",")
        for wording in progress_text._wordings(now)
        for text in wording
        for word in text.split()
    }
    assert {word.strip(",") for word in f"{left} {right}".split()} <= known


@pytest.mark.parametrize("now", [NOW, dataclasses.replace(NOW, epoch=13, learning_rate=0.01234)])
def test_80_columns_show_everything(now: Status) -> None:
    text = " ".join(progress_text.fitted(now, 80))
    assert text == (
        f"epoch {now.epoch}/13 53% loss 4.123 ppl 61.8 3,854 words/s lr {now.learning_rate:g} "
        "left 3m, run 10h"
    )


def test_the_longest_numbers_leave_out_words_before_they_leave_out_facts() -> None:
    assert " ".join(progress_text.fitted(LONGEST, 80)) == (
        "100/100 99% loss 12.346 ppl 229946 1,234,568 words/s lr 0.0001234 run 9.7h"
    )


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
    assert progress_text.duration(seconds) == text


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
    assert problem == f"argument --log-interval: must be a number above 0, not {value!r} (see --help)"
