"""ScheduledKVStore: the only module that knows MXNet's KVStore API.

A dense parameter of a ``dist_sync`` store takes the scheduled path: its gradient is copied into a buffer of the wrapper, and the wrapped
store sends that buffer when the compiled scheduler says so. Everything else goes straight to the wrapped store.

Contract: like MXNet's own stores, a ScheduledKVStore is called from one thread. No call waits for the network, except those that do so
in MXNet as well (init, broadcast, set_optimizer) and the first push, which asks each server once which connection is its own.
"""
import logging
import os
import pickle
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set

import mxnet as mx
from mxnet.base import KVStoreHandle
from mxnet.kvstore import KVStore

from . import _core
from .agreement import Agreeing
from .arrays import alias, as_list, shape_of
from .calls import arrays_of, check_compression, check_fit, check_init, check_lists, check_optimizer, check_transfer, checked_priority
from .config import Config
from .connections import Connection, to_scheduler
from .ending import attend
from .errors import ConfigError, KVStoreError, ProfileError
from .failopen import FailOpen
from .fixed_layout import FixedLayout
from .key_sets import KeySets
from .keys import Key, KeyBook
from .learner import ProfileLearner
from .link import LinkMonitor, server_sockets
from .metrics import Metrics, set_up_logging
from .mxnet_api import bind
from .optimizer import slicing_allowed
from .orders import Orders, orders
from .profile import GradientProfile
from .timeline import Timeline
from .watchdog import Watchdog

logger = logging.getLogger("prophet_mx")

COMPRESSION_FACTOR = {"none": 1, "2bit": 16}


class _Scheduled:
    """A parameter on the scheduled path."""

    __slots__ = ("native", "buffer", "keys", "arrays", "gradient", "iteration")

    def __init__(self, native: "_core.Parameter", buffer: mx.nd.NDArray, keys: List[Key], arrays: List[mx.nd.NDArray],
                 gradient: int) -> None:
        self.native = native
        self.buffer = buffer
        self.keys = keys                    # of its units
        self.arrays = arrays                # of its units: the buffer itself, or aliases of its slices
        self.gradient = gradient
        self.iteration = -1                 # the caller's iteration in which it was last pushed


