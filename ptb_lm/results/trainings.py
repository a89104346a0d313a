"""The trainings of plan.py, and the uses of what they train: the flags of each."""

from collections.abc import Iterator

from ptb_lm.results.steps import Adapt, Race, Step, Train, UnlessKept


def cudnn(name: str, flags: str, on: str = "") -> Train:
    """Return a training by the default model."""
    return Train(f"{name}-cudnn-DEVICE", f"--model cudnn {flags}", on=on)


_FASTEST = {"cuda": "--model persistent --precision fp16", "cpu": "--model block_fused --precision auto"}


def fastest(name: str, flags: str) -> Iterator[Train]:
    """Yield a training by the fastest model of a GPU, and one by that of a CPU."""
    yield Train(f"{name}-persistent-fp16-cuda", f"{_FASTEST['cuda']} {flags}", on="cuda")
    yield Train(f"{name}-block_fused-cpu", f"{_FASTEST['cpu']} {flags}", on="cpu")


def choice_of_medium() -> Iterator[Train]:
    """Yield the runs that medium's default was chosen from by validation."""
    shorter = "--config medium --epochs 30 --decay-after 14"
    for seed in (1, 2, 3):
        less = f"{shorter} --keep-prob 0.65 --recurrent-keep-prob 0.8 --seed {seed}"
        yield from fastest(f"medium-30-epochs-seed-{seed}", less)
        yield from fastest(f"medium-more-dropout-seed-{seed}", f"{shorter} --seed {seed}")
    most = "--config medium --keep-prob 0.55 --recurrent-keep-prob 0.65 --decay-after 26"
    yield from fastest("medium-most-dropout", most)


def variations_of_large() -> Iterator[Train]:
    """Yield large with another schedule, and with another bound on the gradient."""
    yield from fastest("large-slow-decay", "--config large --decay-after 36 --lr-decay 0.78")
    yield from fastest("large-clipped-at-5", "--config large --max-grad-norm 5 --epochs 40")


class _Ablation:
    """Steps that add flags to the tutorial's recipe. Each has its own flags and those of all steps before it.

    All average their weights, which changes nothing that is trained: the metrics tell of the weights and of
    their average.
    """

    def __init__(self, config: str) -> None:
        self.name = f"ablation-{config}"
        self.flags = {"--config": config, "--recipe": "tutorial", "--average-epochs": "1"}

    def step(self, name: str, flags: dict[str, str]) -> tuple[str, str]:
        """Return the name and all flags of the next step; a flag that is there takes the new value."""
        self.flags |= flags
        return f"{self.name}-{name}", " ".join(
            f"{flag} {value}".rstrip() for flag, value in self.flags.items()
        )


def ablation_of_medium() -> Iterator[Step]:
    """Yield medium from the tutorial's recipe to the default, a thing a step."""
    steps = _Ablation("medium")
    yield UnlessKept("medium-tutorial")  # trains what the next does: it is here for its own test perplexity
    yield from fastest(*steps.step("1-average", {}))
    yield from fastest(*steps.step("2-variational", {"--variational": "", "--keep-prob": "0.6"}))
    yield from fastest(
        *steps.step("3-words-and-recurrent", {"--embedding-keep-prob": "0.8", "--recurrent-keep-prob": "0.7"})
    )
    yield UnlessKept("medium")  # with a schedule of its own


def ablation_of_small() -> Iterator[Step]:
    """Yield the same things for small, milder."""
    # Small has no dropout in the tutorial, so less of it. Bound and decay follow the published run that
    # medium's masks come from (config.py). It decays by 1 / 1.2 where the tutorial's medium does by 0.8, so
    # small by 0.5 to the ln(1 / 1.2) / ln(0.8).
    steps = _Ablation("small")
    yield UnlessKept("small-tutorial")
    yield UnlessKept("small")  # the average
    yield cudnn(*steps.step("2-variational", {"--variational": "", "--keep-prob": "0.8"}))
    yield cudnn(
        *steps.step("3-words-and-recurrent", {"--embedding-keep-prob": "0.9", "--recurrent-keep-prob": "0.9"})
    )
    yield cudnn(*steps.step("4-schedule", {"--lr-decay": "0.57", "--max-grad-norm": "10"}))
    yield cudnn(*steps.step("5-slower-decay", {"--lr-decay": "0.8"}))


def race(name: str, flags: str, *, what: str) -> Iterator[Train]:
    """Yield a race on a GPU and one on a CPU; only that of this machine's device is run."""
    flags = f"--config race {flags}".rstrip()
    for device, model in _FASTEST.items():
        yield Race(f"{name}-COMMIT-{device}", f"{flags} {model}", on=device, what=what)


def adaptations(config: str) -> Iterator[Adapt]:
    """Yield the ways in which a trained model adapts to the text."""
    run = cudnn(config, f"--config {config}")
    both = "--dynamic --dynamic-rule sgd --cache --tune-words 4000"
    for name, flags in {"cache": "--cache", "dynamic-and-cache": both}.items():
        yield Adapt(f"adaptation-{config}/{name}", run, flags)


def small_by(recipe: str, precision: str, seed: int) -> Train:
    """Return small by the fastest model of a CPU."""
    return Train(
        f"small-{recipe}-{precision}-seed-{seed}-DEVICE",
        f"--model block_fused --config small --recipe {recipe} --precision {precision} --seed {seed}",
    )
