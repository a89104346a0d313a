"""The checksums of a run's JSON: what changes after it was written is noticed, whatever it is."""

import hashlib
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs

from ptb_lm import evaluate, train
from ptb_lm.common import json_files
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs as results
from ptb_lm.training import run_flags
from ptb_lm.training.run_directory import CONFIG_REMEDY, METRICS_REMEDY, RunDirectory

RUN = run_flags.new_config({"hidden_size": 7, "learning_rate": 0.1 + 0.2, "data": "ü", "device": "cpu"})
RESULT = {**runs.RESULT, "engine": "ünit", "earlier_environments": [{"cores": 2}]}
ROWS = [{**dict.fromkeys(runs.COLUMNS, n / 7), "epoch": n, "gradient_norm": n / 3} for n in (1, 2)]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """The three files of a run."""
    written = RunDirectory(tmp_path)
    written.write_config(RUN)
    written.write_metrics(ROWS)
    written.write_result(RESULT)
    return written


Read = Callable[[RunDirectory], Any]
FILES: dict[str, tuple[Read, Any]] = {
    "config.json": (lambda directory: directory.read_config(), RUN),
    "metrics.jsonl": (lambda directory: directory.read_metrics(), ROWS),
    "result.json": (lambda directory: directory.read_result(), RESULT),
}


def flips(content: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield the content with one byte changed, each in turn: a digit to another one, or a bit."""
    for at, byte in enumerate(content):
        others = set(b"0123456789") - {byte} if chr(byte).isdigit() else {byte ^ 1 << rng.randrange(8)}
        yield content[:at] + bytes([rng.choice(sorted(others))]) + content[at + 1 :]


def has_all(found: Any, expected: Any) -> bool:
    """Say whether each value that was written was read: beside a checksum of another name, too."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(has_all, found, expected))
    return bool(expected.items() <= found.items() if isinstance(expected, dict) else found == expected)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_or_changes_no_value(name: str, directory: RunDirectory) -> None:
    path, (read, expected) = directory.path / name, FILES[name]
    assert read(directory) == expected
    said = []
    for changed in flips(path.read_bytes(), random.Random(0)):
        path.write_bytes(changed)
        try:
            assert has_all(read(directory), expected), changed
        except UserError as error:
            said.append(str(error))
    assert all(each.startswith(str(path)) and "\n" not in each for each in said)
    assert sum("has changed" in each for each in said) > 100


@pytest.mark.parametrize("name", FILES)
def test_removed_checksums_and_another_format_or_order_are_no_change(
    name: str, directory: RunDirectory
) -> None:
    path, (read, expected) = directory.path / name, FILES[name]
    again = [json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False) for text in texts(path)]
    path.write_text("\n".join(again), encoding="utf-8")
    assert read(directory) == expected
    objects = [runs.without_checksum(text) for text in texts(path)]
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    assert not re.search("sha256|crc32", path.read_text())
    assert read(directory) == expected


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_refused_with_advice(name: str, directory: RunDirectory) -> None:
    path, (read, _) = directory.path / name, FILES[name]
    path.write_bytes(path.read_bytes()[:-30])
    advice = CONFIG_REMEDY if name == "config.json" else METRICS_REMEDY
    with pytest.raises(UserError, match=f"^{path}.* is not valid JSON: {advice}$"):
        read(directory)


def texts(path: Path) -> list[str]:
    """Return the texts of the objects in a file."""
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "place", "remedy"),
    [
        (
            *("config.json", '"epochs": 13', '"epochs": 14', "sha256", ""),
            "--resume",
        ),
        (
            *("metrics.jsonl", '"epoch": 2, "learning_rate": 0', '"epoch": 2, "learning_rate": 1', "crc32"),
            *(", line 2", "result.json"),
        ),
        (
            *("result.json", "78.123456789", "77.123456789", "sha256", ""),
            "result.json",
        ),
    ],
)
def test_a_change_by_hand_is_refused_until_the_checksum_is_removed(
    name: str, old: str, new: str, field: str, place: str, remedy: str, directory: RunDirectory
) -> None:
    path, (read, expected) = directory.path / name, FILES[name]
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=f"^{path}{place} has changed .*{field}.*: .*{remedy}.* {field}$"):
        read(directory)
    path.write_text(re.sub(rf',\s*"{field}": "\w+"', "", path.read_text()))
    assert read(directory) != expected


