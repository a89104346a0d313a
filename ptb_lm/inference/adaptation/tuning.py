"""The search for the settings of a model that adapts to the text, by the perplexity of the valid split.

A grid of values grows: its best value then does not lie where the grid happens to end.
"""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ptb_lm.data.text import Ids
from ptb_lm.inference.adaptation import Adaptation, DynamicEvaluation, NeuralCache
from ptb_lm.inference.adaptation.adapted_scorer import AdaptedScorer, cache_log_shares, mix_cache
from ptb_lm.inference.adaptation.dynamic_evaluation import ScoredText, text_perplexity

# The first values of --tune: `minimize_on_grid` goes on beyond an edge at which the best value lies. Dynamic
# evaluation tries one setting after the other from the defaults on, each with the best of those before it.
DYNAMIC_GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"rate": (0.0125, 0.025, 0.05, 0.1), "decay": (0.0, 0.002, 0.005), "segment": (5, 10, 20)},
    "rms": {"rate": (0.05, 0.1, 0.2, 0.4), "decay": (0.0, 0.002, 0.005), "segment": (5, 10, 20)},
}
# The cache tries all combinations.
CACHE_WORDS = (250, 500, 1000, 2000)
CACHE_THETAS = (0.2, 0.4, 0.6, 0.8, 1.0)
CACHE_WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3)
UPPER_LIMITS = {"decay": 1.0, "weight": 1.0}  # a setting must be less
MAX_EXTENSIONS = 6  # values beyond a grid, at most: 64 times less or more than its edge

T = TypeVar("T")
GridValue = TypeVar("GridValue", int, float)

# Settings that were tried, None for the model as it was trained, and the perplexity with them.
Trials = dict[DynamicEvaluation | NeuralCache | None, float]


def tune(
    scorer: AdaptedScorer,
    ids: Ids,
    start: Adaptation,
    *,
    fixed: Collection[str],
    on_trial: Callable[[DynamicEvaluation | NeuralCache | None, float], object],
) -> tuple[Adaptation, Trials]:
    """Search for the best settings for a text: first of dynamic evaluation, then of the cache.

    Args:
        scorer: The trained model.
        ids: The text to tune on, which is not the one to report.
        start: The settings to begin at; a part that is None stays so.
        fixed: Names of the settings that are not to be changed, such as dynamic_rate.
        on_trial: Function that is called with every trial.

    Returns:
        (the best settings, all trials in their order)
    """
    search, dynamic, cache = _Search(scorer, ids, fixed, on_trial), start.dynamic, start.cache
    text = scorer.score(ids, None, keep_hidden=cache is not None, description="unadapted")
    search.note(None, text.perplexity)
    if dynamic:
        dynamic, text = search.tune_dynamic(dynamic, keep_hidden=cache is not None)
    if cache:
        cache = search.tune_cache(text, cache)
    return Adaptation(dynamic=dynamic, cache=cache), search.trials


