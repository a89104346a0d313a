"""Train a language model: python -m ptb_lm.train --model cudnn --config medium."""

import argparse
import dataclasses
import itertools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm import backend, cli, datasets, parameters, runlog
from ptb_lm.config import PRESETS, RECIPES, Config, flag_name
from ptb_lm.corpus import Corpus
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write, home
from ptb_lm.interrupt import Interrupted, StopRequest
from ptb_lm.rundir import RunConfig, RunDirectory
from ptb_lm.trainer import Trainer, count_steps
from ptb_lm.vocabulary import Vocabulary

PROG = "python -m ptb_lm.train"
OVERRIDES = tuple(field.name for field in dataclasses.fields(Config))
# What may differ when a run is resumed; all else would make it another run.
RESUMABLE = {
    "data",
    "device",
    "epochs",
    "learning_rate",
    "lr_decay",
    "decay_after",
    "max_grad_norm",
    "keep_prob",
    "variational",
    "embedding_keep_prob",
    "recurrent_keep_prob",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return cli.run(PROG, lambda: _train(_parser().parse_args(arguments), shlex.join(arguments)))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog=PROG, description="Train an LSTM language model and report its perplexity.")
    models = "; ".join(
        f"{model}: {text} ({name})"
        for name, row in backend.FRAMEWORKS.items()
        for model, text in row.models.items()
    )
    # No defaults here: what was not given must be told apart from what was, when a run is resumed.
    add = parser.add_argument
    add("--model", choices=backend.MODELS, help=f"the LSTM implementation (default: cudnn). {models}")
    add("--config", choices=tuple(PRESETS), help="the preset (default: small; demo for --data synthetic)")
    add(
        "--recipe",
        choices=tuple(RECIPES),
        help="default: medium and large to a lower perplexity; tutorial: as TensorFlow's tutorial has it",
    )
    add("--framework", choices=tuple(backend.FRAMEWORKS), help="default: torch")
    add(
        "--execution",
        choices=backend.EXECUTIONS,
        help="how the operations are run (default: the first of its framework). "
        + "; ".join(f"{name}: {', '.join(row.executions)}" for name, row in backend.FRAMEWORKS.items()),
    )
    add(
        "--unroll",
        choices=backend.UNROLLS,
        help="static (default): the graph holds every time step; loop: the graph holds one, and loops",
    )
    add("--data", help="ptb (default), synthetic, or a folder with train.txt, valid.txt and test.txt")
    add("--seed", type=int, help="of the initial weights and of dropout (default: 1)")
    add("--device", choices=backend.DEVICES, help="default: auto, a GPU if there is one")
    add("--precision", choices=backend.PRECISIONS, help="default: fp32")
    runs = parser.add_argument_group("the run directory")
    where = runs.add_mutually_exclusive_group()
    where.add_argument("--run-dir", type=Path, help="default: a new one in checkpoints/")
    where.add_argument("--resume", type=Path, metavar="RUN", help="go on exactly where this run stopped")
    runs.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")
    overrides = parser.add_argument_group("hyper-parameters, in place of the preset's")
    for field in dataclasses.fields(Config):
        help_text = f"{field.metadata['help']} ({_preset_values(field.name)})"
        if field.type is bool:
            overrides.add_argument(
                flag_name(field.name), action=argparse.BooleanOptionalAction, default=None, help=help_text
            )
        else:
            overrides.add_argument(flag_name(field.name), type=field.type, metavar="N", help=help_text)
    return parser


def _preset_values(field: str) -> str:
    """Return a hyper-parameter's value in each preset: the default recipe's, the tutorial's if another."""
    shown = []
    for name in PRESETS:
        by_default, tutorial = (_shown(getattr(RECIPES[r][name], field)) for r in ("default", "tutorial"))
        note = "" if by_default == tutorial else f" [tutorial {tutorial}]"
        shown.append(f"{name} {by_default}{note}")
    return ", ".join(shown)


def _shown(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:.4g}"


def _train(arguments: argparse.Namespace, command_line: str) -> int:
    command = f"{PROG} {command_line}".strip()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    resuming = arguments.resume is not None
    if arguments.overwrite and arguments.run_dir is None:
        raise UserError("--overwrite replaces the run in --run-dir, which is not given")
    if resuming:
        directory = RunDirectory(arguments.resume)
        run = _resumed_config(directory.read_config(), given)
    else:
        run = _new_config(given)
        directory = RunDirectory(arguments.run_dir or _new_path(run))
        _refuse_existing(directory, overwrite=arguments.overwrite)

    # Everything that can be wrong is found out before anything is written.
    corpus = datasets.load(run.data)
    count_steps(corpus, run)
    if resuming:
        _check_vocabulary(directory, corpus)
    weights = parameters.initial(run.hyperparameters, len(corpus.vocabulary), seed=run.seed)
    model = backend.build(
        run.hyperparameters,
        weights,
        framework=run.framework,
        model=run.model,
        execution=run.execution,
        unroll=run.unroll,
        device=run.device,
        precision=run.precision,
        seed=run.seed,
    )
    with directory.locked(), StopRequest() as stop:
        trainer = Trainer(run, corpus, model, directory, stop=stop, command=command)
        if resuming:
            trainer.resume(command)
            if trainer.progress.epoch == run.hyperparameters.epochs and directory.result.exists():
                runlog.say(f"the run in {directory.path} has ended; more --epochs would go on")
                _report(directory.read_result(), directory)
                return 0
            directory.remove_leftovers()
            directory.write_config(run)
        else:
            directory.create(run, corpus.vocabulary)
        _announce(run, corpus, model, directory, parameters.count(weights))
        try:
            result = trainer.train()
        except Interrupted as interrupted:
            again = shlex.join([*PROG.split(), "--resume", str(directory.path)])
            print(f"{interrupted}: saved; go on with: {again}", file=sys.stderr)
            return interrupted.exit_status
    atomic_write(directory.result, json.dumps(result, indent=2) + "\n")
    _report(result, directory)
    return 0


