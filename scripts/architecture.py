"""Draw the rooms of the package and the arrows between them, from the imports: docs/architecture.md.

    python scripts/architecture.py

An arrow means that a module of one room imports a module of another. Arrows that follow from others are
left out, to keep the picture readable. tests/test_architecture.py checks that the page agrees with the code.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from results.markdown import write_part

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ptb_lm"
BENCHMARKS = ROOT / "benchmarks"  # beside the package, above its bench
CLASSIFIER = ROOT / "examples" / "sequence_classifier"  # beside it, above its frameworks
PAGE = ROOT / "docs" / "architecture.md"

MODULES = {
    ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in (PACKAGE, BENCHMARKS, CLASSIFIER)
    for path in sorted(folder.rglob("*.py"))
}

COMMANDS = "commands"

# The rooms from the bottom up. A module imports only from its own room or from a lower floor; rooms of one
# floor do not import each other.
FLOORS = (
    ("common",),
    ("data", "pages"),
    ("model",),
    ("torch_backend", "tf_backend"),
    ("training", CLASSIFIER.name),
    ("inference", "comparison"),
    ("bench",),
    (BENCHMARKS.name,),
    (COMMANDS,),
)


def room(module: str) -> str:
    """Return the room of a module: its folder, or what it is in the root."""
    top, *parts = module.split(".")
    if top in (BENCHMARKS.name, CLASSIFIER.name):
        return top
    if parts and (PACKAGE / parts[0]).is_dir():
        return parts[0]
    return COMMANDS


def find_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that some code imports anywhere; a name in a package may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "an import relative to the folder"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports from."""
    table: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        own = room(module)
        for name in find_imports(ast.parse(path.read_text(encoding="utf-8"))):
            if name in MODULES and room(name) != own:
                table[own].add(room(name))
    return dict(table)


def to_mermaid(table: dict[str, set[str]]) -> str:
    """Return the picture, in the language of Mermaid, which GitHub draws."""
    lines = ["```mermaid", "flowchart TD"]
    for floor in reversed(FLOORS):
        for name in floor:
            lines.append(f'    {name}["{name}{"" if name == COMMANDS else "/"}"]')
    for floor in reversed(FLOORS):
        for name in floor:
            direct = table.get(name, set())
            followed = {far for near in direct for far in _reached(near, table)}
            lines += [f"    {name} --> {other}" for other in sorted(direct - followed)]
    return "\n".join([*lines, "```", ""])


def _reached(name: str, table: dict[str, set[str]]) -> set[str]:
    direct = table.get(name, set())
    return direct | {far for near in direct for far in _reached(near, table)}


def main() -> int:
    """Write the picture into the page; return the exit status."""
    write_part(PAGE, "rooms", to_mermaid(arrows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
