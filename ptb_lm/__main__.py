"""List the commands: python -m ptb_lm."""

import sys

COMMANDS = {
    "train": "train a language model and report its perplexity",
    "evaluate": "report the perplexity of a trained run on a text",
    "score": "tell the log-probability of sentences, and rescore n-best lists",
    "generate": "write text with a trained run",
    "predict": "tell the likeliest next words",
    "neighbours": "tell which words are near each other, draw them",
    "export": "write a trained model as ONNX or TorchScript",
    "play": "try a trained run in a browser",
    "bench": "measure how fast each LSTM implementation is on this machine",
    "download": "fetch Penn Treebank and verify it",
}


def main() -> int:
    """Print a line for each command; return the exit status."""
    for name, text in COMMANDS.items():
        print(f"python -m ptb_lm.{name:<10} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
