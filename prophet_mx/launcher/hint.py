"""A script for PyTorch that is started as an MXNet job: a word about it, before all processes do the same work without each other.

Only the text of the script is looked at, and of modules beside it. What is not certain is not said, and the job is started in any case.
"""

import ast
import os
import shlex
from typing import List, Sequence, Set

MOST = 50  # files that are looked at
LARGEST = 1 << 20  # bytes of one


def torch_hint(command: Sequence[str], workers: int) -> str:
    """One line if the command runs a Python script that imports PyTorch, and neither MXNet nor what may import it; else ''."""
    place = next((place for place, word in enumerate(command) if word.endswith(".py") and os.path.isfile(word)), None)
    if place is None or not os.path.basename(command[0]).startswith("python") and place != 0:
        return ""
    script = command[place]
    found = _imports(script)
    if "torch" not in found or found & {"mxnet", ""} or any("gluon" in name for name in found):  # gluoncv, gluonnlp, gluonts
        return ""
    typed = " ".join(map(shlex.quote, ["torchrun", "--nproc-per-node", str(workers), *command[place:]]))
    return f"{script} imports torch and not mxnet, and this starts MXNet jobs; for PyTorch: {typed}"


def _imports(script: str) -> Set[str]:
    """The top modules that a script imports, and the modules in its folder; with '' if that is not all for certain."""
    folder = os.path.dirname(os.path.abspath(script))
    found: Set[str] = set()
    files: List[str] = [script]
    for number, file in enumerate(files):  # it grows
        names = _imported_by(file) if number < MOST else {""}
        for name in names - found:
            if os.path.isfile(os.path.join(folder, name + ".py")):
                files.append(os.path.join(folder, name + ".py"))
            elif name and os.path.isdir(os.path.join(folder, name)):
                names = names | {""}  # a package of the user's own
        found |= names
    return found


def _imported_by(file: str) -> Set[str]:
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read(LARGEST))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {""}
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("" if node.level else (node.module or "").partition(".")[0])
        elif (
            isinstance(node, ast.Name)
            and node.id in ("__import__", "import_module", "exec", "runpy")
            or (isinstance(node, ast.Attribute) and node.attr in ("import_module", "run_path", "run_module"))
        ):
            found.add("")  # anything
    return found