@pytest.mark.parametrize("checksum", [None, 0, "", [], {}, "0" * 64])
def test_a_value_that_is_no_checksum_does_not_fit(checksum: Any, directory: RunDirectory) -> None:
    directory.result_path.write_text(json.dumps({**RESULT, "sha256": checksum}))
    with pytest.raises(UserError, match="has changed"):
        directory.read_result()


def test_later_versions_can_read_what_this_one_writes() -> None:
    """The content that is summed is pinned."""
    values = {"b": "ü", "a": [0.1, None, {"d": -0.0, "c": True}]}
    content = rb'{"a": [0.1, null, {"c": true, "d": -0.0}], "b": "\u00fc"}'
    line = f"{zlib.crc32(content):08x}"
    assert json_files.with_checksum(values, "crc32") == {**values, "crc32": line}
    file = hashlib.sha256(content).hexdigest()
    assert json_files.with_checksum(values, "sha256") == {**values, "sha256": file}


def test_whatever_json_says_comes_back(tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "file.json"
    for _ in range(50):
        values = {text(rng): anything(rng, depth=3) for _ in range(rng.randrange(5))}
        json_files.write(path, values)
        assert json_files.read(path, remedy="") == values
        json_files.write_lines(path, [values, values])
        assert [each for _, each in json_files.read_lines(path, remedy="")] == [values, values]


def anything(rng: random.Random, *, depth: int) -> Any:
    """Return any value of JSON."""
    if depth and rng.random() < 0.5:
        inner = [anything(rng, depth=depth - 1) for _ in range(rng.randrange(4))]
        return inner if rng.random() < 0.5 else {text(rng): each for each in inner}
    number = rng.choice([rng.gauss(0, 1) * 10 ** rng.randrange(-300, 300), rng.getrandbits(70), 0.0, -0.0])
    return rng.choice([number, text(rng), None, True, False])


def text(rng: random.Random) -> str:
    """Return any text; the escape of a path that is no text, too."""
    return "".join(rng.choice('aü"\\\n\0\u2028\U0001f600\udc80') for _ in range(rng.randrange(4)))


@pytest.mark.parametrize("order", [(2,), (2, 1), (1, 1)])
def test_lines_that_are_missing_or_elsewhere_are_noticed(
    order: tuple[int, ...], directory: RunDirectory
) -> None:
    lines = directory.metrics_path.read_text().splitlines(keepends=True)
    directory.metrics_path.write_text("".join(lines[number - 1] for number in order))
    at = next(at for at, number in enumerate(order, start=1) if number != at)
    problem = f"line {at}: .*epoch {order[at - 1]}, where epoch {at} should be"
    with pytest.raises(UserError, match=problem):
        directory.read_metrics()


def test_a_last_line_that_is_missing_is_noticed_beside_the_result(directory: RunDirectory) -> None:
    assert results.read_run(directory.path).epochs == ROWS
    directory.write_metrics([*ROWS, {**ROWS[0], "epoch": 3}])  # as a run does that goes on after its result
    assert len(results.read_run(directory.path).epochs) == 3
    directory.write_metrics(ROWS[:1])
    with pytest.raises(UserError, match=f"^{directory.metrics_path} .*epoch 2, .*{directory.result_path}$"):
        results.read_run(directory.path)
    directory.result_path.unlink()  # of a run that has not ended, the epochs so far
    assert results.read_run(directory.path).epochs == ROWS[:1]


@pytest.mark.slow
def test_the_advice_of_the_errors_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(runs.train_run(runs.write_corpus(tmp_path / "data"), tmp_path / "run"))
    whole, rows = runs.result(run.path), run.read_metrics()
    for path in (run.metrics_path, run.result_path):
        path.write_text(re.sub(r'(_perplexity": \d)', r"\g<1>1", path.read_text()))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1 has changed"):
        results.read_run(run.path)
    assert "result.json has changed since" in runs.refusal(capsys, train, "--resume", run.path)
    run.result_path.unlink()
    assert train.main(["--resume", str(run.path)]) == 0
    assert run.read_metrics() == rows
    assert runs.result(run.path)["test_perplexity"] == whole["test_perplexity"]
    # Settings: by hand, and by a flag.
    config = run.config_path.read_text()
    run.config_path.write_text(config.replace('"epochs": 2', '"epochs": 3'))
    for command, flags in ((train, ["--resume", run.path]), (evaluate, [run.path])):
        assert "config.json has changed since" in runs.refusal(capsys, command, *flags)
    run.config_path.write_text(config)
    assert train.main(["--resume", str(run.path), "--epochs", "3"]) == 0
    assert run.read_config().hyperparameters.epochs == len(run.read_metrics()) == 3
