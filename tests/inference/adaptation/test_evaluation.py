"""`evaluate --dynamic` and `--cache`: what is printed, kept and refused."""

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from support import reference_perplexity

from ptb_lm import evaluate
from ptb_lm.common import cli, nvidia
from ptb_lm.inference.adaptation import DynamicEvaluation, NeuralCache, read_flags
from ptb_lm.training import run_data
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

torch = pytest.importorskip("torch")

from ptb_lm.inference.adaptation import adapted_scorer, dynamic_evaluation, tuning  # noqa: E402
from ptb_lm.inference.adaptation.adapted_scorer import AdaptedScorer, Perplexities  # noqa: E402
from ptb_lm.inference.adaptation.segment_model import SegmentModel  # noqa: E402
from ptb_lm.torch_backend import gpu, runtime  # noqa: E402

pytestmark = pytest.mark.slow

ADAPTED = re.compile(
    r"(\S+) perplexity (\d+\.\d{4}), adapted to the text by (.+) "
    r"\(([\d,]+) tokens? scored, each before the model adapts to it\)"
)
OFF = {"dynamic": ["--dynamic-rate", "0"], "cache": ["--cache-weight", "0"]}


@pytest.fixture(scope="module")
def run(plain_run: Path) -> Path:
    return plain_run


def run_evaluate(
    capsys: pytest.CaptureFixture[str], *given: object
) -> tuple[list[str], str, float, str, int]:
    """Run the command; return other lines, the text, its perplexity, how it is adapted, and its tokens."""
    capsys.readouterr()
    assert runs.run_command(evaluate, *given) == 0
    out, err = capsys.readouterr()
    assert err == ""
    *lines, how = out.splitlines()
    if "--out" in given:
        assert how == f"written to {Path(str(given[given.index('--out') + 1])) / 'result.json'}"
        how = lines.pop()
    assert how.endswith(" cpu in fp32")
    if "one stream" in lines[-1]:
        lines.pop()
    assert re.fullmatch(r"not adapted .* \d+\.\d{4}", lines.pop())
    if "dynamic evaluation and a cache" in lines[-2]:
        assert re.fullmatch(r"by dynamic evaluation alone .* \d+\.\d{4}", lines.pop())
    last = lines.pop()
    match = ADAPTED.fullmatch(last)
    assert match, last
    return lines, match[1], float(match[2]), match[3], int(match[4].replace(",", ""))


