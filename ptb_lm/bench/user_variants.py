"""Whether what --add names is there, asked of a process of its own: the module may import a framework.

The process, python -m ptb_lm.bench.user_variants MODULE, answers each function's name with what is wrong,
and with a digest of the module's file, or of all sources of the package that it is of.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm.bench import provenance
from ptb_lm.bench.process import Process, WorkerError
from ptb_lm.bench.worker import answers_apart
from ptb_lm.common.errors import UserError


def check(added: Sequence[str]) -> dict[str, str]:
    """Import what NAME=MODULE:FUNCTION names, for each of some.

    Returns:
        A digest of the module's source for each; "" where it has none.

    Raises:
        UserError: A module cannot be imported, or has no such function.
    """
    builds = {given: given.partition("=")[2].partition(":") for given in added}
    digests = {}
    for module in dict.fromkeys(module for module, _, _ in builds.values()):
        with contextlib.closing(Process("ptb_lm.bench.user_variants", module)) as process:
            for given, (of, _, function) in builds.items():
                if of == module:
                    answer = _answer(process, function)
                    if answer["trouble"]:
                        raise UserError(f"--add {given}: {answer['trouble']}")
                    digests[given] = answer["digest"]
    return digests


def _answer(process: Process, function: str) -> dict[str, Any]:
    try:
        return process.ask(function)
    except WorkerError as error:
        return {"trouble": str(error)}


def main() -> None:
    """Answer until stdin ends: {"trouble": "" or what is wrong, "digest": of the source}."""
    (module,) = sys.argv[1:]
    with answers_apart() as answers:
        not_imported = _import(module)
        for line in sys.stdin:
            function, trouble = line.strip(), not_imported
            if not trouble and not callable(getattr(sys.modules[module], function, None)):
                trouble = f"the module {module} has no function {function}"
            answers.write(
                json.dumps({"trouble": trouble, "digest": "" if trouble else _digest(module)}) + "\n"
            )
            answers.flush()


def _digest(module: str) -> str:
    package = sys.modules[module.partition(".")[0]]
    if folders := getattr(package, "__path__", None):
        return " ".join(provenance.digest(Path(folder)) for folder in folders)
    source = getattr(package, "__file__", None)
    return provenance.digest_of(Path(source)) if source else ""


def _import(module: str) -> str:
    """Import a module; return what is wrong, "" for nothing."""
    try:
        importlib.import_module(module)
    except Exception as error:
        # Whatever it is, it is the user's own code that cannot be imported.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return f"there is no module {error.name}; is it on PYTHONPATH?"
        return f"the module {module} cannot be imported: {type(error).__name__}: {error}".split("\n")[0]
    return ""


if __name__ == "__main__":
    main()
