"""ScheduledKVStore: MXNet's KVStore API.

A dense parameter of a ``dist_sync`` store takes the scheduled path (data_path.py): its gradient is copied into a buffer of the wrapper, and
the wrapped store sends that buffer when the compiled scheduler releases it. Everything else goes straight to the wrapped store.

Contract: like MXNet's own stores, a ScheduledKVStore is called from one thread. No call waits for the network, except those that do so
in MXNet as well (init, broadcast, set_optimizer) and the first push to a synchronous store, at which all workers meet, scheduled or not.
"""

import logging
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

import mxnet as mx
from mxnet.gluon import Trainer
from mxnet.kvstore import KVStore

from ..errors import KVStoreError
from ..monitoring.stats import Stats, stats
from ..monitoring.timeline import wanted
from .arguments import KVStoreTypeError, as_list, check_lists, check_transfer, checked_priority, fit, grouped, of_another_type
from .keys import Key
from .lifecycle import deferred_signals
from .parameters import Parameter
from .store import Mode, WrappedStore

logger = logging.getLogger("prophet_mx")

STALE_LOOKS = 4  # iterations whose pushes look whether Trainer.step was told to ignore stale gradients


class ScheduledKVStore(WrappedStore):
    """A KVStore that schedules the gradient traffic of the ``dist_sync`` store it wraps.

    Parameters
    ----------
    kv : the store to wrap, from ``mx.kv.create``. The wrapper takes it over: use only the wrapper afterwards. Stores that are not
        scheduled (local, device, dist_async, ``p3``) work as they do without the wrapper.
    **settings : fields of :class:`~prophet_mx.Config`; each overrides its ``PROPHET_`` environment variable. From the first push on,
        all workers use rank 0's ``policy``, ``unit``, ``bandwidth``, ``message_cost``, ``groups`` and ``warmup``.

    Raises
    ------
    ConfigError
        a setting is wrong.
    ProfileError
        the file named by ``profile`` does not contain a profile.
    KVStoreError
        ``kv`` is not a native MXNet store or is already wrapped, or a thread cannot be started.
    UnsupportedMXNetError
        the compiled core does not know this MXNet's engine.

    >>> import mxnet as mx
    >>> kv = ScheduledKVStore(mx.kv.create("dist_sync"))                    # doctest: +SKIP
    >>> module.fit(data, kvstore=kv, num_epoch=10)                          # doctest: +SKIP
    """

    def __init__(self, kv: KVStore, **settings: Any) -> None:
        super().__init__(kv, settings)
        self._stale_told = self.rank != 0  # whether the log says that stale gradients are pushed, or another worker's does
        self._sending: Optional[Tuple[Any, ...]] = None  # while _pack_and_send() runs: its arguments

    # -- the scheduled path --------------------------------------------------------------------------------------------------

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pushpull`, sent when the scheduler says so.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        path = None if self._compression != 1 else self._path or self._meet_unscheduled(key)  # with compression MXNet itself refuses
        if path is None:
            super().pushpull(key, value, out, priority)
            return
        priority = checked_priority(priority)
        if isinstance(key, (list, tuple)):
            key, value, out = self._check_all(key, value, out)
            for i, name in enumerate(key):
                self.pushpull(name, value[i], None if out is None else out[i], priority)
            return
        parameter = self._check(key, value, out) or self._schedule(key, value)
        if parameter is None:
            with self._in_store():
                super().pushpull(key, value, out, priority)
            return
        sources = as_list(value)
        targets = sources if out is None else as_list(out)
        iteration = path.next_iteration(parameter)
        if iteration < STALE_LOOKS and not self._stale_told and out is not None and len(sources) == 1:
            self._look_for_stale(sources[0])
        if len(sources) == 1 and len(targets) == 1:
            parameter.native.pushpull(sources[0].handle.value, targets[0].handle.value, iteration, priority)
            return
        self._pack_and_send(parameter, sources, [target.handle.value for target in targets], iteration, priority)

    def _look_for_stale(self, gradient: mx.nd.NDArray) -> None:
        """Log once if the caller is a Trainer that pushes gradients which no backward has written, and plain dist_sync would push something
        else: where a worker has one CPU device, a pull leaves the value in the gradient's array."""
        if not gradient.context.device_type.startswith("cpu"):
            return
        frame = sys._getframe(2)  # of the Trainer's method that calls the store
        step = frame.f_back if isinstance(frame.f_locals.get("self"), Trainer) else None
        if step is not None and step.f_locals.get("ignore_stale_grad"):
            self._stale_told = True
            logger.warning(
                "Trainer.step(ignore_stale_grad=True): a parameter that an iteration does not use is updated with its last gradient once "
                "more, as on GPUs. Plain dist_sync with one CPU device in each worker would take the parameter itself for its gradient"
            )

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.push`, sent when the scheduler says so, whether it is pulled or not.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        path = self._path or self._meet_unscheduled(key)
        if path is None:
            super().push(key, value, priority)
            return
        priority = checked_priority(priority)
        if isinstance(key, (list, tuple)):
            key, value, _ = self._check_all(key, value)
            for i, name in enumerate(key):
                self.push(name, value[i], priority)
            return
        parameter = self._check(key, value) or self._schedule(key, value)
        if parameter is None:
            with self._in_store():
                super().push(key, value, priority)
            return
        iteration = path.next_iteration(parameter)
        self._pack_and_send(parameter, as_list(value), None, iteration, priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pull`. The wrapped store pulls into the array that it sent last, so the engine orders the pull
        after the push. Values are converted for arrays of another type.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._path is None:
            super().pull(key, out, priority, ignore_sparse)
            return
        priority = checked_priority(priority)
        if out is None:
            raise KVStoreTypeError(f"key {key!r:.80}: no array to pull into")
        if self._sending is not None:  # in a signal handler
            self._pack_and_send(*self._sending)
        if isinstance(key, (list, tuple)):
            check_lists(key, out=out)
            key, out = grouped(key, out)
            for name, targets in zip(key, out):
                check_transfer(self._keys, name, None, targets)
        else:
            check_transfer(self._keys, key, None, out)
        sliced, group_of, halves = self._path.layout.slices, self._path.layout.group_of, self._path.layout.halves
        plain = not (sliced or group_of or self._path.traced)
        if isinstance(key, (list, tuple)) and not plain:
            for name, targets in zip(key, out):
                self.pull(name, targets, priority, ignore_sparse)
            return
        if of_another_type(self._keys, key, out):
            self._pull_converted(key, out, priority, ignore_sparse)
            return
        if plain:
            with self._in_store():
                super().pull(key, out, priority, ignore_sparse)
            return
        # What shares a message, or travels in 16 bits, has its value here once it was pushed: nothing changes it on the servers before this
        # worker pushes it again. Before that, the caller's key has the initial value.
        member = self._path.parameters.get(key) if key in group_of or key in halves else None
        here = member is not None and member.native.sent
        if not here and (key not in sliced or key in halves):
            with self._in_store():
                super().pull(key, out, priority, ignore_sparse)
            self._path.note_landed(key, out)
            return
        shape = self._keys.shapes[key]
        parameter = self._path.parameters.get(key) or self._schedule(key, mx.nd.empty(shape.shape, dtype=shape.dtype))
        assert parameter is not None  # what is sliced is scheduled
        if not fit(parameter.native, out):
            check_transfer(self._keys, key, None, out, parameter.buffer)
        if not here:
            with self._in_store():
                super().pull(parameter.keys, parameter.arrays, priority)
            parameter.native.join()
        elif key in sliced:
            parameter.native.show()
        for target in as_list(out):
            parameter.native.unpack(target.handle.value, priority)
        self._path.note_landed(key, out)

    def _pull_converted(self, key: Any, out: Any, priority: int, ignore_sparse: bool) -> None:
        """Pull into arrays of other types by way of one of the key's own: before a key's first push, MXNet takes what a server sends for
        values of the type of the array, which ends the process."""
        for name, targets in zip(key, out) if isinstance(key, (list, tuple)) else [(key, out)]:
            shape = self._keys.shapes.get(name)
            if shape is None or not of_another_type(self._keys, name, targets):
                self.pull(name, targets, priority, ignore_sparse)
                continue
            value = mx.nd.empty(shape.shape, dtype=shape.dtype)
            self.pull(name, value, priority, ignore_sparse)
            with mx.autograd.pause():
                for target in as_list(targets):
                    if target.stype == "default":  # MXNet pulls nothing into others
                        value.copyto(target)

    def _pack_and_send(
        self, parameter: Parameter, sources: List[mx.nd.NDArray], targets: Optional[List[int]], iteration: int, priority: int
    ) -> None:
        """Bring the gradient into the parameter's buffer and send it from there; ``targets`` are handles of the arrays that get the value.

        A signal handler may interrupt this and pull, which needs the buffer. It then does all of this itself, first: the parameter sends
        once per iteration, however often it is asked to.
        """
        assert self._path is not None
        outer, self._sending = self._sending, (parameter, sources, targets, iteration, priority)
        try:
            self._path.parameters.pack(parameter, sources, priority)
            if targets is None:
                parameter.native.push(iteration, priority)
            else:
                parameter.native.pushpull_packed(targets, iteration, priority)
        finally:
            self._sending = outer

    def _check_all(self, keys: Any, values: Any, outs: Any = None) -> Tuple[Any, ...]:
        """Every key's arguments, before the first is sent. Returns them with each key once."""
        check_lists(keys, value=values, out=outs)
        keys, values, outs = grouped(keys, values, outs)
        for i, key in enumerate(keys):
            self._check(key, values[i] if values is not None else None, None if outs is None else outs[i])
        return keys, values, outs

    def _check(self, key: Any, value: Any, out: Any = None) -> Optional[Parameter]:
        """The arguments of one key's push or pushpull; the parameter, if it was pushed before."""
        try:
            parameter = None if self._path is None else self._path.parameters.get(key)
        except TypeError:  # not even a thing that a dict can hold
            parameter = None
        if parameter is None or not (fit(parameter.native, value) and (out is None or fit(parameter.native, out))):
            check_transfer(self._keys, key, (None,) if value is None else value, out, parameter and parameter.buffer)
        return parameter

    def _schedule(self, key: Key, value: Any) -> Optional[Parameter]:
        """Put a key on the scheduled path at its first push; None if it is not scheduled.

        A signal handler may pull, and so call this. But none runs while a key is put on the path, which happens once.
        """
        sample = as_list(value)[0]
        self._check_refused()
        if self._mode is Mode.UNMET:
            self._meet(key, sample)
        if self._path is None or not self._path.parameters.takes(key, sample):
            return None
        with deferred_signals():
            return self._path.parameters.get(key) or self._path.parameters.add(key, sample, self.handle)

    # -- the timeline --------------------------------------------------------------------------------------------------------

    def timeline_start(self, path: str, limit: Union[int, str, None] = None) -> str:
        """Start writing a trace of the job, for Perfetto, ``chrome://tracing`` and ``prophet-mx report``.

        Parameters
        ----------
        path : of the file, in a folder that exists. The rank is put into its name: ``trace.json`` becomes ``trace-0.json``, and
            ``{rank}`` is replaced. An old file of this name is replaced.
        limit : its largest size, as a number of bytes or a text such as "16MB" (default: ``Config.timeline_limit``). Once half of it is
            used, only some iterations are written.

        Returns
        -------
        str
            the path of the file, which is valid JSON after every write, several times a second.

        Raises
        ------
        ConfigError
            the path or the limit is not allowed, or the file cannot be created.
        KVStoreError
            a timeline is being written already, nothing is scheduled, or its thread cannot be started.
        """
        config = wanted(path, limit, self._config)
        if self._path is None:
            raise KVStoreError("a timeline shows scheduled traffic, and nothing is scheduled here; the log says why")
        return self._path.start_timeline(str(config.timeline), config.timeline_limit)

    def timeline_stop(self) -> Optional[str]:
        """End the trace. The path of the file, None if none was being written."""
        return None if self._path is None else self._path.stop_timeline()

    # -- the rest ------------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """What the scheduler has done and learned so far. The keys are those of :class:`~prophet_mx.metrics.Stats`, also if nothing is
        scheduled, as ``policy`` ("off") then says."""
        return stats({}) if self._path is None else self._path.stats()

    def counters(self) -> Dict[str, Any]:
        """The scheduler's own counters, of which :func:`prophet_mx.metrics.between` makes figures; empty where nothing is scheduled."""
        return {} if self._path is None else self._path.driver.snapshot()