def read_run(run: Path) -> tuple[RunConfig, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a run's configuration, its weights, and the ids of its splits."""
    config, vocabulary, weights = RunDirectory(run).read_model()
    return config, weights, run_data.load_again(config, vocabulary).splits


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--dynamic"], "dynamic evaluation"),
        (["--cache"], "a cache"),
        (["--dynamic", "--cache"], "dynamic evaluation and a cache"),
        (["--dynamic", "--dynamic-rule", "rms"], "dynamic evaluation"),
    ],
    ids=" ".join,
)
def test_without_effect_it_is_the_ordinary_perplexity_and_says_what_it_is(
    flags: list[str], name: str, run: Path, small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = [flag for kind in OFF if f"--{kind}" in flags for flag in OFF[kind]]
    _, split, perplexity, adapted, tokens = run_evaluate(capsys, run, *flags, *off)
    assert (split, adapted) == ("test", name)
    assert perplexity == pytest.approx(runs.result(run)["test_perplexity"], abs=2e-4)
    assert tokens == len((small_corpus / "test.txt").read_text().replace("\n", " <eos> ").split()) - 1


def test_settings_are_said_and_matter(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run_evaluate(capsys, run, "--dynamic", "--dynamic-rate", "0.3", "--dynamic-segment", "3")
    other = run_evaluate(capsys, run, "--dynamic", "--dynamic-rate", "0.1", "--dynamic-segment", "3")
    with torch.inference_mode():
        within = run_evaluate(capsys, run, "--dynamic", "--dynamic-rate", "0.3", "--dynamic-segment", "3")
    assert one == within
    assert one[0] == ["dynamic evaluation: sgd, segments of 3, rate 0.3, decay 0.005"]
    assert one[2] != other[2]
    cached = run_evaluate(
        capsys, run, "--cache", "--cache-words", "7", "--cache-theta", "2", "--cache-weight", "0.5"
    )
    assert cached[0] == ["cache: the last 7 words, theta 2, weight 0.5"]


@pytest.mark.parametrize("cache", [None, NeuralCache(words=7, theta=2.0, weight=0.5)], ids=str)
def test_the_rule_rms_squares_gradients_of_train_and_the_cache_sees_the_adapted_scores(
    cache: NeuralCache | None, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamic = DynamicEvaluation(rule="rms", segment=5, rate=0.3, damping=0.1)
    config, weights, splits = read_run(run)
    model = SegmentModel(config.hyperparameters, weights)

    def perplexity(squared: str, steps: DynamicEvaluation | None) -> float:
        squares = dynamic_evaluation.mean_squares(
            model, model.to_device(splits[squared]), 5, segments=adapted_scorer.SQUARED_SEGMENTS
        )
        ids = model.to_device(splits["test"])
        text = dynamic_evaluation.score(model, ids, steps, squares=squares, keep_hidden=True)
        log_p_N = text.log_p_N if cache is None else adapted_scorer.add_cache(text, cache)
        return dynamic_evaluation.text_perplexity(log_p_N)

    flags = ["--dynamic", *as_flags("dynamic", dataclasses.asdict(dynamic))]
    if cache:
        flags += ["--cache", *as_flags("cache", dataclasses.asdict(cache))]
    found = run_evaluate(capsys, run, *flags)[2]
    assert found == pytest.approx(perplexity("train", dynamic), abs=1e-4)
    for other in (perplexity("test", dynamic), perplexity("train", None)):
        assert abs(found - other) > 1e-3


@pytest.mark.parametrize("kinds", [["dynamic"], ["cache"], ["dynamic", "cache"]], ids="+".join)
def test_tuning_tells_every_trial_and_the_result_keeps_them(
    kinds: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--{kind}" for kind in kinds]
    out = tmp_path / "out"
    lines, _, perplexity, adapted, tokens = run_evaluate(
        capsys, run, *flags, "--tune", "--tune-words", "60", "--out", out
    )
    result = json.loads((out / "result.json").read_text())
    assert result["adapted_by"] == adapted
    assert result["adapted_perplexity"] == pytest.approx(perplexity, abs=1e-4)
    assert (result["text"], result["tokens"]) == ("test", tokens)
    assert re.fullmatch(r".* 60 .* valid", result["tuned_on"])
    assert result["unadapted_perplexity"] == pytest.approx(runs.result(run)["test_perplexity"], rel=1e-5)
    alone = result["adapted_perplexity_without_cache"]
    assert (alone is None) == (len(kinds) == 1)
    if alone is not None:
        steps = as_flags("dynamic", result["dynamic"])
        assert run_evaluate(capsys, run, "--dynamic", *steps)[2] == pytest.approx(alone, abs=1e-4)
    assert {"command", "environment", "run", "seconds"} <= result.keys()
    assert f"--out {out}" in result["command"]
    told = [line for line in lines if line.startswith("  ")]
    assert len(told) == len(result["trials"])
    for line, trial in zip(told, result["trials"], strict=True):
        assert float(line.split()[0]) == pytest.approx(trial["perplexity"], abs=6e-4)
    assert [trial["settings"] for trial in result["trials"]].count(None) == 1
    _, weights, splits = read_run(run)
    unadapted = reference_perplexity(weights, splits["valid"][:60])
    assert result["trials"][0]["perplexity"] == pytest.approx(unadapted, rel=1e-5)
    # What is chosen was tried, and is the best of its kind; the cache is tuned upon the best steps.
    for kind in kinds:
        same_kind = [t for t in result["trials"] if t["settings"] and t["settings"]["kind"] == kind]
        best = min(same_kind, key=lambda trial: float(trial["perplexity"]))
        assert best["settings"] == {"kind": kind, **result[kind]}
        assert len(same_kind) > 5
        check_inside(kind, result[kind], [trial["settings"] for trial in same_kind])
    assert sum(line.startswith("chosen: ") for line in lines) == len(kinds)
    settings = [flag for kind in kinds for flag in as_flags(kind, result[kind])]
    assert run_evaluate(capsys, run, *flags, *settings)[2] == pytest.approx(perplexity, abs=1e-4)


def check_inside(kind: str, chosen: dict[str, float], tried: list[dict[str, float]]) -> None:
    """Check that smaller and larger values than the chosen one were tried, until there were none to try."""
    for name in {"dynamic": ("rate", "decay"), "cache": ("words", "theta", "weight")}[kind]:
        values = sorted({each[name] for each in tried if each.get("rule") == chosen.get("rule")})
        inside = values[0] < chosen[name] < values[-1]
        at_limit = chosen[name] == 0 or (name in ("weight", "decay") and 2 * chosen[name] >= 1)
        if name == "words":  # of the 60 words tuned on, the first is not scored
            at_limit = chosen[name] >= 59
            assert sum(value >= 59 for value in values) == 1, "larger caches hold the same"
        assert inside or at_limit or len(values) > tuning.MAX_EXTENSIONS, (name, values)


def as_flags(kind: str, settings: dict[str, object]) -> list[str]:
    rms_trials = {"damping"} if settings.get("rule") == "sgd" else set()
    used = {name: value for name, value in settings.items() if name not in rms_trials}
    return [text for name, value in used.items() for text in (f"--{kind}-{name}", str(value))]


def test_tuning_leaves_alone_what_is_given(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--dynamic-rule", "sgd", "--dynamic-rate", "0.07", "--cache-theta", "0.9"]
    run_evaluate(capsys, run, "--dynamic", "--cache", "--tune", *given, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["tuned_on"] == "valid"
    first = result["trials"][0]
    _, weights, splits = read_run(run)
    assert first["settings"] is None
    assert first["perplexity"] == pytest.approx(reference_perplexity(weights, splits["valid"]), rel=1e-5)
    tried = [trial["settings"] for trial in result["trials"] if trial["settings"]]
    assert {t["rate"] for t in tried if t["kind"] == "dynamic"} == {0.07}
    assert {t["rule"] for t in tried if t["kind"] == "dynamic"} == {"sgd"}
    assert {t["theta"] for t in tried if t["kind"] == "cache"} == {0.9}


@pytest.mark.parametrize(
    ("flags", "helps"),
    [
        (["--cache", "--cache-weight", "0"], False),
        (["--cache", "--cache-weight", "0.99"], False),
        (["--dynamic", "--dynamic-rule", "sgd", "--dynamic-rate", "0.05"], True),
    ],
    ids=str,
)
def test_that_no_setting_helps_is_told(
    flags: list[str], helps: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run_evaluate(capsys, run, *flags, "--tune", "--tune-words", "60")[0]
    unadapted, *adapted = (float(line.split()[0]) for line in lines if line.startswith("  "))
    assert (min(adapted) < unadapted) == helps
    assert sum(line.startswith("no setting") for line in lines) == (not helps)


@pytest.mark.parametrize(
    ("flags", "useless"),
    [
        (["--dynamic-rate", "0.05", "--cache-weight", "0.99"], ["a cache", "both"]),
        (["--dynamic-rate", "2", "--cache-weight", "0.01"], ["dynamic evaluation", "both"]),
        (["--dynamic-rate", "2", "--cache-weight", "0.99"], ["dynamic evaluation", "a cache", "both"]),
    ],
    ids=str,
)
def test_each_part_that_makes_things_no_better_is_told(
    flags: list[str], useless: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ["--dynamic", "--cache", "--dynamic-rule", "sgd", *flags, "--tune", "--tune-words", "60"]
    lines = run_evaluate(capsys, run, *given, "--out", out)[0]
    told = [line.removeprefix("no setting of ") for line in lines if line.startswith("no set")]
    assert [line.partition(" was better")[0] for line in told] == useless
    best = dict[str, float]()
    for trial in json.loads((out / "result.json").read_text())["trials"]:
        kind = (trial["settings"] or {"kind": "none"})["kind"]
        best[kind] = min(trial["perplexity"], best.get(kind, math.inf))
    assert ("dynamic evaluation" in useless) == (best["dynamic"] >= best["none"])
    assert ("a cache" in useless) == (best["cache"] >= best["dynamic"])
    assert ("both" in useless) == (best["cache"] >= best["none"])


def test_the_order_of_test_words_cannot_change_what_is_tuned(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings are chosen by the valid split alone."""
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3\n" * 40)
    flags = ["--cache", "--tune", "--tune-words", "50"]
    trials, name, *_ = run_evaluate(capsys, run, *flags, "--text", text)
    assert (run_evaluate(capsys, run, *flags)[0], str(text)) == (trials, name)


def test_a_text_needs_the_data_only_where_they_are_read(
    run: Path, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3\n" * 9)
    problem = runs.refusal(capsys, evaluate, run, "--text", text, "--data", small_corpus, "--cache")
    assert "--data" in problem
    steps = ["--dynamic", "--dynamic-rule", "rms", "--dynamic-rate", "0.1"]
    expected = run_evaluate(capsys, run, "--text", text, *steps)[1:]
    assert run_evaluate(capsys, run, "--text", text, *steps, "--data", small_corpus)[1:] == expected


def test_the_unadapted_perplexity_is_of_the_text_that_was_scored(
    run: Path, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where another text is called "test", as that of the run is."""
    other = shutil.copytree(small_corpus, tmp_path / "other")
    (other / "test.txt").write_text("w1 w2 w3\nw20 w1 <unk>\n" * 20)
    for name, text in (("split", ["--data", other]), ("text", ["--text", other / "test.txt"])):
        assert runs.run_command(evaluate, run, *text) == 0
        plain = float(capsys.readouterr().out.split()[2])
        assert abs(plain - runs.result(run)["test_perplexity"]) > 0.1
        for kind in ("dynamic", "cache"):
            out = tmp_path / f"{name}-{kind}"
            assert runs.run_command(evaluate, run, *text, f"--{kind}", "--out", out) == 0
            assert re.search(f"\nnot adapted .* {plain:.2f}", capsys.readouterr().out)
            result = json.loads((out / "result.json").read_text())
            assert result["unadapted_perplexity"] == pytest.approx(plain, abs=2e-4)
        capsys.readouterr()


def test_a_reader_that_goes_away_does_not_lose_the_result(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = tmp_path / "out"
    with os.fdopen(writer, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert runs.run_command(evaluate, run, "--cache", "--tune", "--tune-words", 30, "--out", out) == 0
    assert capsys.readouterr().err == ""
    assert json.loads((out / "result.json").read_text())["trials"]


def test_a_result_is_never_overwritten(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is it written below a file."""
    file, before = tmp_path / "result.json", runs.files(run)
    file.write_text("{}")
    for out, problem in (
        (run, f"{run} holds config.json"),
        (tmp_path, f"{tmp_path} holds result.json"),
        (file / "out", f"--out {file / 'out'}: {file} is a file"),
    ):
        assert problem in runs.refusal(capsys, evaluate, run, "--cache", "--out", out)
    assert runs.files(run) == before


def test_a_result_that_came_meanwhile_is_not_overwritten_either(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed is printed all the same."""
    score, other = AdaptedScorer.perplexities, tmp_path / "result.json"

    def score_slowly(*given: Any, **named: Any) -> Perplexities:
        other.write_text("{}")
        return score(*given, **named)

    monkeypatch.setattr(AdaptedScorer, "perplexities", score_slowly)
    assert runs.run_command(evaluate, run, "--cache", "--out", tmp_path) == 2
    out, err = capsys.readouterr()
    assert f"{tmp_path} holds result.json" in runs.sentence(err, evaluate)
    assert "test perplexity " in out
    assert other.read_text() == "{}"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc")
def test_a_folder_that_cannot_be_written_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not the temporary file that cannot be made there; nobody may make a file in /proc, root neither."""
    problem = runs.refusal(capsys, evaluate, run, "--cache", "--out", "/proc/out")
    assert re.search(r"/proc: \w", problem)


@pytest.mark.parametrize(
    ("flags", "noun"),
    [
        ("--tune", "^--tune needs"),
        ("--out x", "^--out needs"),
        ("--cache --tune-words 5", "--tune-words needs --tune$"),
        ("--dynamic --cache-theta 1", "--cache-theta needs --cache$"),
        ("--dynamic-rate 1", "--dynamic-rate needs --dynamic$"),
        ("--dynamic --dynamic-damping 2", "--dynamic-damping needs .* rms$"),
        ("--dynamic --dynamic-rule sgd --tune --dynamic-damping 2", "--dynamic-damping needs .* rms$"),
        ("--cache --cache-weight 1", "weight .* 1$"),
        ("--dynamic --dynamic-decay 2", "decay.* 1, not 2"),
        ("--dynamic --dynamic-rate -1", "--dynamic-rate: .* 0, not -1"),
        ("--cache --cache-words 0", "--cache-words: .* 1, not 0"),
        ("--cache --cache-words 99999999999999999999", "--cache-words: .* 2147483647"),
        ("--dynamic --dynamic-segment 99999999999999999999", "--dynamic-segment: .* 2147483647"),
        ("--cache --model basic", "^--model .* --cache"),
        ("--cache --tune --split valid", "^--tune .* split"),
    ],
)
def test_impossible_flags_are_refused(
    flags: str, noun: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(noun, runs.refusal(capsys, evaluate, run, *flags.split()))


@pytest.mark.parametrize("flags", [["--dynamic-rule", "rms"], ["--tune"]])
def test_damping_goes_with_whatever_tries_the_rule_rms(flags: list[str]) -> None:
    parser = cli.Parser(prog="evaluate", description="")
    evaluate._add_flags(parser)
    given = parser.parse_args(["RUN", "--dynamic", "--dynamic-damping", "2", *flags])
    request = read_flags(given)
    assert request is not None
    assert request.adaptation.dynamic is not None
    assert request.adaptation.dynamic.damping == 2


def test_steps_that_are_too_large_are_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dynamic", "--dynamic-rate", "5000", "--out", tmp_path / "out"]
    assert runs.run_command(evaluate, run, *flags) == 1
    problem = runs.sentence(capsys.readouterr().err, evaluate)
    assert "rate" in problem
    assert not (tmp_path / "out").exists()


def test_a_rate_is_no_advice_for_a_cache(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaptedScorer, "perplexities", lambda *_, **__: Perplexities(torch.inf, None, 9.0))
    assert runs.run_command(evaluate, run, "--cache") == 1
    assert runs.sentence(capsys.readouterr().err, evaluate) == "the adapted perplexity is not finite"


def test_it_computes_with_the_settings_of_its_device(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU denormal numbers are zero."""
    entered, found = list[str](), list[list[str]]()

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        entered.append("settings")
        yield
        entered.clear()

    def score(*_: object, **__: object) -> Perplexities:
        found.append([*entered])
        return Perplexities(2.0, None, 2.0)

    monkeypatch.setattr(runtime, "flush_denormals", enter)
    monkeypatch.setattr(AdaptedScorer, "perplexities", score)
    assert runs.run_command(evaluate, run, "--cache") == 0
    assert found == [["settings"]]


@pytest.mark.gpu
def test_a_gpu_multiplies_in_ieee_float32(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process is set to."""
    found = []

    def score(*_: object, **__: object) -> Perplexities:
        found.append(torch.backends.cuda.matmul.fp32_precision)
        return Perplexities(2.0, None, 2.0)

    monkeypatch.setattr(AdaptedScorer, "perplexities", score)
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:  # monkeypatch would delete it: the object has no attributes of its own
        assert runs.run_command(evaluate, run, "--cache", "--device", "cuda") == 0
    finally:
        products.fp32_precision = before
    assert found == ["ieee"]


def test_the_tuned_perplexity_is_that_of_what_was_chosen(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if the model is better without: this cache expects each word to be the one before it."""
    given = ["--cache", "--tune", "--cache-words", "1", "--cache-weight", "0.99"]
    run_evaluate(capsys, run, *given, "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    unadapted, *with_cache = (trial["perplexity"] for trial in result["trials"])
    assert result["adapted_perplexity_there"] == min(with_cache) > unadapted


def test_a_gpu_that_cannot_be_used_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_examine_gpu", lambda: (True, "no kernel"))
    nvidia.warn.cache_clear()
    assert "cuda: no kernel" in runs.refusal(capsys, evaluate, run, "--cache", "--device", "cuda")
    assert runs.run_command(evaluate, run, "--cache", "--device", "auto") == 0
    out, err = capsys.readouterr()
    assert re.fullmatch("warning: .*CPU.*: no kernel\n", err)
    assert out.endswith(" cpu in fp32\n")
    nvidia.warn.cache_clear()


def test_too_little_memory_is_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted_scorer, "cache_log_shares", lambda *_, **__: torch.empty(1 << 60))
    assert runs.run_command(evaluate, run, "--cache") == 2
    problem = runs.sentence(capsys.readouterr().err, evaluate)
    assert "memory" in problem


AS_TORCH_IS_IMPORTED = """
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            os.write(1, os.environ.get("GOMP_SPINCOUNT", "").encode())
            os._exit(0)
sys.meta_path.insert(0, Finder())
from ptb_lm import evaluate
evaluate.main([sys.argv[1], "--cache"])
"""


def test_how_torch_s_threads_wait_is_set_before_it_is_imported(run: Path) -> None:
    left_out = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-c", AS_TORCH_IS_IMPORTED, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) > 0
