"""ScheduledKVStore: the only module that knows MXNet's KVStore API.

A dense parameter of a ``dist_sync`` store takes the scheduled path: its gradient is copied into a buffer of the wrapper, and the wrapped
store sends that buffer when the compiled scheduler says so. Everything else goes straight to the wrapped store.

Contract: like MXNet's own stores, a ScheduledKVStore is called from one thread. No call waits for the network, except those that do so
in MXNet as well (init, broadcast, set_optimizer) and the first push, which asks each server once which connection is its own.
"""
import atexit
import logging
import os
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import mxnet as mx
from mxnet.base import KVStoreHandle
from mxnet.kvstore import KVStore

from . import _core
from .config import Config
from .errors import KVStoreError
from .learner import ProfileLearner
from .link import LinkMonitor
from .mxnet_api import bind

logger = logging.getLogger("prophet_mx")

Key = Union[str, int]

WIDE = -1                                   # link of a unit that MXNet spreads over all servers
COMPRESSION_FACTOR = {"none": 1, "2bit": 16}


class _Scheduled:
    """A parameter on the scheduled path."""

    __slots__ = ("native", "buffer", "gradient", "iteration", "checked")

    def __init__(self, native: "_core.Parameter", buffer: mx.nd.NDArray, gradient: int) -> None:
        self.native = native
        self.buffer = buffer
        self.gradient = gradient
        self.iteration = -1                 # the caller's iteration in which it was last pushed
        self.checked: Set[int] = set()      # handles of caller arrays known to fit the buffer


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
    KVStoreError
        ``kv`` is not a native MXNet store, or is wrapped already.
    UnsupportedMXNetError
        this MXNet's engine is not one the compiled core knows.

    >>> import mxnet as mx
    >>> kv = ScheduledKVStore(mx.kv.create("dist_sync"))                    # doctest: +SKIP
    >>> module.fit(data, kvstore=kv, num_epoch=10)                          # doctest: +SKIP
    """

    def __init__(self, kv: KVStore, **settings: Any) -> None:
        # First of all: __del__ runs also when this raises, and must find a handle that is safe to free.
        self.handle = KVStoreHandle()
        self._driver: Optional[_core.Driver] = None
        self._config = Config.from_env(**settings)
        if isinstance(kv, ScheduledKVStore):
            raise KVStoreError("this store is a ScheduledKVStore already; wrap it once")
        if not isinstance(kv, KVStore):
            raise KVStoreError(f"ScheduledKVStore wraps a store made by mx.kv.create, not {type(kv).__name__}")
        if not kv.handle:
            raise KVStoreError("this store is wrapped already; use the ScheduledKVStore that wraps it")
        reason = _why_unscheduled(kv, self._config)
        if not reason:
            bind()
        self._take_over(kv)
        self._keys: Dict[Key, int] = {}         # in the order of init/broadcast: the server's number of a string key
        self._shapes: Dict[Key, Tuple[int, tuple, type]] = {}     # of dense initial values: elements, shape, type
        self._scheduled: Dict[Key, _Scheduled] = {}
        self._passed: Set[Key] = set()          # keys whose values are not scheduled (sparse, empty)
        self._compression = 1
        if reason:
            level = logging.INFO if self._config.policy == "off" else logging.WARNING
            logger.log(level, "gradient traffic is not scheduled: %s", reason)
            return
        self._start()

    def _take_over(self, kv: KVStore) -> None:
        """Become the sole owner of the store's handle: two owners would free it twice."""
        super().__init__(kv.handle)
        kv.handle = KVStoreHandle()
        self._updater = kv._updater
        self._updater_func = kv._updater_func
        self._str_updater_func = kv._str_updater_func

    def _start(self) -> None:
        config = self._config
        self._servers = int(os.environ.get("DMLC_NUM_SERVER", "1"))
        self._driver = _core.Driver(config.policy, self._servers, config.window or 0, config.lead or 0, config.bandwidth or 0)
        self._monitor: Optional[LinkMonitor] = None     # attached at the first push
        self._learner = ProfileLearner(self._driver, config.warmup)
        self._reducer: Optional[KVStore] = None         # sums over several devices with MXNet's own code
        self._iteration = -1
        self._names: Dict[int, str] = {}                # by gradient index
        self._sizes: Dict[int, int] = {}
        self._unit_gradient: List[int] = []
        self._bigarray = int(os.environ.get("MXNET_KVSTORE_BIGARRAY_BOUND", 1000 * 1000))
        self._pid = os.getpid()
        self._driver.start()
        _live.add(self)
        logger.info("scheduling gradient traffic: policy %s, worker %d of %d, %d server(s)", config.policy, self.rank,
                    self.num_workers, self._servers)

    # -- keys ----------------------------------------------------------------------------------------------------------------

    def init(self, key, value) -> None:
        """As :meth:`mxnet.kvstore.KVStore.init`."""
        super().init(key, value)
        self._register(key, value)

    def broadcast(self, key, value, out, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.broadcast`."""
        super().broadcast(key, value, out, priority)
        self._register(key, value)

    def _register(self, key: Any, value: Any) -> None:
        for name, array in zip(key, value) if isinstance(key, (list, tuple)) else [(key, value)]:
            array = _arrays(array)[0]
            self._keys.setdefault(name, len(self._keys))
            if array.stype == "default":
                self._shapes[name] = (array.size, array.shape, array.dtype)

    # -- the scheduled path --------------------------------------------------------------------------------------------------

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pushpull`, sent when the scheduler says so."""
        if self._driver is None or self._compression != 1:      # with compression MXNet refuses, in its own words
            super().pushpull(key, value, out, priority)
            return
        if isinstance(key, (list, tuple)):
            for i, name in enumerate(key):
                self.pushpull(name, value[i], None if out is None else out[i], priority)
            return
        parameter = self._scheduled.get(key) or self._schedule(key, value)
        if parameter is None:
            super().pushpull(key, value, out, priority)
            return
        sources = _arrays(value)
        targets = sources if out is None else _arrays(out)
        self._check_arrays(key, parameter, sources)
        self._check_arrays(key, parameter, targets)
        iteration = self._next_iteration(parameter)
        if len(sources) == 1 and len(targets) == 1:
            parameter.native.pushpull(sources[0].handle.value, targets[0].handle.value, iteration, priority)
            return
        self._pack(parameter, sources, priority)
        parameter.native.send(iteration, priority, True)
        for target in targets:
            parameter.native.unpack(target.handle.value)

    def push(self, key, value, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.push`, sent when the scheduler says so, whether it is pulled or not."""
        if self._driver is None:
            super().push(key, value, priority)
            return
        if isinstance(key, (list, tuple)):
            for i, name in enumerate(key):
                self.push(name, value[i], priority)
            return
        parameter = self._scheduled.get(key) or self._schedule(key, value)
        if parameter is None:
            super().push(key, value, priority)
            return
        sources = _arrays(value)
        self._check_arrays(key, parameter, sources)
        iteration = self._next_iteration(parameter)
        self._pack(parameter, sources, priority)
        parameter.native.send(iteration, priority, False)

    # pull() is MXNet's own: the wrapped store pulls into the buffer it last sent, so it waits for that push as the engine orders it.

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
        if parameter.iteration == self._iteration:
            self._iteration += 1
            self._learner.iteration_begins(self._iteration, self._names, self._sizes, self._unit_gradient)
        parameter.iteration = self._iteration
        return self._iteration

    @staticmethod
    def _check_arrays(key: Key, parameter: _Scheduled, arrays: List[mx.nd.NDArray]) -> None:
        """Raise before anything is sent if an array does not fit; arrays seen before are known to."""
        for array in arrays:
            if array.handle.value in parameter.checked:
                continue
            if array.stype != "default" or array.shape != parameter.buffer.shape or array.dtype != parameter.buffer.dtype:
                raise KVStoreError(f"key {key!r}: got a {array.stype} array of shape {array.shape} and type "
                                   f"{array.dtype.__name__}, the parameter is a default one of shape {parameter.buffer.shape} "
                                   f"and type {parameter.buffer.dtype.__name__}")
            if len(parameter.checked) > 64:             # a caller that makes new arrays all the time
                parameter.checked.clear()
            parameter.checked.add(array.handle.value)

    def _schedule(self, key: Key, value: Any) -> Optional[_Scheduled]:
        """Put a key on the scheduled path at its first push; None if its values are not scheduled."""
        if key in self._passed:
            return None
        sample = _arrays(value)[0]
        if sample.stype != "default" or sample.size == 0:
            self._passed.add(key)
            logger.warning("key %r is not scheduled: its values are %s", key,
                           "empty" if sample.stype == "default" else sample.stype)
            return None
        if self._monitor is None:
            self._attach()
        self._keys.setdefault(key, len(self._keys))
        gradient = self._keys[key]
        context = mx.cpu() if sample.context.device_type.startswith("cpu") else mx.cpu_pinned(0)
        buffer = mx.nd.empty(sample.shape, ctx=context, dtype=sample.dtype)
        size = sample.size * buffer.dtype(0).itemsize // self._compression
        # The order all workers share: the last layer's gradient, which backward makes first, comes first.
        unit = self._driver.new_unit(size, self._server_of(key, sample.size), gradient, gradient, -gradient)
        self._names[gradient] = str(key)
        self._sizes[gradient] = size
        self._unit_gradient.append(gradient)
        native = _core.Parameter(self._driver, self.handle.value, buffer.handle.value, [(unit, buffer.handle.value, key)])
        parameter = self._scheduled[key] = _Scheduled(native, buffer, gradient)
        if self._iteration < 0:
            self._iteration = 0
        return parameter

    def _server_of(self, key: Key, elements: int) -> int:
        """The server MXNet places a key on (kvstore_dist.h, EncodeDefaultKey); WIDE if it is spread over all."""
        if self._servers == 1:
            return 0
        if elements >= self._bigarray:
            return WIDE
        number = key if isinstance(key, int) else self._keys[key]
        return (number * 9973) % self._servers

    def _attach(self) -> None:
        """Find the connections to the servers, once, before the first gradient is sent."""
        self._monitor = LinkMonitor(self._driver, self._config, self._servers)
        mx.nd.waitall()                             # the initial pulls are over: only what is asked now is on the wire
        self._monitor.attach(self._ask)

    def _ask(self, server: int) -> bool:
        """Pull the smallest key that is on this server alone, which changes nothing; False if there is none."""
        here = [key for key, (elements, _, _) in self._shapes.items()
                if elements and self._server_of(key, elements) == server]
        if not here:
            return False
        key = min(here, key=lambda name: self._shapes[name][0])
        _, shape, dtype = self._shapes[key]
        scratch = mx.nd.empty(shape, dtype=dtype)
        super().pull(key, out=scratch)
        scratch.wait_to_read()
        return True

    # -- what it learned, and the end ---------------------------------------------------------------------------------------

    def set_gradient_compression(self, compression_params) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_gradient_compression`."""
        super().set_gradient_compression(compression_params)
        self._compression = COMPRESSION_FACTOR.get(compression_params.get("type", "none"), 1)

    def stats(self) -> Dict[str, Any]:
        """What the scheduler did and learned so far.

        Keys: ``policy``; ``drain`` (source); ``iterations``; ``units`` and ``bytes`` released; ``blocks`` (groups of units released
        together); ``wait_seconds`` (sum over units, ready to release); ``inverted_bytes`` (released ahead of more urgent ready ones);
        ``rates`` (bytes/s to each server); ``steps`` (list of lists of parameter names) and ``step_times`` (seconds after the
        iteration's first ready gradient), both empty until learned. Only ``policy`` ("off") where nothing is scheduled.
        """
        if self._driver is None:
            return {"policy": "off"}
        state = self._driver.snapshot()
        profile = self._learner.profile
        return {
            "policy": self._config.policy,
            "drain": self._monitor.source if self._monitor else "none",
            "iterations": state["iterations"], "units": state["units"], "bytes": state["bytes"], "blocks": state["blocks"],
            "wait_seconds": state["wait_seconds"], "inverted_bytes": state["inverted_bytes"],
            "rates": [link["rate"] for link in state["links"]],
            "steps": [[profile.gradients[i].name for i in step] for step in profile.steps] if profile else [],
            "step_times": list(profile.step_times()) if profile else [],
        }

    def close(self) -> None:
        """Stop scheduling: everything held is sent at once, later pushes are not held. Called at exit; may be called again."""
        if self._driver is None:
            return
        if os.getpid() != self._pid:
            self._driver.forget_thread()            # a forked child: the thread, and the connections, are the parent's
            return
        self._driver.stop()
        if self._monitor is not None:
            self._monitor.close()

    def __del__(self) -> None:
        if not self.handle:
            return
        self.close()                                # MXNet waits for the engine when it frees a store: nothing may be held
        super().__del__()


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


def _arrays(value: Any) -> List[mx.nd.NDArray]:
    """One array, or a list with one array per device, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


_live: "weakref.WeakSet[ScheduledKVStore]" = weakref.WeakSet()


def _at_exit() -> None:
    """Registered after MXNet's own exit handler, so it runs before it: MXNet drops ops that are still queued when it shuts down."""
    for store in list(_live):
        store.close()
    try:
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        logger.error("while finishing at exit: %s", error)


atexit.register(_at_exit)
