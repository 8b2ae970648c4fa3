"""Runs at the start of every Python process of a job started with ``prophet-mx launch --schedule``.

It runs the ``sitecustomize`` that would have run without it, and sees to it that :func:`prophet_mx.mxnet.automatic.install` is called
right after ``import mxnet``. It must be cheap and must not fail: the process need not have anything to do with MXNet.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing's is not imported here: that costs every process
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Optional, Sequence

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_other() -> None:
    """Run the next ``sitecustomize`` of the path in place of this one, if there is one."""
    path = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AfterMXNet:
    """A finder that finds mxnet as the others do, and has it call :func:`prophet_mx.mxnet.automatic.install` once it is imported."""

    _searching = False

    def find_spec(self, name: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None) -> "Optional[ModuleSpec]":
        if name != "mxnet" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                run(module)
                _install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install() -> None:
    try:
        from prophet_mx.mxnet import automatic
    except ImportError as error:
        if error.name not in ("prophet_mx", "prophet_mx.mxnet", "prophet_mx.mxnet.automatic"):
            raise
        raise ImportError(
            f"prophet-mx launch --schedule needs prophet_mx, which {sys.executable} does not have; install it for that Python, "
            "or start the job with the Python that has it"
        ) from None
    automatic.install()


sys.meta_path.insert(0, _AfterMXNet())
_run_the_other()
