"""Bad flags, bad texts and extreme numbers, given to commands."""

import argparse
import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from faults.subject import Subject, flaw, refused_or_done, stop_after
from faults.table import AS_PROMISED
from ptb_lm import evaluate, score, train

# Sizes are small or beyond any machine: between, a run is right to take memory.
NUMBERS = (
    *("0", "1", "2", "3", "-1", "0.5", "1.5", "1e30", "1e-320", "1e400", "nan", "inf", "-inf", "-0", "0x10"),
    *("3000000", "99999999999999999999", "1_0", "٣", "", " ", "x", "\x1b[2J", "é", "\udc80", "a b", "--"),
)
ANSWER_SECONDS = 60.0  # in which a command must end, by itself or by a signal
NO_PERPLEXITY = re.compile(r"\b(train|valid|test|perplexity) (nan|inf)\b")  # as train prints them


def flag_sets(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Give train one to four flags, with any values."""
    apart = {"help", "help_all", "help_presets", "help_models", "run_dir", "resume", "jobs", "data", "seeds"}
    actions = [action for action in train._parser()._actions if action.dest not in apart]
    while True:
        run = subject.new()
        flags = [word for action in rng.sample(actions, rng.randint(1, 4)) for word in _flag(action, rng)]
        end = subject.process(
            lambda flags=flags, run=run: train.main([*subject.arguments(run), *flags]),  # type: ignore[misc]
            meanwhile=stop_after(3.0, ANSWER_SECONDS),
        )
        was_stopped = end.status == 128 + signal.SIGTERM and flaw(end, end.status) is None
        outcome = AS_PROMISED if was_stopped else refused_or_done(end)
        yield outcome if outcome == AS_PROMISED else f"{outcome}: {' '.join(flags)!a}"
        shutil.rmtree(run, ignore_errors=True)


def _flag(action: argparse.Action, rng: random.Random) -> list[str]:
    flag = rng.choice(action.option_strings)
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return [flag]
    if action.choices and rng.random() < 0.8:
        return [flag, rng.choice(list(action.choices))]
    return [flag, rng.choice(NUMBERS)]


def texts(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Train on a file that is not text, and evaluate and score it."""
    while True:
        folder = Path(shutil.copytree(subject.data, subject.new()))
        path = folder / rng.choice(["train.txt", "valid.txt", "test.txt"])
        _spoil(path, rng)
        run = subject.new()
        for work in (
            lambda: train.main(subject.arguments(run, data=folder)),  # noqa: B023 - it is called right here
            lambda: evaluate.main([str(subject.expected), "--text", str(path)]),  # noqa: B023
            lambda: score.main([str(subject.expected), str(path)]),  # noqa: B023
        ):
            end = subject.process(work, meanwhile=stop_after(20.0, ANSWER_SECONDS))
            if (outcome := refused_or_done(end)) != AS_PROMISED:
                break
        yield outcome
        for each in (folder, run):
            shutil.rmtree(each, ignore_errors=True)


def _spoil(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    at = rng.randrange(len(content))
    how = rng.randrange(9)
    path.unlink()
    if how == 0:
        path.mkdir()
    elif how == 1:
        path.symlink_to("nowhere")
    elif how == 2:
        path.symlink_to(path.name)
    else:
        path.write_bytes(
            [
                b"",
                b" \n" * rng.randrange(200),
                content.decode().encode("utf-16"),
                rng.randbytes(rng.randrange(5000)),
                content[:at]
                + rng.choice([b"\0", b"\xff", b"\xed\xa0\x80", b"\r", b"\xc2\x85", b"\x1b[2J"])
                + content[at:],
                b"x" * rng.randrange(100_000),
            ][how - 3]
        )


def extremes(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Train with numbers at the ends of what a flag may say."""
    ends = {
        "--learning-rate": ("1e-300", "1e300", "1e38", "3e38", "1e-45"),
        "--init-scale": ("0", "1e-40", "1e30", "1e38", "100"),
        "--max-grad-norm": ("1e-40", "1e38", "1e300", "1e-300"),
        "--lr-decay": ("1e-300", "1e30", "0.1"),
        "--keep-prob": ("1e-7", "1", "0.999999999"),
        "--batch-size": ("1", "40"),
        "--num-steps": ("1", "40", "500"),
        "--precision": ("bf16", "fp32"),
    }
    there = {flag for action in train._parser()._actions for flag in action.option_strings}
    assert not ends.keys() - there, ends.keys() - there
    while True:
        run = subject.new()
        flags = [word for flag in rng.sample(list(ends), 2) for word in (flag, rng.choice(ends[flag]))]
        end = subject.process(
            lambda flags=flags, run=run: train.main([*subject.arguments(run), *flags]),  # type: ignore[misc]
            meanwhile=stop_after(20.0, ANSWER_SECONDS),
        )
        outcome = refused_or_done(end)
        if end.status == 0 and NO_PERPLEXITY.search(end.output):
            outcome = "a perplexity of nan or inf"
        yield outcome if outcome == AS_PROMISED else f"{outcome}: {' '.join(flags)}"
        shutil.rmtree(run, ignore_errors=True)
