"""The scheduled path of a store: the engine's driver, the layout, the parameters' buffers, and what watches and learns from them.

Exists only while traffic is scheduled. Does not know the store, which owns it: the store's operations are handed in where they are
needed. Called from the store's own thread; no call waits for the network but :meth:`ScheduledPath.agree`.
"""
import logging
import os
from typing import Any, Callable, Dict, List, Optional, Set

import mxnet as mx
from mxnet.kvstore import KVStore

from .. import _core
from ..config import Config
from ..errors import KVStoreError, ProfileError, ProphetError
from ..monitoring.key_sets import KeySets
from ..monitoring.metrics import Metrics
from ..monitoring.timeline import Timeline
from ..monitoring.watchdog import Watchdog
from ..network.connections import Connection, to_scheduler
from ..network.drain import LinkMonitor, server_sockets
from ..planning.orders import Orders
from ..profiling.online import ProfileLearner
from ..profiling.gradient_profile import GradientProfile
from ..threads import not_started
from .agreement import Agreeing, Wrapping
from .arrays import Arrays, as_list, new_arrays, shape_of
from .failopen import FailOpen
from .fixed_layout import FixedLayout
from .keys import Key, KeyBook
from .order_exchange import OrderExchange
from .order_source import OrderSource

logger = logging.getLogger("prophet_mx")

SETTLING = 5            # pushes of a key after those that make the first profile, until the profile stands


class Parameter:
    """A gradient on the scheduled path, and its buffer."""

    __slots__ = ("native", "units", "buffer", "keys", "arrays", "gradient", "iteration")

    def __init__(self, native: "_core.Parameter", units: List[int], buffer: mx.nd.NDArray, keys: List[Key],
                 arrays: List[mx.nd.NDArray], gradient: int) -> None:
        self.native = native
        self.units = units                  # their indices in the scheduler
        self.buffer = buffer
        self.keys = keys                    # of its units
        self.arrays = arrays                # of its units: the buffer itself, or aliases of its slices
        self.gradient = gradient
        self.iteration = -1                 # the caller's iteration in which it was last pushed


