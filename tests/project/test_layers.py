"""Which module imports which: without circles, as the tables of docs/architecture.md allow, and MXNet and PyTorch within their
adapters alone.

Imports within functions and those for type checkers alone count as well.
"""

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

from support.paths import ROOT

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "prophet_mx"
COMPILED = ROOT / "_ext" / "prophet_mx" / "_core"
FRAMEWORKS = {"mxnet": "MXNet", "torch": "PyTorch"}  # by the name that is imported; the adapter's package has that name, too


def table(heading: str) -> Dict[str, List[str]]:
    """The names in the first cell of each row of the table below this heading -> those in another cell, by the table's own heading."""
    rows = [line.strip("| \n").split(" | ") for line in MAP[MAP.index(heading) :].split("\n\n")[0].splitlines()]
    place = next(place for place, cell in enumerate(rows[0]) if cell in ("imports", "leads to"))
    return {row[0].strip("`"): re.findall(r"`([\w.]+)`", row[place]) if len(row) > place else [] for row in rows[2:]}


LAYERS, DOORS = table("| package |"), table("| module |")


def modules(package: Path) -> Dict[str, Path]:
    """Every module below this folder, by its full name; a package is its ``__init__``."""
    paths = {path: [package.name, *path.relative_to(package).with_suffix("").parts] for path in package.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}


def imported(name: str, path: Path) -> Iterator[str]:
    """What a module imports, anywhere in it: the names after ``import``, and those after ``from`` with each of what is taken from them."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def graph_of(package: Path) -> Dict[str, Set[str]]:
    """The modules that each module imports, among those below this folder."""
    known = modules(package)
    graph: Dict[str, Set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for target in imported(name, path):
            if target.split(".")[0] == package.name:
                graph[name].add(target if target in known else target.rpartition(".")[0])
    return graph


def circles(graph: Dict[str, Set[str]]) -> List[str]:
    """What lies on a circle, or between two: all others are taken away one by one, as nothing that is left imports them, or they it."""
    left = set(graph)
    while True:
        over = {name for name in left if not graph[name] & left - {name} or not any(name in graph[other] for other in left - {name})}
        if not over:
            return sorted(left)
        left -= over


def layer(name: str) -> str:
    """The package of the table that a module belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (len(parts) > 2 or parts[1] in LAYERS) else "prophet_mx"


def faults(package: Path) -> List[str]:
    """All that is wrong with the imports of these modules, in words."""
    graph = graph_of(package)
    found = [f"in a circle: {name}" for name in circles(graph)]
    for name, targets in sorted(graph.items()):
        allowed = {"prophet_mx", *LAYERS.get(layer(name), []), *DOORS.get(name, []), layer(name)}
        found += [
            f"{name} imports {target}"
            for target in sorted(targets)
            if layer(target) not in allowed or target in DOORS and layer(target) != target
        ]
        found += [f"{name} is in no package of the map" for _ in [1] if layer(name) not in LAYERS]
    for name, path in sorted(modules(package).items()):
        for framework, title in FRAMEWORKS.items():
            own = layer(name) == framework
            if not own and any(target.split(".")[0] == framework for target in imported(name, path)):
                found.append(f"{name} imports {title}")
    return found


def test_every_import_is_one_that_the_map_allows():
    assert faults(PACKAGE) == []


def test_a_package_imports_only_what_stands_above_it_in_the_map():
    for place, (name, allowed) in enumerate(LAYERS.items()):
        assert set(allowed) <= set(list(LAYERS)[:place]), name
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert folders | {"prophet_mx"} == set(LAYERS)
    assert set(DOORS) <= set(modules(PACKAGE))


def test_the_compiled_core_imports_only_what_the_map_allows():
    known = modules(PACKAGE)
    found = {
        ".".join(filter(None, line))
        for path in COMPILED.rglob("*.p[yx][xd]")
        for line in re.findall(r"^\s*(?:from|c?import)\s+([\w.]+)(?:\s+c?import\s+(\w+))?", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    taken = {name.replace("..", "prophet_mx.", 1) for name in found if name.startswith(("..", "prophet_mx"))}
    assert "prophet_mx.sizes" in taken
    assert {layer(name if name in known else name.rpartition(".")[0]) for name in taken} <= {"_core", *LAYERS["_core"]}


@pytest.mark.parametrize(
    "path, text, fault",
    [
        (
            "planning/new.py",
            "def function():\n    from ..simulation import fluid",
            "prophet_mx.planning.new imports prophet_mx.simulation.fluid",
        ),
        ("network/new.py", "if TYPE_CHECKING:\n    from prophet_mx.network import other", "in a circle: prophet_mx.network.new"),
        ("network/new.py", "import mxnet as mx", "prophet_mx.network.new imports MXNet"),
        ("network/new.py", "from .. import __version__", "in a circle: prophet_mx.network.new"),
        ("doctor/new.py", "from ..schedule import FOLDER", "prophet_mx.doctor.new imports prophet_mx.schedule"),
        ("network/new.py", "from torch import nn", "prophet_mx.network.new imports PyTorch"),
        ("other/new.py", "", "prophet_mx.other.new is in no package of the map"),
    ],
    ids=["a layer above", "a circle", "MXNet", "a circle by way of the store", "a door", "PyTorch", "a new package"],
)
def test_what_is_wrong_is_found(path, text, fault, tmp_path):
    package = tmp_path / "prophet_mx"
    for name, content in {
        "__init__.py": "def store():\n    from .mxnet import kvstore",
        "mxnet/kvstore.py": "from ..network import new",
        "network/other.py": "from . import new",
        "simulation/fluid.py": "",
        "schedule.py": "",
        "network/new.py": "",
        path: text,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(content)
    assert fault in faults(package)
    (package / path).write_text("")
    assert [found for found in faults(package) if "other" not in found] == []


def test_every_file_that_the_map_names_is_there():
    named = set(re.findall(r"`(\w+/[\w/]+\.\w+)`", MAP))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists() and not (PACKAGE / name).exists()] == []