def _new_config(given: dict[str, Any]) -> RunConfig:
    data = given.get("data", "ptb")
    preset = given.get("config", "demo" if data == "synthetic" else "small")
    recipe = given.get("recipe", "default")
    changes = {name: given[name] for name in OVERRIDES if name in given}
    framework = given.get("framework", "torch")
    row = backend.FRAMEWORKS[framework]
    return RunConfig(
        config=preset,
        recipe=recipe,
        model=given.get("model", "cudnn"),
        framework=framework,
        execution=given.get("execution", row.executions[0]),
        unroll=given.get("unroll", row.unrolls[0]),
        data=data,
        seed=given.get("seed", 1),
        device=given.get("device", "auto"),
        precision=given.get("precision", "fp32"),
        hyperparameters=RECIPES[recipe][preset].replace(**changes),
    )


def _resumed_config(run: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with the flags given now, where they may differ."""
    before = {**run.to_json(), **run.to_json()["hyperparameters"]}
    for name in given:
        if name in before and name not in RESUMABLE and given[name] != before[name]:
            raise UserError(
                f"{flag_name(name)} {given[name]} differs from the run's {before[name]}, and a resumed run "
                "keeps all but its data, device, epochs, learning rate and its decay, clipping and dropout"
            )
    changes = {name: given[name] for name in OVERRIDES if name in given}
    return dataclasses.replace(
        run,
        data=given.get("data", run.data),
        device=given.get("device", run.device),
        hyperparameters=run.hyperparameters.replace(**changes),
    )


def _new_path(run: RunConfig) -> Path:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{run.framework}-{run.model}-{run.config}"
    path = home() / "checkpoints" / name
    numbers = itertools.count(2)
    while path.exists():  # runs that start within one second
        path = path.with_name(f"{name}-{next(numbers)}")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _refuse_existing(directory: RunDirectory, *, overwrite: bool) -> None:
    path = directory.path
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a run directory")
    if not path.is_dir() or not any(path.iterdir()) or directory.is_stillborn():
        return
    if overwrite:
        directory.read_config()  # of a run; any other folder is left alone
    else:
        again = shlex.join(["--resume", str(path)])
        raise UserError(
            f"the run directory {path} exists; go on with {again}, or replace it with --overwrite"
        )


def _check_vocabulary(directory: RunDirectory, corpus: Corpus) -> None:
    if Vocabulary.load(directory.vocabulary).sha256 != corpus.vocabulary.sha256:
        raise UserError(
            f"the vocabulary of the data ({len(corpus.vocabulary):,} words) is not the one in "
            f"{directory.vocabulary}"
        )


def _announce(
    run: RunConfig, corpus: Corpus, model: backend.Backend, directory: RunDirectory, parameter_count: int
) -> None:
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in corpus.splits.items())
    runlog.say(f"data {run.data}: {tokens} tokens, {len(corpus.vocabulary):,} words")
    runlog.say(
        f"model {run.model}, config {run.config}, recipe {run.recipe}: {parameter_count:,} parameters, "
        f"{model.engine}"
    )
    runlog.say(f"run directory {directory.path}")


def _report(result: dict[str, Any], directory: RunDirectory) -> None:
    bound = result["best_possible_perplexity"]
    best = f"; the best any model can do is {bound:.2f}" if bound else ""
    runlog.say(
        f"test perplexity {result['test_perplexity']:.2f}{best} (valid {result['valid_perplexity']:.2f}, "
        f"epoch {result['best_epoch']}; {result['words_per_second']:,.0f} words/s; "
        f"{result['seconds']:,.0f} s){_final_epoch(result)}"
    )
    runlog.say(f"written to {directory.result}")


def _final_epoch(result: dict[str, Any]) -> str:
    """Return what the last epoch's weights score, where they are not the best ones."""
    if result["best_epoch"] == result["epochs"] or "final_test_perplexity" not in result:  # of an older run
        return ""
    return (
        f"; the last epoch's weights: test {result['final_test_perplexity']:.2f}, "
        f"valid {result['final_valid_perplexity']:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
