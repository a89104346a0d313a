"""Print the table of results/README.md from the runs in results/."""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "results"

# Of TensorFlow's tutorial (the docstring of ptb_word_lm.py).
PUBLISHED = {"small": 115.91, "medium": 82.07, "large": 78.29}


def main() -> None:
    """Print a Markdown row for every run."""
    print(
        "| run | epochs | train | valid | test | last epoch's test | published | words/s | minutes | device "
        "| threads |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|")
    for path in sorted(RESULTS.glob("*/metrics.jsonl")):
        name, result = path.parent.name, json.loads((path.parent / "result.json").read_text())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        full = re.fullmatch(r"(small|medium|large)(-tutorial)?-[a-z_]+-[a-z]+", name)
        published = f"{PUBLISHED[full[1]]}" if full else ""
        final = result.get("final_test_perplexity")  # older runs did not test them
        last = "" if final is None else f"{final:.2f}"
        environment = result["environment"]
        device = environment["processor"] if "cpu" in environment["device"] else environment["device"]
        print(
            f"| [{name}]({name}) | {result['epochs']} (best {result['best_epoch']}) "
            f"| {rows[result['best_epoch'] - 1]['train_perplexity']:.2f} | {result['valid_perplexity']:.2f} "
            f"| **{result['test_perplexity']:.2f}** | {last} | {published} "
            f"| {result['words_per_second']:,.0f} | {result['seconds'] / 60:.0f} | {device} "
            f"| {environment['threads']} |"
        )


if __name__ == "__main__":
    main()