@dataclass(frozen=True)
class _Search:
    """A search on a text: its trials, and the settings that it must not change."""

    scorer: AdaptedScorer
    ids: Ids
    fixed: Collection[str]
    on_trial: Callable[[DynamicEvaluation | NeuralCache | None, float], object]
    trials: Trials = field(default_factory=dict)

    def tune_dynamic(
        self, start: DynamicEvaluation, *, keep_hidden: bool
    ) -> tuple[DynamicEvaluation, ScoredText]:
        """Return the best settings, and the text as it is scored with them."""
        best: tuple[DynamicEvaluation, ScoredText] | None = None

        def measure(settings: DynamicEvaluation, name: str, value: Any) -> float:
            nonlocal best
            changed = replace(settings, **{name: value})
            if changed not in self.trials:
                text = self.scorer.score(self.ids, changed, keep_hidden=keep_hidden, description=str(changed))
                self.note(changed, text.perplexity)
                if best is None or self.trials[changed] < self.trials[best[0]]:
                    best = changed, text
            return self.trials[changed]

        for rule in self._values(start, "rule", tuple(DYNAMIC_GRID)):
            settings = replace(start, rule=rule)
            for name, grid in DYNAMIC_GRID[rule].items():
                values = self._values(start, name, grid)
                measure_value = functools.partial(measure, settings, name)
                minimize_on_grid(measure_value, values, limit=UPPER_LIMITS.get(name, math.inf))
                tried = (
                    each for each in self.trials if isinstance(each, DynamicEvaluation) and each.rule == rule
                )
                settings = min(tried, key=self.trials.__getitem__)
        assert best is not None
        return best

    def tune_cache(self, text: ScoredText, start: NeuralCache) -> NeuralCache:
        """Try all settings: the shares of a number of words and a theta serve for all weights."""
        targets = len(self.ids) - 1
        sizes = self._values(start, "words", CACHE_WORDS)
        thetas = self._values(start, "theta", CACHE_THETAS)
        weights = self._values(start, "weight", CACHE_WEIGHTS)

        def measure(words: int, theta: float) -> float:
            shares_N = cache_log_shares(text, words=words, theta=theta)

            def measure_weight(weight: float) -> float:
                perplexity = text_perplexity(mix_cache(text.log_p_N, shares_N, weight))
                return self.note(NeuralCache(words=words, theta=theta, weight=weight), perplexity)

            return minimize_on_grid(measure_weight, weights, limit=UPPER_LIMITS["weight"])

        minimize_on_grid(
            lambda words: minimize_on_grid(functools.partial(measure, words), thetas),
            distinct_sizes(sizes, targets),
            limit=2 * targets,
        )
        tried = (each for each in self.trials if isinstance(each, NeuralCache))
        return min(tried, key=self.trials.__getitem__)

    def note(self, settings: DynamicEvaluation | NeuralCache | None, perplexity: float) -> float:
        """Store a trial, report it, and return its perplexity."""
        self.trials[settings] = perplexity
        self.on_trial(settings, perplexity)
        return perplexity

    def _values(self, start: DynamicEvaluation | NeuralCache, name: str, grid: Sequence[T]) -> Sequence[T]:
        """Return the values to try for a setting: that of the start if it is not to be changed."""
        return (getattr(start, name),) if f"{start.kind}_{name}" in self.fixed else grid


def distinct_sizes(sizes: Sequence[int], words: int) -> Sequence[int]:
    """Return the sizes of a cache that differ for a text: of those that hold all of it, one."""
    smaller, larger = [size for size in sizes if size < words], [size for size in sizes if size >= words][:1]
    if smaller or len(sizes) == 1:
        return smaller + larger
    size = larger[0]
    while size // 2 >= words:
        size //= 2
    return [size // 2, size] if size > 1 else [size]


def minimize_on_grid(
    measure: Callable[[GridValue], float], values: Iterable[GridValue], *, limit: float = math.inf
) -> float:
    """Measure all values of a grid, and of its extension; return the least measurement.

    While the best value is the smallest of those measured, its half is measured too, and while it is the
    largest its double. This ends when the best lies inside, when no further value is possible, or after
    `MAX_EXTENSIONS` values. A grid of a single value does not grow.

    Args:
        measure: A function of a value, whose result is to be small. The first of equals is the best.
        values: The grid, without negative values.
        limit: A bound of further values: they must be less, and greater than 0.
    """
    results = {value: measure(value) for value in values}
    for _ in range(MAX_EXTENSIONS if len(results) > 1 else 0):
        value = _next_value(results)
        if value is None or not 0 < value < limit:
            break
        results[value] = measure(value)
    return min(results.values())


def _next_value(results: dict[GridValue, float]) -> GridValue | None:
    """Return the value beyond the edge at which the best one lies; None if it lies inside."""
    best = min(results, key=results.__getitem__)
    if best == min(results):
        return best // 2 if isinstance(best, int) else best / 2
    return best * 2 if best == max(results) else None
