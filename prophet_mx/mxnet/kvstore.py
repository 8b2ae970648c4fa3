"""ScheduledKVStore: MXNet's KVStore API.

A dense parameter of a ``dist_sync`` store takes the scheduled path (data_path.py): its gradient is copied into a buffer of the wrapper, and
the wrapped store sends that buffer when the compiled scheduler releases it. Everything else goes straight to the wrapped store.

Contract: like MXNet's own stores, a ScheduledKVStore is called from one thread. No call waits for the network, except those that do so
in MXNet as well (init, broadcast, set_optimizer) and the first push to a synchronous store, at which all workers meet, scheduled or not.
"""

import logging
import os
import pickle
from contextlib import ExitStack, nullcontext
from typing import Any, ContextManager, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet.base import KVStoreHandle
from mxnet.kvstore import KVStore

from ..config import Config
from ..errors import ConfigError, KVStoreError, ProphetError
from ..monitoring.metrics import set_up_logging
from ..monitoring.timeline import wanted
from ..planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from .api import NAIVE, PlainStore, bind, is_naive, is_synchronous, refuse_another, why_unscheduled
from .arguments import (
    KVStorePicklingError,
    KVStoreTypeError,
    as_list,
    check_compression,
    check_init,
    check_lists,
    check_optimizer,
    check_transfer,
    checked_priority,
    fit,
    grouped,
)
from .data_path import ScheduledPath
from .keys import MEETING_INTS, Key, KeyBook, shape_of
from .layout import Wrapping
from .lifecycle import attend, deferred_signals, end, let_go
from .negotiation import negotiate, text_may_come
from .parameters import Parameter
from .slice_optimizer import may_know_numbers, slicing_allowed

logger = logging.getLogger("prophet_mx")

COMPRESSION_FACTOR = {"none": 1, "2bit": 16}


