"""What mkdocs makes by itself: the API reference from docstrings, the commands from their --help, and which measurements are out of
date.

``reference.md`` and ``commands.md`` exist only while the site is built. Below a result of a measurement stands whether a later change
could alter it. Pages that mkdocs.yml does not list follow the ones that it does.
"""

import ast
import inspect
import os
import re
import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]

# What the reference shows, by module: everything in its __all__, or the names given.
MODULES: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("prophet_mx", ()),
    ("prophet_mx.profiling.gradient_profile", ()),
    ("prophet_mx.planning.bound", ("worker_rate", "rho", "lower_bound", "job_bound")),
    ("prophet_mx.simulation.simulator", ("Cluster", "Result", "WorkerResult", "simulate")),
    ("prophet_mx.simulation.predict", ("predicted_seconds", "predict", "predict_cluster", "Prediction", "useful_rates", "UsefulRates")),
    ("prophet_mx.simulation.verdict", ("verdict", "Verdict")),
    ("prophet_mx.simulation.collectives", ("predict_ring", "RingPrediction")),
    ("prophet_mx.profiling.model_profiles", ("model_names", "model_profile")),
    ("prophet_mx.profiling.compute_times", ("estimated_compute",)),
    ("prophet_mx.metrics", ("ScalarLogger", "between", "Sample", "Stats")),
    ("prophet_mx.launcher.launch", ("run_job", "JobResult", "ProcessResult")),
    ("prophet_mx.doctor.examination", ("examine",)),
    ("prophet_mx.doctor.checks", ("Finding",)),
)
# The same, for what cannot be imported where the site is built: it is read from these files.
SOURCES: Tuple[Tuple[str, str, str], ...] = (
    ("prophet_mx.torch", "optimizer.py", "ScheduledOptimizer"),
    ("prophet_mx.torch", "monitor.py", "Stats"),
    ("prophet_mx.torch", "horovod.py", "DistributedOptimizer"),
)
_HEADER = re.compile(r"def \w+\((.*?)\)( -> .*?)?:\n", re.DOTALL)
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`(?:~[\w.]*\.)?([\w.]+)`")  # with a ~ only the last part of the name is shown
_ENTRY = re.compile(r"^([*\w][\w, *]*?) ?: (.*)$")


def on_config(config: Any) -> Any:
    """Name the version, and list the pages that mkdocs.yml does not."""
    config.site_name += " " + _version()
    listed = set(_paths(config.nav))
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        if page.name not in listed:
            config.nav.append(page.name)
    return config


def _version() -> str:
    """Read, not imported: where the package is, is found out later."""
    return re.findall(r'^__version__ = "(.+)"', (ROOT / "prophet_mx" / "runtime.py").read_text(encoding="utf-8"), re.MULTILINE)[0]