class ScheduledPath:
    """What a store has only where its traffic is scheduled.

    All that can fail is made here and by :meth:`start`, which comes next, while the caller still has a store that works without it.

    Parameters
    ----------
    kv : the plain store, which is only asked for what it is.

    Raises
    ------
    ConfigError, ProfileError
        a file that a setting names is wrong, or cannot be made.
    KVStoreError
        a thread cannot be started.

    Attributes
    ----------
    config : the settings that are in force; rank 0's for all workers, where they are shared, from the first push on.
    rank : this worker's.
    driver, watchdog : their threads run from start() to close().
    layout : empty until the first push.
    parameters : those that were pushed, by key.
    compression : factor by which MXNet's compression makes gradients smaller.
    in_order : whether they have agreed to schedule nothing: the optimizer depends on the order in which keys are updated.
    """

    def __init__(self, kv: KVStore, config: Config, keys: KeyBook) -> None:
        self.config = config
        self._keys = keys
        self._saved: Optional[GradientProfile] = None
        if config.profile and os.path.exists(config.profile):
            self._saved = GradientProfile.load(config.profile)
        self._type, self.rank, self._workers = kv.type, kv.rank, kv.num_workers
        self.driver = _core.Driver(config.policy, keys.servers, config.window or 0, config.lead or 0)
        self._names: Dict[int, str] = {}                # by gradient index
        self._sizes: Dict[int, int] = {}                # likewise, in bytes
        self._unit_gradients: List[int] = []
        self._metrics = Metrics(config, kv.rank)
        self._timeline: Optional[Timeline] = None
        try:
            if config.timeline:
                self._timeline = self._new_timeline(config.timeline, config.timeline_limit)
        except ProphetError:
            self._metrics.close()
            raise
        self.in_order = False
        self.compression = 1
        self.parameters: Dict[Key, Parameter] = {}
        self.layout = FixedLayout(keys)
        self._made: Dict[Key, Arrays] = {}              # buffers that rank 0 made before their keys' first push
        self._passed: Set[Key] = set()                  # keys whose values are not scheduled (sparse, empty)
        self._key_sets = KeySets()
        self._reducer: Optional[KVStore] = None         # sums over several devices with MXNet's own code
        self._reduced: Set[int] = set()
        self._iteration = -1
        self._clock = -1                                # gradient whose pushes the exchange of orders goes by
        self._exchange: Optional[OrderExchange] = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the threads of the driver and of the watchdog. KVStoreError if one cannot be started: then none is left of the path's."""
        self._fail = FailOpen(self.driver)
        self._monitor: Optional[LinkMonitor] = None
        self._learner = ProfileLearner(self.driver, self.config.warmup)
        self._order_source = OrderSource(self.driver, self._learner, self.layout)
        names, gradients = self._names, self._unit_gradients        # not self: the watchdog's thread must not keep it alive
        try:
            self.driver.start()
            self.watchdog = Watchdog(self.driver, self.config, self.rank, lambda unit: names[gradients[unit]], self._fail)
        except KVStoreError:
            self.stop()
            raise
        except OSError as error:
            self.stop()
            raise not_started("scheduler", error) from error
        logger.info("scheduling gradient traffic: policy %s, worker %d of %d, %d server(s)", self.config.policy, self.rank,
                    self._workers, self._keys.servers)

    # -- parameters ----------------------------------------------------------------------------------------------------------

    def takes(self, key: Key, sample: mx.nd.NDArray) -> bool:
        """Whether a key's values can be scheduled; the log says once if not."""
        if key in self._passed:
            return False
        if sample.stype == "default" and sample.size:
            return True
        self._passed.add(key)
        logger.warning("key %r is not scheduled: its values are %s", key, "empty" if sample.stype == "default" else sample.stype)
        return False

    def add(self, key: Key, sample: mx.nd.NDArray, store: mx.base.KVStoreHandle) -> Parameter:
        """Put a key that is pushed for the first time on the path; ``store`` is the handle of the store that sends it."""
        gradient = self._keys.gradient(key)
        buffer, arrays = self._made.pop(key, (None, []))
        if buffer is None or (buffer.dtype, buffer.context) != (sample.dtype, _host(sample)):
            buffer, arrays = new_arrays(sample.shape, sample.dtype, _host(sample), self.layout.slices.get(key, ()))
        keys = self.layout.keys_of(key)
        if self.layout.is_late(key):
            logger.info("key %r came after the layout was fixed: it is sent whole, after all others in the total order", key)
        units = [self._new_unit(name, array, gradient, *self.layout.order_of(key, part))
                 for part, (name, array) in enumerate(zip(keys, arrays))]
        self._unit_gradients += [gradient] * len(units)
        self._names[gradient] = str(key)
        self._sizes[gradient] = shape_of(buffer).bytes // self.compression
        native = _core.Parameter(self.driver, store.value, buffer.handle.value,
                                 [(unit, array.handle.value, name) for unit, array, name in zip(units, arrays, keys)])
        parameter = self.parameters[key] = Parameter(native, units, buffer, keys, arrays, gradient)
        self._iteration = max(self._iteration, 0)
        return parameter

    def _new_unit(self, key: Key, array: mx.nd.NDArray, gradient: int, rank: int, position: int) -> int:
        shape = shape_of(array)
        return self.driver.new_unit(shape.bytes // self.compression, self._keys.server_of(key, shape.elements), gradient, rank, position)

    def pack(self, parameter: Parameter, sources: List[mx.nd.NDArray], priority: int) -> None:
        """Bring the sum over the devices into the buffer, added up as the wrapped store would."""
        if len(sources) == 1:
            parameter.native.pack(sources[0].handle.value)
            return
        if self._reducer is None:
            self._reducer = mx.kv.create("device" if "device" in self._type else "local")
        if parameter.gradient not in self._reduced:
            self._reduced.add(parameter.gradient)
            self._reducer.init(parameter.gradient, parameter.buffer)
        self._reducer.push(parameter.gradient, sources, priority)
        self._reducer.pull(parameter.gradient, parameter.buffer, priority)

    def next_iteration(self, parameter: Parameter) -> int:
        """The caller's iteration: a new one begins when a parameter is pushed again."""
        if parameter.gradient == self._clock and self.compression == 1:
            # Even if something failed here: the other workers count on the messages.
            self._guarded("the exchange of orders",
                          lambda: self._exchange.clock_pushed(self._own_orders, self._use_orders, self.driver.limit_again))
        begins = parameter.iteration == self._iteration
        self._iteration += begins
        parameter.iteration = self._iteration
        if self._fail.reason:
            return self._iteration
        try:
            if begins:
                self._key_sets.iteration_ends(self._iteration - 1)
                self._metrics.iteration(self._iteration, self.driver)
                self._learner.iteration_begins(self._iteration, self._names, self._sizes, self._unit_gradients)
            self._key_sets.pushed(self._names[parameter.gradient])
        except Exception as error:                  # nothing of ours may stop training
            self.driver.record(False)
            self._fail("the profile", error)
        return self._iteration

    # -- the first push ------------------------------------------------------------------------------------------------------

    def adopt(self, config: Config) -> None:
        """Take rank 0's settings in place of this worker's own, before the first gradient is sent."""
        self.config = config
        self._learner.warmup = config.warmup
        self.driver.policy_known(config.policy)
        self._metrics.policy_known(config.policy)
        if self._timeline is not None:              # its head tells the policy; there was nothing to record yet
            path, limit = self._timeline.asked
            self.stop_timeline()
            try:
                self._timeline = self._new_timeline(path, limit)
            except ProphetError as error:
                logger.error("%s", error)

    def agree(self, raw: Any, agreeing: Agreeing, store: mx.base.KVStoreHandle, sample: Optional[mx.nd.NDArray],
              optimizer: Optional[bytes]) -> Optional[Wrapping]:
        """Fix the layout and find the connections to the servers: once, on all workers together, before the first gradient is sent.

        ``raw`` has the wrapped store's own operations, ``store`` is its handle, ``sample`` is the first gradient, which rank 0 alone
        needs, ``optimizer`` the one that is on the servers, pickled. Blocks until every worker is here. Returns how optimizers are wrapped
        from now on; None if they are not, as nobody knows the numbers of the keys.
        """
        mx.nd.waitall()                             # the initial pulls are over: only what is asked now is on the wire
        self._monitor = LinkMonitor(self.driver, self.config, self._keys.servers, self._fail)
        # The other workers are waiting: whatever fails here, the agreement goes on.
        self._guarded("the link monitor", lambda: self._monitor.attach(lambda server: self._ask(raw, server)))
        self._guarded("the watchdog", self._watch_connections)
        profiled = bool(self._guarded("the profile", self._start_from_saved))
        agreed = agreeing.agree(self.config, optimizer, profiled)
        if agreed.rate:
            self.driver.rates_known(agreed.rate)
        self.driver.unit_known(agreed.unit)
        slices = agreeing.slices(agreed.unit)

        def make(key: Key) -> Arrays:
            shape = self._keys.shapes[key]
            self._made[key] = new_arrays(shape.shape, shape.dtype, _host(sample), slices[key])
            return self._made[key]

        self.layout.fix(slices, agreeing.make_slices(slices, optimizer, make))
        if agreed.profiled:                         # never so if agreed.in_order
            self.layout.use(agreeing.agree_orders(self._own_orders()))
        # What is compressed does not arrive as it was sent, nor does what an optimizer takes for a parameter.
        if not agreed.in_order and self.compression == 1 and self._keys.shapes and agreeing.wrapping is not None:
            self._clock = max(self._keys.gradients[key] for key in self._keys.shapes)       # the last layer is hardly ever frozen
            self._exchange = OrderExchange(store, agreeing.order_key, agreeing.units, self.config.warmup + SETTLING)
        self.in_order = agreed.in_order
        if not agreed.in_order:
            logger.info("layout: %d of %d gradients are cut into %d slices of about %d bytes", len(slices), len(self._keys.gradients),
                        sum(map(len, slices.values())), agreed.unit)
        return agreeing.wrapping

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
        self.watchdog.watch([Connection(fd, server) for fd, server in sockets] + [Connection(fd, -1) for fd in to_scheduler()])

    def _start_from_saved(self) -> bool:
        """Start from the profile of an earlier job, if there is one of these parameters; whether there is."""
        names = {str(key): gradient for key, gradient in self._keys.gradients.items()}
        profiled = self._saved is not None and self._learner.use(self._saved, names)
        if self._saved is not None and not profiled:
            logger.warning("the profile in %s is of other parameters; it is not used", self.config.profile)
        return profiled

    def _own_orders(self) -> Optional[Orders]:
        """Those that this worker hands out: rank 0's, if they are new."""
        return self._guarded("the orders", self._order_source.new) if self.rank == 0 else None

    def _use_orders(self, agreed: Orders) -> None:
        """Take orders that the workers agree on while gradients are on their way."""
        def use() -> None:
            self.layout.use(agreed)
            self.driver.places_changed([(unit, *self.layout.order_of(key, part)) for key, parameter in self.parameters.items()
                                        for part, unit in enumerate(parameter.units)])
            logger.info("the order of %d units follows the profile now", len(agreed.ranks))

        self._guarded("the orders", use)

    def _ask(self, raw: Any, server: int) -> bool:
        """Pull the smallest key that is on this server alone, which changes nothing; False if there is none."""
        key = self._keys.smallest_on(server)
        if key is None:
            return False
        scratch = mx.nd.empty(self._keys.shapes[key].shape, dtype=self._keys.shapes[key].dtype)
        raw.pull(key, scratch)
        scratch.wait_to_read()
        return True

    # -- what it shows -------------------------------------------------------------------------------------------------------

    def start_timeline(self, path: str, limit: int) -> str:
        """See :meth:`ScheduledKVStore.timeline_start`."""
        if self._timeline is not None and self._timeline.writing:
            raise KVStoreError(f"a timeline is being written to {self._timeline.path}; end it with timeline_stop()")
        self.stop_timeline()
        self._timeline = self._new_timeline(path, limit)
        return self._timeline.path

    def _new_timeline(self, path: str, limit: int) -> Timeline:
        return Timeline(self.driver, path, limit, rank=self.rank, workers=self._workers, servers=self._keys.servers,
                        gradients=self._unit_gradients, names=self._names, about={"policy": self.config.policy})

    def stop_timeline(self) -> Optional[str]:
        """The path of the trace that ends; None if none was being written."""
        if self._timeline is None:
            return None
        timeline, self._timeline = self._timeline, None
        timeline.stop()
        return timeline.path

    @property
    def traced(self) -> bool:
        """Whether a timeline is written."""
        return self._timeline is not None

    def note_landed(self, key: Key, out: Any) -> None:
        """For the timeline: a value was asked for by a pull of its own."""
        parameter = self.parameters.get(key)
        if self._timeline is not None and parameter is not None:
            for target in as_list(out):
                parameter.native.note_landed(target.handle.value, parameter.iteration)

    def stats(self) -> Dict[str, Any]:
        """See :meth:`ScheduledKVStore.stats`."""
        state = self.driver.snapshot()
        profile = self._learner.profile
        links = state["links"]
        backlog = sum(link["backlog_seconds"] * link["rate"] for link in links)
        return {
            "policy": self.config.policy,
            "drain": self._monitor.source if self._monitor else "none",
            **{name: state[name] for name in ("iterations", "units", "bytes", "blocks", "wait_seconds", "inverted_bytes")},
            "first_wait": state["first_seconds"] / max(1, state["first_answers"]),
            "utilisation": min(1.0, sum(link["backlog_bytes"] for link in links) / backlog) if backlog else 0.0,
            "rates": [link["rate"] for link in links],
            "steps": [[profile.gradients[i].name for i in step] for step in profile.steps] if profile else [],
            "step_times": list(profile.step_times()) if profile else [],
            "failure": self._fail.reason,
        }

    # -- the end -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop scheduling, and watching. May be called again."""
        self.stop()
        if not self.forked():
            self.watchdog.close()

    def stop(self) -> None:
        """Release everything held and hold nothing any more; what is on its way is still watched. May be called again."""
        if self.forked():
            return
        self.driver.stop()
        self.stop_timeline()
        if self._monitor is not None:
            self._monitor.close()
        self._metrics.close()
        self._guarded("the profile", self._save_profile)

    def forked(self) -> bool:
        """Whether this is a child of the process that made the store, which owns the connections."""
        return os.getpid() != self._pid

    def _save_profile(self) -> None:
        if self.config.profile and self._learner.profile is not None and self._learner.profile is not self._saved and self.rank == 0:
            try:
                self._learner.profile.save(self.config.profile)
            except ProfileError as error:
                logger.error("%s", error)           # the job has done its work: no reason to fail
            self._saved = self._learner.profile


def _host(sample: mx.nd.NDArray) -> mx.Context:
    """Where the buffer for an array is: in the host's memory, in that which its device copies to fast."""
    return mx.cpu() if sample.context.device_type.startswith("cpu") else mx.cpu_pinned(0)
