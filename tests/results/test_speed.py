"""The tables of speed in README and docs are those of the rows in results/."""

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from ptb_lm.bench import report_settings
from ptb_lm.bench.report_settings import ReportSettings
from ptb_lm.results import __main__ as results
from ptb_lm.results import optimisations, profiles, scoring

PAGES = ("README.md", "docs/performance.md", "docs/scaling.md", "docs/semantics.md")
BENCHMARKS = (
    *("bench-precisions-cpu", "bench-precisions-xeon-cpu", "bench-float32-cpu", "bench-scaling-cpu"),
    *("bench-semantics-cpu", "bench-peak-cuda"),
    *("bench-optimisations-small-cpu", "bench-optimisations-medium-cpu"),
    *("bench-optimisations-tensorflow-small-cpu", "bench-optimisations-tensorflow-medium-cpu"),
)
OTHERS = (
    *(f"contention-medium-cpu/{name}" for name in ("table.md", "rows.jsonl")),
    *(f"{folder}/rows.jsonl" for folder in scoring.FOLDERS.values()),
    *(f"{folder}/profile.txt" for folder in profiles.FOLDERS.values()),
)
# Student's t beyond which 5 % lie, by degrees of freedom.
T = {2: 4.3026527, 3: 3.1824463, 4: 2.7764451, 5: 2.5705818, 9: 2.2621572}


def write(root: Path) -> None:
    assert results.main(["speed", "--root", str(root)]) == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages, and what they are written from."""
    kept = [f"results/{name}/rows.jsonl" for name in BENCHMARKS] + [f"results/{name}" for name in OTHERS]
    for name in (*PAGES, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def part(page: Path, name: str) -> str:
    found = re.search(rf"<!-- {re.escape(name)}: .*?-->\n(.*?)<!-- end of ", page.read_text(), re.S)
    assert found is not None
    return found[1]


def cells(text: str) -> dict[str, list[str]]:
    """The cells of a part's first table, without its titles, by the first of each line."""
    _, *lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return {name.strip(): rest for name, *rest in (line.strip("| ").split(" | ") for line in lines)}


def test_the_pages_are_as_the_script_writes_them(checkout: Path) -> None:
    write(checkout)
    for name in PAGES:
        assert (checkout / name).read_text() == (ROOT / name).read_text(), (
            f"{name}: python -m ptb_lm.results speed"
        )


# Of each folder: a variant whose speed shows in a part of a page.
SHOWN = {
    "bench-precisions-cpu": ("plain-torch/cudnn", "README.md", "speed"),
    "bench-precisions-xeon-cpu": ("plain-torch/cudnn", "docs/performance.md", "speed with AMX"),
    "bench-float32-cpu": ("without-library/custom", "docs/performance.md", "speed in float32"),
    "bench-scaling-cpu": ("torch-2-processes/cudnn", "docs/scaling.md", "scaling"),
    "bench-semantics-cpu": ("one-call-torch/cudnn", "docs/semantics.md", "one call"),
    "bench-peak-cuda": ("torch/persistent/graph@fp16", "docs/performance.md", "peak"),
    "bench-optimisations-small-cpu": ("torch/cudnn", "docs/performance.md", "torch's changes"),
    "bench-optimisations-tensorflow-small-cpu": (
        *("without-own-softmax/custom", "docs/performance.md", "TensorFlow's changes"),
    ),
    "bench-optimisations-tensorflow-medium-cpu": (
        *("plain-tensorflow/keras", "docs/performance.md", "TensorFlow's models"),
    ),
}


def test_other_rows_make_other_pages(checkout: Path) -> None:
    for folder, (variant, _, _) in SHOWN.items():

        def faster(row: dict[str, Any], of: str = variant) -> None:
            if "steps" in row and row["variant"] == of:
                row["steps"] *= 3

        change_rows(checkout / "results" / folder / "rows.jsonl", faster)
    write(checkout)
    for _, page, name in SHOWN.values():
        assert part(checkout / page, name) != part(ROOT / page, name)


