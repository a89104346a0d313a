"""The models without one optimisation: each computes what the model with all of them does."""

import multiprocessing
from multiprocessing.context import BaseContext, ForkServerContext

import check_without
import pytest
from support import installed

pytestmark = pytest.mark.slow

TORCH = [
    f"ptb_lm.bench.rivals.without:{what}"
    for what in ("own_softmax", "sparse_embedding", "kept_memory", "fast_masks")
]
TENSORFLOW = [
    f"ptb_lm.bench.rivals.without_tensorflow:{what}"
    for what in ("own_softmax", "own_gradient", "kept_memory")
]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Fresh processes that have torch already, each to be changed for good."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "ptb_lm.bench.check", "ptb_lm.bench.variants"])
    return context


@pytest.mark.parametrize("what", TORCH)
def test_torch_without_an_optimisation_equals_the_reference(what: str, processes: ForkServerContext) -> None:
    assert_equal_in(processes, what)


@installed("tensorflow")
@pytest.mark.parametrize("what", TENSORFLOW)
def test_tensorflow_without_an_optimisation_equals_the_reference(what: str) -> None:
    assert_equal_in(multiprocessing.get_context("spawn"), what)


def assert_equal_in(context: BaseContext, what: str) -> None:
    process = context.Process(target=check_without.check, args=(what,))
    process.start()
    process.join()
    assert process.exitcode == 0