class ScheduledKVStore(KVStore):
    """A KVStore that schedules the gradient traffic of the ``dist_sync`` store it wraps.

    Parameters
    ----------
    kv : the store to wrap, from ``mx.kv.create``. The wrapper takes it over: use only the wrapper afterwards. Stores that are not
        scheduled (local, device, dist_async, ``p3``) behave as without the wrapper.
    **settings : fields of :class:`~prophet_mx.Config`; each wins over its ``PROPHET_`` environment variable.

    Raises
    ------
    ConfigError
        a setting is wrong.
    ProfileError
        the file that ``profile`` names holds no profile.
    KVStoreError
        ``kv`` is not a native MXNet store, or is wrapped already.
    UnsupportedMXNetError
        this MXNet's engine is not one the compiled core knows.

    >>> import mxnet as mx
    >>> kv = ScheduledKVStore(mx.kv.create("dist_sync"))                    # doctest: +SKIP
    >>> module.fit(data, kvstore=kv, num_epoch=10)                          # doctest: +SKIP
    """

    automatic = False       # made by prophet_mx.scheduled: the script may still wrap it itself, as if it were a plain store

    def __init__(self, kv: KVStore, **settings: Any) -> None:
        # First of all: __del__ runs also when this raises, and must find a handle that is safe to free.
        self.handle = KVStoreHandle()
        self._driver: Optional[_core.Driver] = None
        self._config, notes = Config.read(**settings)
        set_up_logging(self._config)
        if isinstance(kv, ScheduledKVStore):
            if not kv.automatic or kv._scheduled:
                raise KVStoreError("this store is a ScheduledKVStore already; wrap it once")
            kv.close()                          # for what it holds open; it stays a store until this one takes over
        if not isinstance(kv, KVStore):
            raise KVStoreError(f"ScheduledKVStore wraps a store made by mx.kv.create, not {type(kv).__name__}")
        if not kv.handle:
            raise KVStoreError("this store is wrapped already; use the ScheduledKVStore that wraps it")
        reason = _why_unscheduled(kv, self._config)
        # What can fail comes before the wrapper takes over the store.
        keys = KeyBook(_environment_int("DMLC_NUM_SERVER", 1), _environment_int("MXNET_KVSTORE_BIGARRAY_BOUND", 1000 * 1000))
        self._saved: Optional[GradientProfile] = None
        if not reason:
            bind()
            if self._config.profile and os.path.exists(self._config.profile):
                self._saved = GradientProfile.load(self._config.profile)
            self._prepare(kv, keys)
        self._take_over(kv._given_back() if isinstance(kv, ScheduledKVStore) else kv)
        if notes and self.rank == 0:
            logger.warning("variables of ByteScheduler: %s", "; ".join(notes))
        self._keys = keys
        self._scheduled: Dict[Key, _Scheduled] = {}
        self._passed: Set[Key] = set()          # keys whose values are not scheduled (sparse, empty)
        self._compression = 1
        self._optimizer: Optional[bytes] = None     # as it was when it was set
        self._agreeing: Optional[Agreeing] = None   # once the layout is fixed, at the first push
        if reason:
            level = logging.INFO if self._config.policy == "off" else logging.WARNING
            logger.log(level, "gradient traffic is not scheduled: %s", reason)
            if self._config.timeline:
                logger.warning("no timeline is written to %s: it shows scheduled traffic only", self._config.timeline)
            return
        self._start()

    def _take_over(self, kv: KVStore) -> None:
        """Become the sole owner of the store's handle: two owners would free it twice."""
        super().__init__(kv.handle)
        kv.handle = KVStoreHandle()
        self._updater = kv._updater
        self._updater_func = kv._updater_func
        self._str_updater_func = kv._str_updater_func

    def _given_back(self) -> KVStore:
        """The plain store again, of one that was closed; this one is then of no more use."""
        self._driver = None
        plain = KVStore(self.handle)
        self.handle = KVStoreHandle()
        plain._updater, plain._updater_func, plain._str_updater_func = self._updater, self._updater_func, self._str_updater_func
        return plain

    def _prepare(self, kv: KVStore, keys: KeyBook) -> None:
        """Everything that scheduling needs and that can fail, while the caller still has a store that works without us."""
        config = self._config
        driver = _core.Driver(config.policy, keys.servers, config.window or 0, config.lead or 0, config.bandwidth or 0)
        self._names: Dict[int, str] = {}                # by gradient index
        self._unit_gradients: List[int] = []
        self._metrics = Metrics(config, kv.rank)
        self._timeline: Optional[Timeline] = None
        try:
            if config.timeline:
                self._timeline = self._new_timeline(driver, config.timeline, config.timeline_limit, kv, keys)
        except ConfigError:
            self._metrics.close()
            raise
        self._driver = driver

    def _start(self) -> None:
        config = self._config
        self._fail = FailOpen(self._driver)
        self._monitor: Optional[LinkMonitor] = None
        self._layout = FixedLayout(self._keys)          # empty until the first push
        self._learner = ProfileLearner(self._driver, config.warmup)
        self._key_sets = KeySets()
        self._reducer: Optional[KVStore] = None         # sums over several devices with MXNet's own code
        self._iteration = -1
        self._sizes: Dict[int, int] = {}                # by gradient index
        self._pid = os.getpid()
        self._driver.start()
        names, gradients = self._names, self._unit_gradients        # not self: the watchdog must not keep the store alive
        self._watchdog = Watchdog(self._driver, config, self.rank, lambda unit: names[gradients[unit]], self._fail)
        attend(self)
        logger.info("scheduling gradient traffic: policy %s, worker %d of %d, %d server(s)", config.policy, self.rank,
                    self.num_workers, self._keys.servers)

    # -- keys ----------------------------------------------------------------------------------------------------------------

    def init(self, key, value) -> None:
        """As :meth:`mxnet.kvstore.KVStore.init`; KVStoreError, before anything is sent, if the arguments are wrong."""
        if self._driver is not None:
            check_init(self._keys, key, value)
        with self._watched("the other workers, which have to initialise this key as well"):
            super().init(key, value)
        self._register(key, value)

    def broadcast(self, key, value, out, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.broadcast`; KVStoreError, before anything is sent, if the arguments are wrong."""
        if self._driver is not None:
            check_init(self._keys, key, value, out)
            priority = checked_priority(priority)
        with self._watched("the other workers, which have to initialise this key as well"):
            super().broadcast(key, value, out, priority)
        self._register(key, value)

    def _barrier(self) -> None:
        with self._watched("the other workers at a barrier"):
            super()._barrier()

    def _watched(self, what: str) -> ContextManager[None]:
        """While the caller waits for this, the watchdog counts the time."""
        return nullcontext() if self._driver is None else self._watchdog.blocked(what)

    def _register(self, key: Any, value: Any) -> None:
        for name, array in zip(key, value) if isinstance(key, (list, tuple)) else [(key, value)]:
            array = as_list(array)[0]
            self._keys.add(name, shape_of(array) if array.stype == "default" else None)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_optimizer`.

        Raises
        ------
        KVStoreError
            this is no optimizer or one that cannot be pickled, or gradients are sliced already and it is not known to be exact on
            slices. Nothing was sent.
        """
        if self._driver is None and self._agreeing is None:
            super().set_optimizer(optimizer)
            return
        check_optimizer(optimizer)
        try:
            pickled = pickle.dumps(optimizer)
        except Exception as error:              # whatever the optimizer's own parts raise
            raise KVStoreError(f"this {type(optimizer).__name__} cannot be pickled, as the servers need it to be: {error}") from error
        if self._agreeing is None:
            super().set_optimizer(optimizer)
        else:
            if self._layout.slices and not slicing_allowed(optimizer):
                raise KVStoreError(f"{type(optimizer).__name__} is not known to be exact on slices, and the layout was fixed when the "
                                   "first gradient was pushed; set the optimizer before that")
            super().set_optimizer(self._agreeing.wrapped(pickled))
        self._optimizer = pickled

    # -- the scheduled path --------------------------------------------------------------------------------------------------

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pushpull`, sent when the scheduler says so.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._driver is None or self._compression != 1:      # with compression MXNet refuses, in its own words
            super().pushpull(key, value, out, priority)
            return
        priority = checked_priority(priority)
        if isinstance(key, (list, tuple)):
            self._check_all(key, value, out)
            for i, name in enumerate(key):
                self.pushpull(name, value[i], None if out is None else out[i], priority)
            return
        self._check(key, value, out)
        parameter = self._scheduled.get(key) or self._schedule(key, value)
        if parameter is None:
            super().pushpull(key, value, out, priority)
            return
        sources = as_list(value)
        targets = sources if out is None else as_list(out)
        iteration = self._next_iteration(parameter)
        if len(sources) == 1 and len(targets) == 1:
            parameter.native.pushpull(sources[0].handle.value, targets[0].handle.value, iteration, priority)
            return
        self._pack(parameter, sources, priority)
        parameter.native.pushpull_packed([target.handle.value for target in targets], iteration, priority)

    def push(self, key, value, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.push`, sent when the scheduler says so, whether it is pulled or not.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._driver is None:
            super().push(key, value, priority)
            return
        priority = checked_priority(priority)
        if isinstance(key, (list, tuple)):
            self._check_all(key, value)
            for i, name in enumerate(key):
                self.push(name, value[i], priority)
            return
        self._check(key, value)
        parameter = self._scheduled.get(key) or self._schedule(key, value)
        if parameter is None:
            super().push(key, value, priority)
            return
        sources = as_list(value)
        iteration = self._next_iteration(parameter)
        self._pack(parameter, sources, priority)
        parameter.native.push(iteration, priority)

    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pull`. The wrapped store pulls into the array it last sent, so after a push as the engine
        orders it.

        Raises KVStoreError, before anything is sent, if an argument is wrong or the key was not initialised.
        """
        if self._driver is None:
            super().pull(key, out, priority, ignore_sparse)
            return
        priority = checked_priority(priority)
        if out is None:
            raise KVStoreError(f"key {key!r:.80}: no array to pull into")
        if isinstance(key, (list, tuple)):
            check_lists(key, out=out)
            for name, targets in zip(key, out):
                check_transfer(self._keys, name, None, targets, False)
        else:
            check_transfer(self._keys, key, None, out, False)
        if not (self._layout.slices or self._timeline):
            super().pull(key, out, priority, ignore_sparse)
            return
        if isinstance(key, (list, tuple)):
            for name, targets in zip(key, out):
                self.pull(name, targets, priority, ignore_sparse)
            return
        if key not in self._layout.slices:
            super().pull(key, out, priority, ignore_sparse)
            self._note_landed(key, out)
            return
        parameter = self._scheduled.get(key) or self._schedule(key, mx.nd.empty(self._keys.shapes[key].shape,
                                                                                dtype=self._keys.shapes[key].dtype))
        targets = as_list(out)
        check_fit(key, parameter.native, parameter.buffer, targets)
        super().pull(parameter.keys, parameter.arrays, priority)
        parameter.native.join()
        for target in targets:
            parameter.native.unpack(target.handle.value)
        self._note_landed(key, out)

    def _pack(self, parameter: _Scheduled, sources: List[mx.nd.NDArray], priority: int) -> None:
        """Bring the sum over the devices into the buffer, added up as the wrapped store would."""
        if len(sources) == 1:
            parameter.native.pack(sources[0].handle.value)
            return
        if self._reducer is None:
            self._reducer = mx.kv.create("device" if "device" in self.type else "local")
            self._reduced: Set[int] = set()
        if parameter.gradient not in self._reduced:
            self._reduced.add(parameter.gradient)
            self._reducer.init(parameter.gradient, parameter.buffer)
        self._reducer.push(parameter.gradient, sources, priority)
        self._reducer.pull(parameter.gradient, parameter.buffer, priority)

    def _next_iteration(self, parameter: _Scheduled) -> int:
        """The caller's iteration: a new one begins when a parameter is pushed again."""
        begins = parameter.iteration == self._iteration
        self._iteration += begins
        parameter.iteration = self._iteration
        if self._fail.reason:
            return self._iteration
        try:
            if begins:
                self._key_sets.iteration_ends(self._iteration - 1)
                self._metrics.iteration(self._iteration, self._driver)
                self._learner.iteration_begins(self._iteration, self._names, self._sizes, self._unit_gradients)
            self._key_sets.pushed(self._names[parameter.gradient])
        except Exception as error:                  # nothing of ours may stop training
            self._driver.record(False)
            self._fail("the profile", error)
        return self._iteration

    def _check_all(self, keys: Any, values: Any, outs: Any = None) -> None:
        """Every key's arguments, before the first is sent."""
        check_lists(keys, value=values, out=outs)
        for i, key in enumerate(keys):
            self._check(key, values[i] if values is not None else None, None if outs is None else outs[i])

    def _check(self, key: Any, value: Any, out: Any = None) -> None:
        """The arguments of one key's push or pushpull."""
        try:
            parameter = self._scheduled.get(key)
        except TypeError:                               # not even a thing that a dict can hold
            parameter = None
        if parameter is None or value is None:
            check_transfer(self._keys, key, () if value is None else value, out, self._optimizer is not None)
            return
        for name, given in (("value", value), ("out", out)):
            if given is not None:
                try:
                    check_fit(key, parameter.native, parameter.buffer, as_list(given))
                except AttributeError:                  # something in it is no array
                    arrays_of(key, name, given)
                    raise

    def _schedule(self, key: Key, value: Any) -> Optional[_Scheduled]:
        """Put a key on the scheduled path at its first push; None if its values are not scheduled."""
        if key in self._passed:
            return None
        sample = as_list(value)[0]
        if sample.stype != "default" or sample.size == 0:
            self._passed.add(key)
            logger.warning("key %r is not scheduled: its values are %s", key,
                           "empty" if sample.stype == "default" else sample.stype)
            return None
        gradient = self._keys.gradient(key)
        if self._agreeing is None:
            self._agree()
            if self._driver is None:
                return None
        context = mx.cpu() if sample.context.device_type.startswith("cpu") else mx.cpu_pinned(0)
        buffer = mx.nd.empty(sample.shape, ctx=context, dtype=sample.dtype)
        keys, arrays = self._layout.keys_of(key), [buffer]
        if key in self._layout.slices:
            flat = buffer.reshape((-1,))
            arrays = [alias(flat[part.start:part.stop]) for part in self._layout.slices[key]]
        if self._layout.is_late(key):
            logger.info("key %r came after the layout was fixed: it is sent whole, after all others in the total order", key)
        units = [self._new_unit(name, array, gradient, *self._layout.order_of(key, part))
                 for part, (name, array) in enumerate(zip(keys, arrays))]
        self._unit_gradients += [gradient] * len(units)
        self._names[gradient] = str(key)
        self._sizes[gradient] = shape_of(buffer).bytes // self._compression
        native = _core.Parameter(self._driver, self.handle.value, buffer.handle.value,
                                 [(unit, array.handle.value, name) for unit, array, name in zip(units, arrays, keys)])
        parameter = self._scheduled[key] = _Scheduled(native, buffer, keys, arrays, gradient)
        if self._iteration < 0:
            self._iteration = 0
        return parameter

    def _new_unit(self, key: Key, array: mx.nd.NDArray, gradient: int, rank: int, position: int) -> int:
        shape = shape_of(array)
        return self._driver.new_unit(shape.bytes // self._compression, self._keys.server_of(key, shape.elements), gradient, rank,
                                     position)

    def _agree(self) -> None:
        """Fix the layout and find the connections to the servers: once, on all workers together, before the first gradient is sent."""
        with self._watched("the other workers, which have to push their first gradient as well"):
            self._agree_together()

    def _agree_together(self) -> None:
        raw = _Unscheduled(self)
        mx.nd.waitall()                             # the initial pulls are over: only what is asked now is on the wire
        self._monitor = LinkMonitor(self._driver, self._config, self._keys.servers, self._fail)
        # The other workers are waiting: whatever fails here, the agreement goes on.
        self._guarded("the link monitor", lambda: self._monitor.attach(lambda server: self._ask(raw, server)))
        self._guarded("the watchdog", self._watch_connections)
        profiled = bool(self._guarded("the profile", self._start_from_saved))
        self._agreeing = Agreeing(raw, self._keys, self._config)
        agreed = self._agreeing.agree(self._optimizer, self._compression != 1, profiled)
        if agreed.rate:
            self._driver.rates_known(agreed.rate)
        self._driver.unit_known(agreed.unit)
        slices = self._agreeing.slices(agreed.unit)
        self._layout.fix(slices, self._agreeing.make_slices(slices, self._optimizer))
        if agreed.in_order:
            self.close()
            self._driver = None                     # from here on as if it had never been scheduled
            return
        if agreed.profiled:
            self._layout.use(self._agreeing.agree_orders(self._guarded("the orders", self._own_orders)))
        logger.info("layout: %d of %d gradients are cut into %d slices of about %d bytes", len(slices), len(self._keys.gradients),
                    sum(map(len, slices.values())), agreed.unit)

    def _guarded(self, part: str, function: Callable[[], Any]) -> Any:
        """Call a part of ours whose errors must not reach the caller; None if it failed."""
        try:
            return function()
        except Exception as error:
            self._fail(part, error)
            return None

    def _watch_connections(self) -> None:
        """Let the watchdog report the connections that break."""
        sockets = self._monitor.sockets or [(fd, None) for fd in server_sockets()]
        self._watchdog.watch([Connection(fd, server) for fd, server in sockets] + [Connection(fd, -1) for fd in to_scheduler()])

    def _start_from_saved(self) -> bool:
        """Start from the profile of an earlier job, if there is one of these parameters; whether there is."""
        names = {str(key): gradient for key, gradient in self._keys.gradients.items()}
        profiled = self._saved is not None and self._learner.use(self._saved, names)
        if self._saved is not None and not profiled:
            logger.warning("the profile in %s is of other parameters; it is not used", self._config.profile)
        return profiled

    def _own_orders(self) -> Optional[Orders]:
        """The orders that this worker's profile gives, if it has one."""
        ready = self._learner.ready_times()
        if not ready:
            return None
        rate = sum(link["rate"] for link in self._driver.snapshot()["links"])
        return orders(self._layout.sizes(), ready, self._learner.steps(), rate)

    def _ask(self, raw: "_Unscheduled", server: int) -> bool:
        """Pull the smallest key that is on this server alone, which changes nothing; False if there is none."""
        key = self._keys.smallest_on(server)
        if key is None:
            return False
        scratch = mx.nd.empty(self._keys.shapes[key].shape, dtype=self._keys.shapes[key].dtype)
        raw.pull(key, scratch)
        scratch.wait_to_read()
        return True

    # -- the timeline --------------------------------------------------------------------------------------------------------

    def timeline_start(self, path: str, limit: Optional[int] = None) -> str:
        """Write a trace of the job from now on, for Perfetto, ``chrome://tracing`` and ``prophet-mx report``.

        Parameters
        ----------
        path : of the file, in a folder that exists. The rank is put into its name: ``trace.json`` becomes ``trace-0.json``, and
            ``{rank}`` is replaced. An old file of this name is replaced.
        limit : bytes that it may take (``Config.timeline_limit`` by default). From half of that on, only some iterations are written.

        Returns
        -------
        str
            the path of the file, which is valid JSON at every moment.

        Raises
        ------
        ConfigError
            the path or the limit is not allowed, or the file cannot be created.
        KVStoreError
            a timeline is being written already, or nothing is scheduled.
        """
        settings = {"timeline": path} if limit is None else {"timeline": path, "timeline_limit": limit}
        config = Config.from_env({}, **settings)
        if config.timeline is None:
            raise ConfigError(f"timeline={path!r} is not allowed; allowed: the path of a file, in a folder that exists")
        if self._driver is None:
            raise KVStoreError("a timeline shows scheduled traffic, and nothing is scheduled here; the log says why")
        if self._timeline is not None and self._timeline.writing:
            raise KVStoreError(f"a timeline is being written to {self._timeline.path}; end it with timeline_stop()")
        self.timeline_stop()
        self._timeline = self._new_timeline(self._driver, config.timeline, config.timeline_limit if limit else self._config.timeline_limit,
                                            self, self._keys)
        return self._timeline.path

    def _new_timeline(self, driver: "_core.Driver", path: str, limit: int, kv: KVStore, keys: KeyBook) -> Timeline:
        return Timeline(driver, path, limit, rank=kv.rank, workers=kv.num_workers, servers=keys.servers, gradients=self._unit_gradients,
                        names=self._names, about={"policy": self._config.policy})

    def timeline_stop(self) -> Optional[str]:
        """End the trace. The path of the file, None if none was being written."""
        if self._driver is None or self._timeline is None:
            return None
        timeline, self._timeline = self._timeline, None
        timeline.stop()
        return timeline.path

    def _note_landed(self, key: Key, out: Any) -> None:
        """For the timeline: a value was asked for by a pull of its own."""
        parameter = self._scheduled.get(key)
        if self._timeline is not None and parameter is not None:
            for target in as_list(out):
                parameter.native.note_landed(target.handle.value, parameter.iteration)

    # -- what it learned, and the end ---------------------------------------------------------------------------------------

    def set_gradient_compression(self, compression_params) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_gradient_compression`; KVStoreError, before anything is sent, for wrong parameters."""
        if self._driver is not None:
            check_compression(compression_params)
        super().set_gradient_compression(compression_params)
        self._compression = COMPRESSION_FACTOR.get(compression_params.get("type", "none"), 1)

    def stats(self) -> Dict[str, Any]:
        """What the scheduler did and learned so far.

        Keys: ``policy``; ``drain`` (source); ``iterations``; ``units`` and ``bytes`` released; ``blocks`` (groups of units released
        together); ``wait_seconds`` (sum over units, from ready to released); ``inverted_bytes`` (released ahead of more urgent ready
        ones); ``first_wait`` (mean seconds from ready to answered of the most urgent unit); ``utilisation`` (share of the link used while
        there was something to send, 0 to 1); ``rates`` (bytes/s to each server); ``steps`` (list of lists of parameter names) and
        ``step_times`` (seconds after the iteration's first ready gradient), both empty until learned; ``failure`` (the internal error that
        ended scheduling, in words, '' without one). Only ``policy`` ("off") where nothing is scheduled.
        """
        if self._driver is None:
            return {"policy": "off"}
        state = self._driver.snapshot()
        profile = self._learner.profile
        links = state["links"]
        backlog = sum(link["backlog_seconds"] * link["rate"] for link in links)
        return {
            "policy": self._config.policy,
            "drain": self._monitor.source if self._monitor else "none",
            **{name: state[name] for name in ("iterations", "units", "bytes", "blocks", "wait_seconds", "inverted_bytes")},
            "first_wait": state["first_seconds"] / max(1, state["first_answers"]),
            "utilisation": min(1.0, sum(link["backlog_bytes"] for link in links) / backlog) if backlog else 0.0,
            "rates": [link["rate"] for link in links],
            "steps": [[profile.gradients[i].name for i in step] for step in profile.steps] if profile else [],
            "step_times": list(profile.step_times()) if profile else [],
            "failure": self._fail.reason,
        }

    def close(self) -> None:
        """Stop scheduling: everything held is sent at once, later pushes are not held, and nothing is watched any more. Called at exit; may
        be called again."""
        if self._driver is None:
            return
        self._stop_scheduling()
        if not self._forked():
            self._watchdog.close()

    def _stop_scheduling(self) -> None:
        """As close(), but what is on its way is still watched."""
        if self._driver is None or self._forked():
            return
        self._driver.stop()
        self.timeline_stop()
        if self._monitor is not None:
            self._monitor.close()
        self._metrics.close()
        self._guarded("the profile", self._save_profile)

    def _forked(self) -> bool:
        """Whether this is a child of the process that made the store, which owns the connections."""
        return os.getpid() != self._pid

    def _save_profile(self) -> None:
        if self._config.profile and self._learner.profile is not None and self._learner.profile is not self._saved and self.rank == 0:
            try:
                self._learner.profile.save(self._config.profile)
            except ProfileError as error:
                logger.error("%s", error)           # the job has done its work: no reason to fail
            self._saved = self._learner.profile

    def __del__(self) -> None:
        if not self.handle:
            return
        if self._driver is None:
            super().__del__()
            return
        if self._forked():
            return                                  # freeing it would speak to the servers in the parent's name
        # MXNet waits for the engine when it frees a store, so nothing may be held; and for the other workers, so that is watched.
        self._stop_scheduling()
        try:
            with self._watchdog.blocked("the other workers to end (MXNet's barrier)", ending=True):
                super().__del__()
        finally:
            self._watchdog.close()


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


def _why_unscheduled(kv: KVStore, config: Config) -> str:
    """Why this store's traffic is not scheduled, or ''."""
    if config.policy == "off":
        return "the policy is off"
    if "dist" not in kv.type:
        return f"the store is '{kv.type}', not dist_sync"
    if "async" in kv.type:
        return f"the store is '{kv.type}', where updates do not wait for one another"
    if kv._is_p3:
        return "DMLC_PS_VAN_TYPE=p3 selects MXNet's own scheduling"
    if os.environ.get("MXNET_ENGINE_TYPE", "") == "NaiveEngine":
        return "MXNET_ENGINE_TYPE=NaiveEngine runs every operation inside the call that pushes it"
    return ""


class _Unscheduled:
    """The wrapped store's own operations, for what workers agree on before anything is scheduled."""

    def __init__(self, store: ScheduledKVStore) -> None:
        plain = super(ScheduledKVStore, store)
        self.init, self.pull, self.broadcast = plain.init, plain.pull, plain.broadcast
        self.pushpull, self.set_optimizer, self.barrier = plain.pushpull, plain.set_optimizer, plain._barrier
        self.rank, self.num_workers = store.rank, store.num_workers