def change_rows(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for row in lines:
        row.pop("crc32", None)  # which rows of before have not
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


def blocks(folder: str, workload: str, variant: str) -> Iterator[dict[str, Any]]:
    for line in (ROOT / "results" / folder / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        measured = row["status"] == "measured" and row["pass"] == "train"
        if measured and (row["workload"], row["variant"]) == (workload, variant):
            yield row


def expected_ratio(folder: str, workload: str, fast: str, slow: str) -> str:
    """The geometric mean over pairs of processes, with Student's interval: worked out from the lines.

    Of rows in which no process of one serves two of the other.
    """
    seconds = {
        variant: {
            (row.get("session"), row["round"]): (row["process"], row["seconds"] / row["steps"])
            for row in blocks(folder, workload, variant)
        }
        for variant in (fast, slow)
    }
    by_process: dict[tuple[int, int], list[float]] = {}
    for key, (process, took) in seconds[fast].items():
        if key in seconds[slow]:
            other, longer = seconds[slow][key]
            by_process.setdefault((process, other), []).append(math.log(longer / took))
    for side in (0, 1):
        of_one = [pair[side] for pair in by_process]
        assert len(of_one) == len(set(of_one)), "each process stands in one pair"
    means = [statistics.fmean(logs) for logs in by_process.values()]
    mean, half = statistics.fmean(means), T[len(means) - 1] * statistics.stdev(means) / math.sqrt(len(means))
    low, high = (shown_end(math.exp(end)) for end in (mean - half, mean + half))
    return f"{math.exp(mean):.2f} ({low} to {high})"


def shown_end(value: float) -> str:
    """With the fewest decimals, two at least, that do not make 1 of another number."""
    rounded = (f"{value:.{decimals}f}" for decimals in range(2, 9))
    return next(text for text in rounded if float(text) != 1)


def test_ratios_are_to_the_variant_of_the_words_whatever_baseline_a_report_has(checkout: Path) -> None:
    """A table of each kind: those of the changes, and of one process and two, pair variants themselves."""
    for folder, other in (
        ("bench-precisions-cpu", "torch/cudnn"),
        ("bench-precisions-xeon-cpu", "torch/cudnn"),
        ("bench-float32-cpu", "torch/cudnn"),
        ("bench-peak-cuda", "torch/cudnn/graph@tf32"),
        ("bench-semantics-cpu", "one-call-torch/cudnn"),
        ("bench-scaling-cpu", "torch/basic"),
        ("bench-optimisations-medium-cpu", "torch/block"),
    ):
        report_settings.write(checkout / "results" / folder, ReportSettings(baseline=other))
    write(checkout)
    for name in PAGES:
        assert (checkout / name).read_text() == (ROOT / name).read_text()


def test_two_processes_are_as_fast_as_the_rows_say_with_an_interval() -> None:
    lines = [line for line in part(ROOT / "docs" / "scaling.md", "scaling").splitlines() if "`" in line]
    assert len(lines) >= 4
    for line in lines:
        workload, model, *_, ratio = line.strip("| ").split(" | ")
        two, one = (f"{kind}/{model.strip('`')}" for kind in ("torch-2-processes", "torch"))
        assert ratio == expected_ratio("bench-scaling-cpu", workload, two, one)


def test_what_a_change_gained_is_the_ratio_of_a_model_with_it_and_without_it(checkout: Path) -> None:
    """Rows by five processes a variant, of the speeds that are given."""
    for config, gain in (("small", 2.0), ("medium", 1.0)):
        path = checkout / "results" / f"bench-optimisations-{config}-cpu" / "rows.jsonl"
        measured = [json.loads(line) for line in path.read_text().splitlines()]
        like = next(row for row in measured if row["status"] == "measured")
        like.pop("crc32", None)
        speeds = {"torch/cudnn": 1.0, "torch/cudnn#again": 1.0, "without-own-softmax/custom": 1 / gain}
        rows = [
            {
                **like,
                "variant": name,
                "label": name,
                "baseline": "torch/cudnn",
                "round": n,
                "steps": 10,
                "process": 10 * place + n,
                "seconds": (n + 1) / speed,
            }
            for place, (name, speed) in enumerate(speeds.items())
            for n in range(5)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = cells(optimisations.torch_changes(checkout / "results"))
    assert found["the softmax in one buffer"] == ["2.00 (2.00 to 2.00)", "1.00 (1.00 to 1.00)"]
    assert found["nothing: `cudnn`, measured twice"] == ["1.00 (1.00 to 1.00)"] * 2
    assert found["fast masks"] == ["not measured"] * 2


def test_what_the_kernels_gained_is_beside_what_computes_without_them_today() -> None:
    found = cells(part(ROOT / "docs" / "performance.md", "torch's changes"))
    pair = "torch/block_fused", "without-packed-recurrence/custom"
    assert found["`block_fused`: kernels of our own"] == [
        expected_ratio(f"bench-optimisations-{config}-cpu", config, *pair) for config in ("small", "medium")
    ]


def test_rows_of_today_have_one_model_without_kernels(checkout: Path) -> None:
    earlier = "without-packed-recurrence/custom"
    for config in ("small", "medium"):
        path = checkout / "results" / f"bench-optimisations-{config}-cpu" / "rows.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line).get("variant") != earlier))
    found = cells(optimisations.torch_changes(checkout / "results"))
    pair = "torch/block_fused", "without-own-kernels/custom"
    assert found["`block_fused`: kernels of our own"] == [
        expected_ratio(f"bench-optimisations-{config}-cpu", config, *pair) for config in ("small", "medium")
    ]


def test_a_profile_s_kinds_are_sums_of_its_operations() -> None:
    found = cells(profiles.markdown(ROOT / "results"))
    of_a_unit = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    for place, folder in enumerate(profiles.FOLDERS.values()):
        text = (ROOT / "results" / folder / "profile.txt").read_text()
        steps = int(text.split(" steps, ")[0].split()[-1])
        spent = {}
        for fields in (line.split() for line in text.splitlines()):
            if len(fields) == 7 and fields[1].endswith("%"):
                number = fields[2].rstrip("mus")
                spent[fields[0]] = float(number) * of_a_unit[fields[2][len(number) :]] / steps
        assert len(spent) > 20
        masks = spent.get("aten::bernoulli_", 0) + spent.get("aten::random_", 0)
        assert found["random numbers of masks"][place] == f"{masks:.0f}"
        ends = ("aten::exp", "ptb_lm::cross_entropy")
        softmax = sum(ms for name, ms in spent.items() if "log_softmax" in name or name in ends)
        assert found["log-softmax, exponential, their gradients"][place] == f"{softmax:.0f}"
        loops = ("aten::mkldnn_rnn", "ptb_lm::lstm_")
        layers = sum(ms for name, ms in spent.items() if name.startswith(loops))
        assert found["LSTM: oneDNN's layers; in `block_fused` the loop over time"][place] == f"{layers:.0f}"
        kinds = [float(of[place]) for name, of in found.items() if name != "total" and of[place] != "–"]
        assert sum(kinds) == pytest.approx(float(found["total"][place]), abs=len(kinds) / 2)


def test_a_profile_counts_the_kernels_of_our_own(checkout: Path) -> None:
    before = cells(profiles.markdown(checkout / "results"))
    path = checkout / "results" / profiles.FOLDERS["`cudnn`"] / "profile.txt"
    text = path.read_text().replace("aten::mm ", "ptb_lm::multiply ")
    path.write_text(re.sub(r"aten::exp\b|aten::_log_softmax\b", "ptb_lm::cross_entropy", text))
    assert "ptb_lm::multiply" in path.read_text()
    assert "ptb_lm::cross_entropy" in path.read_text()
    assert cells(profiles.markdown(checkout / "results")) == before


def test_a_study_s_machine_commit_and_command_are_those_of_its_rows(checkout: Path) -> None:
    facts = {"processor": "A Xeon", "cores": 3, "commit": "fedcba9876543210", "command": "python a_study"}
    path = checkout / "results" / "contention-medium-cpu" / "rows.jsonl"
    path.write_text(json.dumps(facts) + "\n")
    profile = checkout / "results" / profiles.FOLDERS["`cudnn`"] / "profile.txt"
    command, *rest = profile.read_text().splitlines(keepends=True)
    profile.write_text(f"python a_profile\nMeasured on A Xeon, 3 cores, commit fedcba9876\n{''.join(rest)}")
    older = checkout / "results" / profiles.FOLDERS["plain loop"] / "profile.txt"
    older.write_text(re.sub(r"^Measured on .*\n", "", older.read_text(), flags=re.M))
    write(checkout)
    page = checkout / "docs" / "performance.md"
    measured = "A Xeon, 3 cores, commit fedcba9, by `python"
    assert f"\nMeasured on {measured} a_study`.\n" in part(page, "contention")
    assert f"\n- `cudnn`: {measured} a_profile`\n" in part(page, "profile")
    assert f"\n- plain loop: processor and commit not recorded, by `{command.split()[0]} " in part(
        page, "profile"
    )
    path.unlink()
    assert results.main(["speed", "--root", str(checkout)]) == 2


def test_the_goal_of_scoring_is_judged_by_the_median_of_the_rounds(checkout: Path) -> None:
    path = checkout / "results" / scoring.FOLDERS["float32"] / "rows.jsonl"
    facts, *_ = path.read_text().splitlines()
    rows = [
        {"longest": longest, "alone": 100.0, "batched": 100.0 * times, "limit": 5000.0}
        for longest, all_times in ((10, (9.0, 10.5, 30.0)), (40, (1.0, 9.9, 11.0)))
        for times in all_times
    ]
    path.write_text("\n".join([facts, *map(json.dumps, rows)]) + "\n")
    text = scoring.markdown(checkout / "results").partition("In bfloat16")[0]
    assert cells(text)["1 to 10"][2] == "10.5 (9.0 to 30.0)"
    assert cells(text)["1 to 40"][2] == "9.9 (1.0 to 11.0)"
    reached, missed = "reached for sentences of 1 to 10 words", "missed for sentences of 1 to 40 words"
    assert f"The goal, 10 times as fast, is {reached}, and {missed}." in text
