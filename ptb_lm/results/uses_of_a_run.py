"""The commands that use a trained run, each once, for plan.py: what they print is kept.

They read sentences of our own (examples/): those of Penn Treebank may not be kept.
"""

from collections.abc import Iterator

from ptb_lm.results.steps import Python, Train

_USES = {
    "evaluate.txt": "-m ptb_lm.evaluate RUN --device DEVICE",
    "evaluate_text.txt": "-m ptb_lm.evaluate RUN --device DEVICE --text examples/sentences.txt",
    "score.tsv": "-m ptb_lm.score RUN --device DEVICE examples/sentences.txt",
    "score_carried.tsv": "-m ptb_lm.score RUN --device DEVICE examples/sentences.txt --carry-state",
    "score_words.tsv": "-m ptb_lm.score RUN --device DEVICE examples/sentences.txt --per-word --bits",
    "n_best.txt": "-m ptb_lm.score RUN --device DEVICE examples/n_best.txt --n-best --all --lm-weight 0.5",
    "predict.txt": "-m ptb_lm.predict RUN --device DEVICE 'the company said it' -k 10",
    "generate.txt": "-m ptb_lm.generate RUN --device DEVICE --prompt 'the company' --seed 1 --count 5",
    "neighbours.txt": "-m ptb_lm.neighbours RUN --device DEVICE october -k 10",
}


def uses(name: str, run: Train) -> Iterator[Python]:
    """Yield the commands on a run; what they print is kept in results/NAME.

    Args:
        name: The folder in results.
        run: It is trained first, or taken as it was.
    """
    folder = f"checkpoints/reproduce-{run.name}"
    for file, command in _USES.items():
        yield Python(command.replace("RUN", folder), stdout=f"results/{name}/{file}", run=run)
    yield Python(
        f"examples/exported_model.py {folder} examples/sentences.txt",
        needs="onnxruntime",
        stdout=f"results/{name}/exported.tsv",
        run=run,
    )
