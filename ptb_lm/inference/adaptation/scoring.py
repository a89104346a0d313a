"""The perplexity of a model that adapts to the text, and the search for its settings on the valid split."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ptb_lm.common import cli
from ptb_lm.data.text import Ids
from ptb_lm.inference.adaptation import cache, dynamic_evaluation
from ptb_lm.inference.adaptation.dynamic_evaluation import ScoredText, Squares
from ptb_lm.inference.adaptation.growing_grid import least
from ptb_lm.inference.adaptation.segment_model import SegmentModel
from ptb_lm.inference.adaptation.settings import Adaptation, Cache, Dynamic
from ptb_lm.training.scoring import perplexity_of

# What --tune tries at first: `least` goes on beyond an edge at which the best value lies. Of dynamic
# evaluation one setting after the other from the defaults on, each with the best of those before it.
DYNAMIC_GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"rate": (0.0125, 0.025, 0.05, 0.1), "decay": (0.0, 0.002, 0.005), "segment": (5, 10, 20)},
    "rms": {"rate": (0.05, 0.1, 0.2, 0.4), "decay": (0.0, 0.002, 0.005), "segment": (5, 10, 20)},
}
# Of the cache all combinations.
CACHE_WORDS = (250, 500, 1000, 2000)
CACHE_THETAS = (0.2, 0.4, 0.6, 0.8, 1.0)
CACHE_WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3)
BELOW = {"decay": 1.0, "weight": 1.0}  # what a setting must be less than
S = TypeVar("S", Dynamic, Cache)
T = TypeVar("T")

SQUARED_SEGMENTS = 500  # of the training text, whose squared gradients the rule rms goes by


class Trial(NamedTuple):
    """A setting that was tried, and the perplexity of the text that it was tried on."""

    settings: Dynamic | Cache | None  # None: the model as it was trained
    perplexity: float


class Perplexities(NamedTuple):
    """A text's perplexity in several ways.

    Attributes:
        adapted: By the model that adapts to the text.
        without_cache: By dynamic evaluation alone; None unless there is a cache too.
        unadapted: By the model as it was trained.
    """

    adapted: float
    without_cache: float | None
    unadapted: float


class AdaptedScorer:
    """Scores texts with one trained model, which adapts to each text separately.

    Args:
        model: The trained model.
        train: The training text, for the rule rms; empty where it is not needed.
    """

    def __init__(self, model: SegmentModel, train: Ids) -> None:
        self._model = model
        self._device = model.weights["embedding"].device
        self._train = train
        self._squares: dict[int, Squares] = {}

    def perplexities(self, ids: Ids, adaptation: Adaptation, *, description: str) -> Perplexities:
        """Return the perplexities of every word but the first, each scored before the model adapts to it."""
        text = self._scored(ids, adaptation.dynamic, hidden=adaptation.cache is not None, name=description)
        adapted = alone = unadapted = _perplexity(text.log_p_N)
        if adaptation.cache is not None:
            log_p_N = cache.score(text.log_p_N, text.hidden_NH, self._ids(ids)[1:], adaptation.cache)
            adapted = _perplexity(log_p_N)
        if adaptation.dynamic is not None:
            unadapted = _perplexity(self._scored(ids, None, hidden=False, name="unadapted").log_p_N)
        both = adaptation.cache is not None and adaptation.dynamic is not None
        return Perplexities(adapted, alone if both else None, unadapted)

    def tune(
        self,
        ids: Ids,
        adaptation: Adaptation,
        *,
        held: Mapping[str, Any],
        tell: Callable[[Trial], object],
    ) -> tuple[Adaptation, list[Trial]]:
        """Search for the best settings for a text: first of dynamic evaluation, then of the cache.

        Args:
            ids: The text to tune on, which is not the one to report.
            adaptation: What to tune, and the settings to begin at.
            held: "dynamic.rate" -> the value that is not to be changed.
            tell: Called with every trial.

        Returns:
            (the best settings, all trials)
        """
        search, hidden = _Search(tell, held), adaptation.cache is not None
        text = self._scored(ids, None, hidden=hidden, name="unadapted")
        search.note(None, _perplexity(text.log_p_N))
        best = adaptation
        if adaptation.dynamic is not None:
            dynamic, text = self._best_dynamic(ids, adaptation.dynamic, search, hidden=hidden)
            best = dataclasses.replace(best, dynamic=dynamic)
        if adaptation.cache is not None:
            best = dataclasses.replace(best, cache=self._best_cache(ids, text, adaptation.cache, search))
        return best, search.trials

    def _best_dynamic(
        self, ids: Ids, start: Dynamic, search: "_Search", *, hidden: bool
    ) -> tuple[Dynamic, ScoredText]:
        """Return the best settings, and the text as it is scored with them."""
        best: tuple[float, Dynamic, ScoredText] | None = None

        def perplexity(settings: Dynamic) -> float:
            nonlocal best
            text = self._scored(ids, settings, hidden=hidden, name=str(settings))
            found = _perplexity(text.log_p_N)
            if best is None or found < best[0]:
                best = found, settings, text
            return found

        for rule in search.values("dynamic", "rule", start.rule, tuple(DYNAMIC_GRID)):
            begin = start if rule == start.rule else dataclasses.replace(start, rule=rule)
            search.along("dynamic", begin, DYNAMIC_GRID[rule], perplexity)
        assert best is not None
        return best[1], best[2]

    def _best_cache(self, ids: Ids, text: ScoredText, start: Cache, search: "_Search") -> Cache:
        """Try all settings: the shares of a number of words and a theta serve for all weights."""
        targets_N = self._ids(ids)[1:]
        sizes = search.values("cache", "words", start.words, CACHE_WORDS)
        thetas = search.values("cache", "theta", start.theta, CACHE_THETAS)
        weights = search.values("cache", "weight", start.weight, CACHE_WEIGHTS)

        def with_theta(words: int, theta: float) -> float:
            shares_N = cache.log_shares(text.hidden_NH, targets_N, words=words, theta=theta)

            def with_weight(weight: float) -> float:
                found = _perplexity(cache.mix(text.log_p_N, shares_N, weight))
                return search.note(Cache(words=words, theta=theta, weight=weight), found).perplexity

            return least(with_weight, weights, below=BELOW["weight"])

        least(
            lambda words: least(functools.partial(with_theta, words), thetas),
            _different(sizes, len(targets_N)),
            below=2 * len(targets_N),
        )
        return search.best(Cache)

    def _scored(self, ids: Ids, dynamic: Dynamic | None, *, hidden: bool, name: str) -> ScoredText:
        squares = None
        if dynamic is not None and dynamic.rule == "rms":
            squares = self._mean_squares(dynamic.segment)
        with cli.progress_bar(len(ids) - 1, name) as bar:
            return dynamic_evaluation.score(
                self._model,
                self._ids(ids),
                dynamic,
                squares=squares,
                keep_hidden=hidden,
                progress=bar.update,
            )

    def _mean_squares(self, segment: int) -> Squares:
        if segment not in self._squares:
            with cli.progress_bar(SQUARED_SEGMENTS * segment, "squared gradients") as bar:
                self._squares = {  # of one length at a time: they are as large as the model
                    segment: dynamic_evaluation.mean_squares(
                        self._model,
                        self._ids(self._train),
                        segment,
                        segments=SQUARED_SEGMENTS,
                        progress=bar.update,
                    )
                }
        return self._squares[segment]

    def _ids(self, ids: Ids) -> Tensor:
        return torch.from_numpy(ids).to(self._device, torch.int64)


class _Search:
    """A search's trials, and what it must not change."""

    def __init__(self, tell: Callable[[Trial], object], held: Mapping[str, Any]) -> None:
        self.trials: list[Trial] = []
        self._tell, self._held = tell, held

    def note(self, settings: Dynamic | Cache | None, perplexity: float) -> Trial:
        """Store a trial and print it."""
        trial = Trial(settings, perplexity)
        self.trials.append(trial)
        self._tell(trial)
        return trial

    def best(self, kind: type[S]) -> S:
        """Return the best settings of a kind that were tried."""
        of_kind = {t.settings: t.perplexity for t in self.trials if isinstance(t.settings, kind)}
        return min(of_kind, key=of_kind.__getitem__)

    def values(self, kind: str, name: str, start: T, grid: Sequence[T]) -> Sequence[T]:
        """Return the values to try for a setting."""
        return (start,) if f"{kind}.{name}" in self._held else grid

    def along(
        self,
        kind: str,
        start: Dynamic,
        grid: Mapping[str, Sequence[float]],
        perplexity: Callable[[Dynamic], float],
    ) -> None:
        """Try the values of one setting after the other, each with the best of those before it."""
        tried: dict[Dynamic, float] = {}

        def tried_with(settings: Dynamic, name: str, value: float) -> float:
            change: dict[str, Any] = {name: value}
            changed = dataclasses.replace(settings, **change)
            if changed not in tried:
                tried[changed] = self.note(changed, perplexity(changed)).perplexity
            return tried[changed]

        best = start
        for name, grid_values in grid.items():
            values = self.values(kind, name, getattr(start, name), grid_values)
            least(functools.partial(tried_with, best, name), values, below=BELOW.get(name, math.inf))
            best = min(tried, key=tried.__getitem__)


def _different(sizes: Sequence[int], words: int) -> Sequence[int]:
    """Return the sizes of a cache that differ for a text: of those that hold all of it, one."""
    within, holding = [size for size in sizes if size < words], [size for size in sizes if size >= words][:1]
    if within or len(sizes) == 1:
        return within + holding
    size = holding[0]
    while size // 2 >= words:
        size //= 2
    return [size // 2, size] if size > 1 else [size]


def _perplexity(log_p_N: Tensor) -> float:
    """Return the perplexity; infinity if the steps were so large that it is not a number."""
    found = perplexity_of(-float(log_p_N.sum(dtype=torch.float64)), len(log_p_N))
    return math.inf if math.isnan(found) else found
