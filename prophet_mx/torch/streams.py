"""Streams of accelerators. Nothing here is used where parameters are on the CPU.

On an accelerator a call only asks for work; streams do it later, each in its own order. Hooks run in the streams of backward, collectives
are started and updates run by threads of ours. What makes them right together:

- A collective starts after a *mark* that was set when the gradient was written into its unit, in the stream that wrote it.
- A collective has landed, and an update is done, when the accelerator has done it: the thread that says so waits for that. So everything
  that is asked for later, in whatever stream, comes after it, and needs no marks.
- An update comes after all that the streams of the moment of ``step()`` had to do: backward may still read the parameter.

Each of our threads has a stream of its own on each device, so that it never waits behind the program's work. It also makes the device
current, which is a matter of each thread.

All of it is by names that the module of each device in PyTorch has (``torch.cuda``, ``torch.xpu``).
"""

import contextlib
from typing import Any, Iterable, Iterator, List, Optional, Sequence

import torch


class Streams:
    """What orders our threads on some devices of one kind.

    Parameters
    ----------
    module : PyTorch's module for them.
    devices : those that parameters are on; the first is the one that our threads make current.
    """

    def __init__(self, module: Any, devices: Sequence[torch.device]) -> None:
        self._module, self._devices = module, list(devices)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """All that this thread asks for within has streams of its own."""
        with contextlib.ExitStack() as stack:
            for device in reversed(self._devices):
                stack.enter_context(self._module.stream(self._module.Stream(device)))
            yield

    def mark(self, device: torch.device, event: Any = None) -> Any:
        """This moment in this thread's current stream on a device. ``event``: one of the same device that is used again."""
        if event is None:
            event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(device))
        return event

    def marks(self) -> List[Any]:
        """This moment in this thread's current streams on all devices."""
        return [self.mark(device) for device in self._devices]

    def follow(self, marks: Iterable[Any]) -> None:
        """What this thread asks for from now on comes after these marks."""
        for mark in marks:
            for device in self._devices:
                self._module.current_stream(device).wait_event(mark)

    def settle(self) -> None:
        """Return when all that this thread's current streams have to do is done."""
        for device in self._devices:
            self._module.current_stream(device).synchronize()

    def seconds(self, marks: Sequence[Any]) -> Optional[List[float]]:
        """When the marks were reached, in seconds after the first of them, and when that is so; None for marks of several devices, which
        have no common clock."""
        if len(self._devices) > 1:
            return None
        for mark in marks:
            mark.synchronize()
        return [1e-3 * marks[0].elapsed_time(mark) for mark in marks]


def streams_of(params: Iterable[torch.Tensor]) -> Optional[Streams]:
    """The streams for these parameters; None if they are on the CPU, or on a device that has no streams."""
    devices = list(dict.fromkeys(param.device for param in params if param.device.type != "cpu"))
    if not devices:
        return None
    module = getattr(torch, devices[0].type, None)
    if not hasattr(module, "Stream"):
        return None
    return Streams(module, [device for device in devices if device.type == devices[0].type])
