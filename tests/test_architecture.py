"""The walls of the house: imports run downwards only, frameworks stay in their rooms, the root has a list."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from architecture import (
    BENCHMARKS,
    CLASSIFIER,
    FLOORS,
    MODULES,
    PACKAGE,
    PAGE,
    arrows,
    find_imports,
    room,
    to_mermaid,
)
from typing_extensions import override

from ptb_lm.__main__ import COMMANDS
from ptb_lm.common.program import module_name

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# The modules that may import a framework when they are imported; the others do so in functions, or never.
# Rivals are programs of every framework.
FRAMEWORK_MODULES = {
    "torch": (
        "ptb_lm.torch_backend",
        "ptb_lm.bench.rivals",
        "benchmarks.rivals",
        "sequence_classifier.on_torch",
        # A model that changes while it reads, and a model as a plain torch module.
        "ptb_lm.inference.adaptation",
        "ptb_lm.inference.importing",  # torch's own reader of its files
        "ptb_lm.inference.torch_module",
    ),
    "tensorflow": (
        "ptb_lm.tf_backend",
        "ptb_lm.bench.rivals",
        "benchmarks.rivals",
        "sequence_classifier.on_tensorflow",
    ),
    "keras": ("benchmarks.rivals",),
    "jax": ("benchmarks.rivals",),
    "pytensor": ("benchmarks.rivals",),
}


class AtTheTop(ast.NodeTransformer):
    """Leaves what runs when a module is imported: no function's body, and nothing for a checker of types."""

    @override
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        return None


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downwards(module: str) -> None:
    own = room(module)
    for name in find_imports(parsed(MODULES[module])):
        if name in MODULES and (other := room(name)) != own:
            assert FLOOR[other] < FLOOR[own], f"{module} ({own}) imports {name} ({other})"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A function's import counts, and one for types: they would only hide the circle."""
    graph = {
        module: {*find_imports(parsed(path))} & MODULES.keys() - {module} for module, path in MODULES.items()
    }
    assert sum(map(len, graph.values())) > len(graph)
    # Raises CycleError, which names the modules of a circle.
    assert {*TopologicalSorter(graph).static_order()} == MODULES.keys()


def test_no_room_below_the_benchmark_names_it_in_a_string() -> None:
    """A registry below would import it by such a string."""
    for module, path in MODULES.items():
        if FLOOR[room(module)] < FLOOR["bench"]:
            assert "ptb_lm.bench" not in path.read_text(encoding="utf-8"), module


def test_every_room_has_its_floor() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders | {BENCHMARKS.name, CLASSIFIER.name, "commands"} == FLOOR.keys()


def test_the_root_holds_commands_alone() -> None:
    """A file that is no command belongs to a room."""
    files = {path.stem for path in PACKAGE.glob("*.py")}
    commands = {module_name(name) for name in COMMANDS if not (PACKAGE / name).is_dir()}
    assert files == {"__init__", "__main__"} | commands


@pytest.mark.parametrize("framework", FRAMEWORK_MODULES)
def test_a_framework_is_imported_in_its_rooms_alone(framework: str) -> None:
    importing = {
        module
        for module, path in MODULES.items()
        for name in find_imports(AtTheTop().visit(parsed(path)))
        if within(name, (framework,))
    }
    allowed = FRAMEWORK_MODULES[framework]
    assert not [module for module in importing if not within(module, allowed)]
    # A module that no longer imports it is no longer in the list.
    assert not [name for name in allowed if not any(within(module, (name,)) for module in importing)]


@pytest.mark.slow
def test_no_framework_is_imported_before_it_is_used() -> None:
    """Nor by way of another module."""
    framework_modules = tuple(name for names in FRAMEWORK_MODULES.values() for name in names)
    modules = [name for name in MODULES if not within(name, framework_modules)]
    assert "ptb_lm.training.trainer" in modules
    code = (
        f"import sys; {'; '.join(f'import {name}' for name in modules)}; "
        f"print([name for name in {list(FRAMEWORK_MODULES)} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_names_files_that_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)", page)
    assert links
    assert not [link for link in links if not (PAGE.parent / link).exists()]


def test_the_picture_is_of_these_rooms() -> None:
    assert to_mermaid(arrows()) in PAGE.read_text(encoding="utf-8"), "python scripts/architecture.py"
