"""The walls of the house: imports run downwards only, frameworks stay in their rooms, the root has a list."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from architecture import (
    BENCHMARKS,
    FLOORS,
    MODULES,
    PACKAGE,
    PAGE,
    arrows,
    drawn,
    imported,
    room,
)

from ptb_lm.__main__ import COMMANDS
from ptb_lm.common.program import module_name

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Who may import a framework where it is imported itself; the others import none at all, or when it is needed.
# Rivals are programs of every framework.
OF_A_FRAMEWORK = {
    "torch": (
        "ptb_lm.torch_backend",
        "ptb_lm.bench.rivals",
        "benchmarks.rivals",
        "benchmarks.studies.profile",  # by torch's own profiler
        "ptb_lm.classifier.on_torch",
        # What no backend computes: a model that changes while it reads, and a model as a plain torch module.
        "ptb_lm.inference.adaptation.evaluation",
        "ptb_lm.inference.adaptation.adapted_scorer",
        "ptb_lm.inference.adaptation.dynamic_evaluation",
        "ptb_lm.inference.importing.tensor_files",  # torch's own reader of its files
        "ptb_lm.inference.adaptation.segment_model",
        "ptb_lm.inference.export.torch_module",
    ),
    "tensorflow": (
        "ptb_lm.tf_backend",
        "ptb_lm.bench.rivals",
        "benchmarks.rivals",
        "ptb_lm.classifier.on_tensorflow",
        "ptb_lm.classifier.tensorflow_network",
    ),
    "keras": ("ptb_lm.bench.rivals", "benchmarks.rivals"),
    "jax": ("benchmarks.rivals",),
    "pytensor": ("benchmarks.rivals",),
}


def at_the_top(tree: ast.Module) -> ast.Module:
    """The code that runs when a module is imported: no function's body, nothing for types alone."""

    class Top(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    top = Top().visit(tree)
    assert isinstance(top, ast.Module)
    return top


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downwards(module: str) -> None:
    own = room(module)
    for name in imported(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if name in MODULES and (other := room(name)) != own:
            assert FLOOR[other] < FLOOR[own], f"{module} ({own}) imports {name} ({other})"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What a function imports counts for nothing: it is there by then. Nor does what types alone need."""
    graph = {
        module: {*imported(at_the_top(ast.parse(path.read_text(encoding="utf-8"))))}
        & MODULES.keys() - {module}
        for module, path in MODULES.items()
    }
    assert sum(map(len, graph.values())) > len(graph)
    # Raises CycleError, which names the modules of a circle.
    assert {*TopologicalSorter(graph).static_order()} == MODULES.keys()


def test_nobody_below_the_benchmark_names_it_in_a_string() -> None:
    """Where its programs are built is no business of the classifier's registry."""
    for module, path in MODULES.items():
        if FLOOR[room(module)] < FLOOR["bench"]:
            assert "ptb_lm.bench" not in path.read_text(encoding="utf-8"), module


def test_every_room_has_its_floor() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders | {BENCHMARKS.name, "commands"} == FLOOR.keys()


def test_the_root_holds_commands_alone() -> None:
    """What is no command and belongs to one room is in that room."""
    files = {path.stem for path in PACKAGE.glob("*.py")}
    commands = {module_name(name) for name in COMMANDS if not (PACKAGE / name).is_dir()}
    assert files == {"__init__", "__main__"} | commands


@pytest.mark.parametrize("framework", OF_A_FRAMEWORK)
def test_a_framework_is_imported_in_its_rooms_alone(framework: str) -> None:
    importing = {
        module
        for module, path in MODULES.items()
        for name in imported(at_the_top(ast.parse(path.read_text(encoding="utf-8"))))
        if within(name, (framework,))
    }
    allowed = OF_A_FRAMEWORK[framework]
    assert not [module for module in importing if not within(module, allowed)]
    # What no longer needs it is no longer named.
    assert not [name for name in allowed if not any(within(module, (name,)) for module in importing)]


@pytest.mark.slow
def test_no_framework_is_imported_before_it_is_used() -> None:
    """Nor by way of another module."""
    of_a_framework = tuple(name for names in OF_A_FRAMEWORK.values() for name in names)
    modules = [name for name in MODULES if not within(name, of_a_framework)]
    assert "ptb_lm.training.trainer" in modules
    code = (
        f"import sys; {'; '.join(f'import {name}' for name in modules)}; "
        f"print([name for name in {list(OF_A_FRAMEWORK)} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_the_page_names_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)", page)
    assert links
    assert not [link for link in links if not (PAGE.parent / link).exists()]


def test_the_picture_is_of_these_rooms() -> None:
    assert drawn(arrows()) in PAGE.read_text(encoding="utf-8"), "python scripts/architecture.py"