class ScheduledKVStore(KVStore):
    """A KVStore that schedules the gradient traffic of the ``dist_sync`` store it wraps.

    Parameters
    ----------
    kv : the store to wrap, from ``mx.kv.create``. The wrapper takes it over: use only the wrapper afterwards. Stores that are not
        scheduled (local, device, dist_async, ``p3``) work as they do without the wrapper.
    **settings : fields of :class:`~prophet_mx.Config`; each overrides its ``PROPHET_`` environment variable. From the first push on,
        all workers use rank 0's ``policy``, ``unit``, ``bandwidth``, ``message_cost`` and ``warmup``.

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

    automatic = False  # made by prophet_mx.mxnet.automatic: the script may still wrap it itself, as if it were a plain store

    def __init__(self, kv: KVStore, **settings: Any) -> None:
        # First: __del__ runs also when this raises, and must find a handle that is safe to free.
        self.handle = KVStoreHandle()
        self._path: Optional[ScheduledPath] = None
        self._config, notes = Config.read(**settings)
        set_up_logging(self._config)
        if isinstance(kv, ScheduledKVStore):
            if not kv.automatic or kv._met:
                raise KVStoreError("this store is already a ScheduledKVStore; wrap it once")
            kv.close()  # for what it holds open; it stays a store until this one takes over
        if not isinstance(kv, KVStore):
            raise KVStoreError(f"ScheduledKVStore wraps a store made by mx.kv.create, not {type(kv).__name__}")
        if not kv.handle:
            raise KVStoreError("this store is already wrapped; use the ScheduledKVStore that wraps it")
        reason = why_unscheduled(kv, self._config)
        # What can fail comes before the wrapper takes over the store.
        keys = KeyBook(_environment_int("DMLC_NUM_SERVER", 1), _environment_int(BIGARRAY_VARIABLE, BIGARRAY_BOUND))
        path = None
        if not reason:
            bind()
            path = ScheduledPath(kv, self._config, keys)
            path.start()
        self._take_over(kv._given_back() if isinstance(kv, ScheduledKVStore) else kv)
        if "dist" in self.type:
            refuse_another()
        self._path = path
        if notes and self.rank == 0:
            logger.warning("variables of ByteScheduler: %s", "; ".join(notes))
        self._plain = PlainStore(self.handle)
        self._keys = keys
        self._optimizer: Optional[bytes] = None  # as it was when it was set
        self._wrapping: Optional[Wrapping] = None  # of optimizers, once the layout is fixed, at the first push
        self._sending: Optional[Tuple[Any, ...]] = None  # while _pack_and_send() runs: its arguments
        self._compression = 1  # factor by which MXNet makes gradients smaller
        self._shifted = False  # whether a text key has another number than without the wrapper
        self._met: bool = False  # whether the workers have met, at their first push
        self._refused = ""  # why they have agreed to send nothing
        self._passing = path is None and is_synchronous(self)  # until they have met: by its own settings it schedules nothing
        if path is None:
            level = logging.INFO if self._config.policy == "off" else logging.WARNING
            logger.log(level, "gradient traffic is not scheduled: %s", reason)
            if self._config.timeline:
                logger.warning("no timeline is written to %s: it shows scheduled traffic only", self._config.timeline)
            return
        attend(self, path)

    def _take_over(self, kv: KVStore) -> None:
        """Become the sole owner of the store's handle: two owners would free it twice."""
        super().__init__(kv.handle)
        kv.handle = KVStoreHandle()
        self._updater = kv._updater
        self._updater_func = kv._updater_func
        self._str_updater_func = kv._str_updater_func

    def _given_back(self) -> KVStore:
        """The plain store again, of one that was closed; this one is then of no more use."""
        self._path = None
        let_go(self)
        plain = KVStore(self.handle)
        self.handle = KVStoreHandle()
        plain._updater, plain._updater_func, plain._str_updater_func = self._updater, self._updater_func, self._str_updater_func
        return plain

    # -- keys ----------------------------------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """As :meth:`mxnet.kvstore.KVStore.init`; KVStoreError, before anything is sent, if the arguments are wrong."""
        if self._path is not None:
            check_init(self._keys, key, value)
        self._check_new(key)
        with self._watched("the other workers, which must initialise this key as well"):
            super().init(key, value)
        self._register(key, value)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.broadcast`; KVStoreError, before anything is sent, if the arguments are wrong."""
        if self._path is not None:
            check_init(self._keys, key, value, out)
            priority = checked_priority(priority)
        self._check_new(key)
        with self._watched("the other workers, which must initialise this key as well"):
            super().broadcast(key, value, out, priority)
        self._register(key, value)

    def _check_new(self, key: Any) -> None:
        """Keys of prophet_mx must not be made by the caller: those with which workers begin to agree, and, once they have met, the others,
        even if nothing is scheduled. These also shift the number of a new string key, which is right only if the optimizer on the servers
        knows them."""
        if not (self._met or self._passing or self._path is not None):
            return
        names = as_list(key)
        for name in names:
            if isinstance(name, (str, int)) and self._keys.is_own(name):
                raise KVStoreError(
                    f"key {name!r} is taken: prophet_mx makes it for itself; use another one"
                    + ("" if name in MEETING_INTS else ", or make it before the first push")
                )
        if self._met and self._wrapping is None and names and isinstance(names[0], str):
            self._check_shifted(names[0])

    def _check_shifted(self, name: str) -> None:
        """A new text key whose number is not that which it has without the wrapper: nobody may go by the numbers of keys. Blocks until
        every worker is here, as making the key does."""
        with deferred_signals():
            may_come = text_may_come(self._plain, self._keys, self._compression != 1, self._optimizer)
        self._shifted = self._shifted or may_come
        if not may_come:
            raise KVStoreError(
                f"key {name!r:.80} cannot be added: other keys were initialised before wrapping, and the optimizer on the servers may take "
                "its number for another parameter's; wrap the store before the first key, or initialise this one before the first push"
            )

    def _barrier(self) -> None:
        with self._watched("the other workers at a barrier"):
            super()._barrier()

    def _watched(self, what: str) -> ContextManager[None]:
        """A context in which the watchdog counts the time that the caller waits for this."""
        return nullcontext() if self._path is None else self._path.watchdog.blocked(what)

    def _register(self, key: Any, value: Any) -> None:
        self._keys.calls += 1
        for name, arrays in zip(key, value) if isinstance(key, (list, tuple)) else [(key, value)]:
            array = as_list(arrays)[0]
            self._keys.add(name, shape_of(array) if array.stype == "default" else None)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_optimizer`.

        Raises
        ------
        KVStoreError
            this is not an optimizer or cannot be pickled, or gradients are already sliced and it is not known to be exact on
            slices, or it may know parameters by numbers that they do not have. Nothing was sent.
        """
        if self._shifted and may_know_numbers(optimizer, 0):
            raise KVStoreError(
                f"{type(optimizer).__name__} may know parameters by their numbers, which are others here: keys were initialised before "
                "wrapping, and more of them after the first push; wrap the store before the first key"
            )
        if self._path is None and not (self._wrapping is not None and self._wrapping.shifts(optimizer)):
            super().set_optimizer(optimizer)
            if self._passing or self._met:
                self._optimizer = pickle.dumps(optimizer)
            return
        check_optimizer(optimizer)
        try:
            pickled = pickle.dumps(optimizer)
        except Exception as error:  # whatever the optimizer's own parts raise
            why = " ".join(str(error).split())
            raise KVStorePicklingError(
                f"this {type(optimizer).__name__} cannot be pickled, but the servers need it pickled: {why}"
            ) from error
        if self._wrapping is None:
            super().set_optimizer(optimizer)
        else:
            if self._wrapping.parameters and not slicing_allowed(optimizer):
                raise KVStoreError(
                    f"{type(optimizer).__name__} is not known to be exact on slices, and the layout was fixed when the "
                    "first gradient was pushed; set the optimizer before the first push"
                )
            super().set_optimizer(self._wrapping.wrap(pickled))
        self._optimizer = pickled

    # -- the scheduled path --------------------------------------------------------------------------------------------------

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pushpull`, sent when the scheduler says so.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._passing and self._compression == 1:
            self._meet(key)
        if self._path is None or self._compression != 1:  # with compression MXNet refuses, in its own words
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
            super().pushpull(key, value, out, priority)
            return
        sources = as_list(value)
        targets = sources if out is None else as_list(out)
        iteration = self._path.next_iteration(parameter)
        if len(sources) == 1 and len(targets) == 1:
            parameter.native.pushpull(sources[0].handle.value, targets[0].handle.value, iteration, priority)
            return
        self._pack_and_send(parameter, sources, [target.handle.value for target in targets], iteration, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.push`, sent when the scheduler says so, whether it is pulled or not.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._passing:
            self._meet(key)
        if self._path is None:
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
            super().push(key, value, priority)
            return
        iteration = self._path.next_iteration(parameter)
        self._pack_and_send(parameter, as_list(value), None, iteration, priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pull`. The wrapped store pulls into the array it last sent, so after a push as the engine
        orders it.

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
                check_transfer(self._keys, name, None, targets, False)
        else:
            check_transfer(self._keys, key, None, out, False)
        if not (self._path.layout.slices or self._path.traced):
            super().pull(key, out, priority, ignore_sparse)
            return
        if isinstance(key, (list, tuple)):
            for name, targets in zip(key, out):
                self.pull(name, targets, priority, ignore_sparse)
            return
        if key not in self._path.layout.slices:
            super().pull(key, out, priority, ignore_sparse)
            self._path.note_landed(key, out)
            return
        shape = self._keys.shapes[key]
        parameter = self._path.parameters.get(key) or self._schedule(key, mx.nd.empty(shape.shape, dtype=shape.dtype))
        assert parameter is not None  # what is sliced is scheduled
        if not fit(parameter.native, out):
            check_transfer(self._keys, key, None, out, True, parameter.buffer)
        super().pull(parameter.keys, parameter.arrays, priority)
        parameter.native.join()
        for target in as_list(out):
            parameter.native.unpack(target.handle.value, priority)
        self._path.note_landed(key, out)

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
            check_transfer(
                self._keys, key, (None,) if value is None else value, out, self._optimizer is not None, parameter and parameter.buffer
            )
        return parameter

    def _schedule(self, key: Key, value: Any) -> Optional[Parameter]:
        """Put a key on the scheduled path at its first push; None if it is not scheduled.

        A signal handler may pull, which comes here as well, but not in the middle: a key is put on the path once.
        """
        sample = as_list(value)[0]
        if self._refused:
            raise KVStoreError(self._refused)
        if not self._met:
            self._meet(key, sample)
        if self._path is None or not self._path.parameters.takes(key, sample):
            return None
        with deferred_signals():
            return self._path.parameters.get(key) or self._path.parameters.add(key, sample, self.handle)

    def _meet(self, key: Any, sample: Optional[mx.nd.NDArray] = None) -> None:
        """Before anything is pushed, once: learn whether rank 0 schedules and how, and agree on the layout if it does. Every worker of a
        synchronous store comes here, whatever its own settings are, and blocks until all are here. ``sample`` is missing if this worker's
        own settings schedule nothing."""
        others = "the other workers, which must push their first gradient as well, each through a ScheduledKVStore"

        def join(config: Config, alike: bool) -> ScheduledPath:
            self._config = config
            if self._path is None:
                self._path = self._late_path(config)
                waiting.enter_context(self._watched(others))
            self._path.join(config, self._plain if alike else None, sample)
            return self._path

        with deferred_signals(), ExitStack() as waiting:
            self._passing, self._met = False, True
            for name in as_list(key)[:1]:
                if isinstance(name, (str, int)):
                    self._keys.gradient(name)  # the others have to know of a key that was made before the store was wrapped
            waiting.enter_context(self._watched(others))
            try:
                layout = negotiate(
                    self._plain, self._keys, self._config, self._optimizer, self._compression != 1, self._path is not None, join
                )
            except ProphetError as error:
                self._refused = str(error)
                raise
            self._wrapping = layout.wrapping
            if self._path is not None and layout.scheduled:
                self._path.begin(layout, self._plain)
            elif self._path is not None:  # continue as if the store had never been scheduled
                self._path.close()
                self._path = None
                let_go(self)

    def _late_path(self, config: Config) -> ScheduledPath:
        """The path of a worker whose own settings schedule nothing, under those of rank 0, while the others wait."""
        if is_naive():
            raise KVStoreError(
                f"worker {self.rank}: {NAIVE} runs every operation inside the call that pushes it, and rank 0 schedules gradient traffic, "
                "which needs another engine on all workers: unset MXNET_ENGINE_TYPE for this worker, or set PROPHET_POLICY=off for rank 0"
            )
        bind()
        path = ScheduledPath(self, config, self._keys)
        path.parameters.compression = self._compression
        path.start()
        attend(self, path)
        return path

    # -- the timeline --------------------------------------------------------------------------------------------------------

    def timeline_start(self, path: str, limit: Optional[int] = None) -> str:
        """Start writing a trace of the job, for Perfetto, ``chrome://tracing`` and ``prophet-mx report``.

        Parameters
        ----------
        path : of the file, in a folder that exists. The rank is put into its name: ``trace.json`` becomes ``trace-0.json``, and
            ``{rank}`` is replaced. An old file of this name is replaced.
        limit : its largest size in bytes (default: ``Config.timeline_limit``). Once half of it is used, only some iterations are written.

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

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_gradient_compression`; KVStoreError, before anything is sent, for wrong parameters."""
        if self._path is not None:
            check_compression(compression_params)
        super().set_gradient_compression(compression_params)
        self._compression = COMPRESSION_FACTOR.get(compression_params.get("type", "none"), 1)
        if self._path is not None:
            self._path.parameters.compression = self._compression

    def stats(self) -> Dict[str, Any]:
        """What the scheduler has done and learned so far.

        Keys: ``policy`` (rank 0's from the first push on); ``drain`` (source); ``iterations``; ``units`` and ``bytes`` released;
        ``blocks`` (gradient blocks: units that fit a predicted interval), ``block_units`` and ``block_bytes`` (sent as part of a block;
        the rest was sent unit by unit); ``wait_seconds`` (sum over units, from ready to released); ``inverted_bytes``
        (released ahead of more urgent ready ones); ``yields`` (units that the lead limit let go because nothing happened on their links:
        workers wait for different values); ``first_wait`` (mean seconds from ready to answered of the most urgent unit);
        ``first_ahead`` (mean bytes that were sent and not yet answered on its link when it became ready);
        ``utilisation`` (share of the link used while there was something to send, 0 to 1); ``rates`` (bytes/s to each server);
        ``message_seconds`` (a worker's time for a message while all workers send as fast as they can, 0 if not measured);
        ``unit_bytes`` (size of a slice of a large gradient, 0 if none is sliced); ``steps`` (list of lists of parameter names) and
        ``step_times`` (seconds after the iteration's first ready gradient), both empty until learned; ``failure`` (the internal error
        that ended scheduling, in words; '' without one). If nothing is scheduled, only ``policy`` ("off").
        """
        return {"policy": "off"} if self._path is None else self._path.stats()

    def counters(self) -> Dict[str, Any]:
        """The scheduler's own counters, of which :func:`prophet_mx.metrics.between` makes figures; empty where nothing is scheduled."""
        return {} if self._path is None else self._path.driver.snapshot()

    def close(self) -> None:
        """Stop scheduling: everything held is sent at once, later pushes are not held, and nothing is watched. Called at exit; may
        be called again."""
        if self._path is not None:
            self._path.close()

    def __del__(self) -> None:
        if not self.handle:
            return
        if self._path is None:
            super().__del__()
        elif not self._path.forked():  # freeing it would speak to the servers in the parent's name
            handle, self.handle = self.handle, KVStoreHandle()
            end(self._path, PlainStore(handle))


def _environment_int(name: str, default: int) -> int:
    """A number from 1 that MXNet itself reads from the environment."""
    text = os.environ.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name}={text!r} is not allowed; allowed: a whole number from 1")
    return number