def _paths(entries: Any) -> Iterator[str]:
    """The files of a menu, or of a part of it."""
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from _paths(entry)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    # The checkout's package has no compiled core unless it was built in place; then the installed one is described.
    if not any((ROOT / "prophet_mx" / "_core").glob("*.so")):
        sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
    elif str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))  # for benchmarks
    files.append(File.generated(config, "reference.md", content="\n\n".join(reference())))
    files.append(File.generated(config, "commands.md", content="\n\n".join(commands())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the age of results beside them."""
    from benchmarks.publish import with_notes

    return with_notes(markdown, result_notes())


@lru_cache(maxsize=None)
def result_notes() -> Dict[str, str]:
    """By question, what a reader of its result has to know."""
    from benchmarks.comparison.results import RESULTS
    from benchmarks.status import statuses

    return {status.question: status.note for status in statuses(RESULTS)}


def commands() -> Iterator[str]:
    """The page of the commands: what --help prints."""
    os.environ["COLUMNS"] = "100"
    from prophet_mx.cli.main import parser

    yield "# Commands"
    yield "`prophet-mx COMMAND --help` prints the same; `python -m prophet_mx` is another name for `prophet-mx`."
    [subparsers] = [action for action in parser()._actions if hasattr(action, "choices") and isinstance(action.choices, dict)]
    for name, command in subparsers.choices.items():
        yield f"## prophet-mx {name}"
        yield "```text\n" + command.format_help().rstrip() + "\n```"


def reference() -> Iterator[str]:
    """The page of the API."""
    yield "# API reference"
    yield "Everything a program may use. Times are seconds and sizes bytes unless a line says otherwise."
    for module_name, names in MODULES:
        module = import_module(module_name)
        yield f"## {module_name}"
        if module_name != "prophet_mx":
            yield text_of(module)
        for name in names or [name for name in module.__all__ if not name.startswith("_")]:
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__doc__:
                yield from describe(name, value)
    for module_name in dict.fromkeys(module for module, *_ in SOURCES):
        folder = ROOT / module_name.replace(".", "/")
        yield f"## {module_name}"
        yield text_of_doc(ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))))
        for _, file, name in (source for source in SOURCES if source[0] == module_name):
            yield from describe_source((folder / file).read_text(encoding="utf-8"), name)


def describe(name: str, value: Any) -> Iterator[str]:
    """A class with its methods, those of our own bases included, or a function."""
    yield f"### {name}"
    if not (inspect.isclass(value) and issubclass(value, (BaseException, dict))):  # a TypedDict is a dict
        yield f"```python\n{name}{signature(value)}\n```"
    yield text_of(value)
    own = [base for base in reversed(inspect.getmro(value)) if base.__module__.startswith("prophet_mx")] if inspect.isclass(value) else []
    members = {member: found for base in own for member, found in vars(base).items()}
    for member, found in sorted(members.items()):
        function = getattr(found, "__func__", getattr(found, "fget", found))
        if not member.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield f"#### {name}.{member}"
            if not isinstance(found, property):
                yield f"```python\n{member}{signature(function)}\n```"
            yield text_of(function)


def describe_source(source: str, name: str) -> Iterator[str]:
    """A class with its methods, as its source has them."""
    [found] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}

    def shown(method: str) -> str:
        match = _HEADER.search(ast.get_source_segment(source, methods[method]) or "")
        arguments = " ".join((match.group(1) if match else "").split())
        return "(" + re.sub(r"^self(, )?", "", arguments).rstrip(", ") + ")" + ((match.group(2) or "") if match else "")

    yield f"### {name}"
    if "__init__" in methods:
        yield f"```python\n{name}{shown('__init__').replace(' -> None', '')}\n```"
    yield text_of_doc(ast.get_docstring(found))
    for method, node in sorted(methods.items()):
        if not method.startswith("_") and ast.get_docstring(node):
            yield f"#### {name}.{method}"
            if not any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list):
                yield f"```python\n{method}{shown(method)}\n```"
            yield text_of_doc(ast.get_docstring(node))


def signature(value: Any) -> str:
    """As it is called: with types and defaults, without the module names in front of types."""
    text = re.sub(r"^\((?:self|cls)(?:, )?", "(", str(inspect.signature(value)))
    text = re.sub(r"\b(?:typing|prophet_mx|mxnet)\.(?:\w+\.)*(?=[A-Z])", "", text)
    return re.sub(r"(: |-> )'([\w.]+)'(?=[,)]|$| =)", r"\1\2", text)  # of types that are written as texts


def text_of(value: Any) -> str:
    """A docstring as Markdown."""
    return text_of_doc(inspect.cleandoc(value.__doc__ or ""))


def text_of_doc(doc: Optional[str]) -> str:
    """The same, of its text without indentation."""
    parts = _SECTION.split(doc or "")
    shown = [_paragraphs(parts[0])]
    for title, body in zip(parts[1::2], parts[2::2]):
        entries, _, rest = body.strip("\n").partition("\n\n")
        shown.append(f"**{title}**\n\n{_entries(entries, title)}")
        if rest:
            shown.append(_paragraphs(rest))
    return "\n\n".join(filter(None, shown))


def _entries(text: str, title: str) -> str:
    """``name : text`` with continuation lines as a list; errors have the name on a line of its own."""
    items: List[str] = []
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry and not line.startswith(" "):
            items.append(f"- `{entry.group(1)}`: {entry.group(2)}")
        elif not line.startswith(" ") and title == "Raises":
            items.append(f"- `{line.strip()}`:")
        else:
            items.append("    " + line.strip())
    return _inline("\n".join(items))


def _paragraphs(text: str) -> str:
    """Prose, with examples as code."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].lstrip().startswith(">>>"):
            blocks.append("```python\n" + "\n".join(re.sub(r" +# doctest:.*", "", line.strip()) for line in lines) + "\n```")
        elif all(line.startswith("    ") for line in lines):
            blocks.append("```text\n" + "\n".join(line[4:] for line in lines) + "\n```")
        else:
            blocks.append(_inline(block))
    return "\n\n".join(blocks)


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")
