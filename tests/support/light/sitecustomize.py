"""What MXNet writes as it is imported is compiled once for all test processes; see tests/support/cluster.py.

MXNet makes the text of a Python function for each of its 2,500 operators and compiles them in every process: half of the time that
``import mxnet`` takes. The texts stay MXNet's and run as it runs them; what they compile to is kept in the file LIGHT_CACHE. Of an
operator's text only one number differs from process to process, the operator's address: it is put into what was compiled.
"""

import atexit
import marshal
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any, Dict, Optional, Sequence

CACHE = os.environ.get("LIGHT_CACHE", "")
WRITERS = ("mxnet.ndarray.register", "mxnet.symbol.register")
CALLS = ("return _imperative_invoke(", "return _symbol_creator(")  # the operator's address follows
ADDRESS = 0x5EED_5EED_5EED_5EED  # stands for it

compiled: Dict[str, CodeType] = {}


def run(source: str, names: None, local: Dict[str, Any]) -> None:
    """What ``exec`` does where MXNet calls it."""
    address = None
    for call in CALLS:
        before, _, after = source.rpartition(call)
        if before:
            number, _, rest = after.partition(",")
            address, source = int(number), f"{before}{call}{ADDRESS},{rest}"
    if source not in compiled:
        compiled[source] = compile(source, "<string>", "exec")
    code = compiled[source]
    exec(code if address is None else with_address(code, address), sys._getframe(1).f_globals, local)


def with_address(code: CodeType, address: int) -> CodeType:
    """The code with another number for ADDRESS, in its functions too."""
    return code.replace(
        co_consts=tuple(
            address if type(value) is int and value == ADDRESS else with_address(value, address) if isinstance(value, CodeType) else value
            for value in code.co_consts
        )
    )


class Writer(SourceFileLoader):
    """Loads a module of WRITERS."""

    def exec_module(self, module: Any) -> None:
        if not compiled and os.path.exists(CACHE):
            with open(CACHE, "rb") as file:
                compiled.update(marshal.load(file))
        module.exec = run
        super().exec_module(module)


class Finder:
    """Finds the modules of WRITERS."""

    @staticmethod
    def find_spec(name: str, path: Optional[Sequence[str]], target: Any = None) -> Optional[ModuleSpec]:
        if name not in WRITERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Writer(spec.loader.name, spec.loader.path)
        return spec


def save() -> None:
    """Processes may do this at the same time: each writes a file of its own and moves it into place."""
    if compiled and not os.path.exists(CACHE):
        mine = f"{CACHE}.{os.getpid()}"
        with open(mine, "wb") as file:
            marshal.dump(compiled, file)
        os.replace(mine, CACHE)


if CACHE:
    sys.meta_path.insert(0, Finder)
    atexit.register(save)
