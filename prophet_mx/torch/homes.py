"""Where parameters wait whose use no guard sees, as C++ code gets them: those that are given to a custom autograd function, for example.

Their own module's forward would be the place. But many lie in a ``ParameterList`` or another container, which is never called. Then the
next module around it that has a forward is their *home*. If it was called before backward gave their gradients, they wait there. If it was
not, only the model's own forward is early enough.
"""

from typing import Any, Dict, Iterator, List

from torch import nn

from .hooks import hook_forward, is_compiled
from .roles import Owner
from .tracked import Tracked


class Home:
    """A module, for the parameters in its containers that turn out to be used unseen.

    Attribute ``called``: since :meth:`Homes.begin_forward`.
    """

    def __init__(self, owner: Owner) -> None:
        self.called = False
        self._owner = owner
        self._waiting: List[Tracked] = []

    def before_forward(self, *_: Any) -> None:
        """In the thread that runs forward."""
        self.called = True
        for each in self._waiting:
            if each.updating:
                self._owner.release(each)

    def take(self, tracked: Tracked) -> bool:
        """Have it wait here from now on; False if it does so already."""
        if tracked in self._waiting:
            return False
        self._waiting.append(tracked)
        return True


class Homes:
    """The homes of a model's parameters; of one that several containers hold, all of theirs."""

    def __init__(self) -> None:
        self._homes: List[Home] = []
        self._of: Dict[int, List[Home]] = {}

    def find(self, model: nn.Module, tracked: Dict[int, Tracked], owner: Owner) -> List[Any]:
        """Hook the forward of each home; the handles. ``tracked``: by id of the parameter."""
        handles = []
        for module in _uncompiled(model):
            inside = [tracked[id(param)] for param in _in_containers(module) if id(param) in tracked] if _is_called(module) else []
            if inside:
                home = Home(owner)
                self._homes.append(home)
                for each in inside:
                    self._of.setdefault(each.index, []).append(home)
                handles.append(hook_forward(module, home.before_forward))
        return handles

    def begin_forward(self) -> None:
        """The model's forward begins."""
        for home in self._homes:
            home.called = False

    def take(self, tracked: Tracked) -> bool:
        """Backward has shown that this parameter is used unseen: let it wait at its homes; False if they do not help."""
        homes = self._of.get(tracked.index, [])
        return any(home.called for home in homes) and any([home.take(tracked) for home in homes])


def _uncompiled(module: nn.Module) -> Iterator[nn.Module]:
    """It and the modules in it, without compiled ones: these wait for all that is in them, and no graph has hooks in it."""
    if not is_compiled(module):
        yield module
        for child in module.children():
            yield from _uncompiled(child)


def _is_called(module: nn.Module) -> bool:
    """Whether this module has a forward; containers such as ``ModuleList`` and ``ParameterList`` have none."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _in_containers(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters in the containers directly below this module, and in theirs."""
    for child in module.children():
        if not _is_called(child):
            yield from child.parameters(recurse=False)
            yield from _in_containers(child)
