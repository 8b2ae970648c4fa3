"""The scheduled path of a store: the engine's driver, the layout, the parameters, and what watches and learns from them.

Exists only while traffic is scheduled. Does not know the store, which owns it: the store's operations are handed in where they are
needed. Called from the store's own thread; no call waits for the network but :meth:`ScheduledPath.join`.
"""

import logging
import os
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.kvstore import KVStore

from .. import _core
from ..config import Config
from ..errors import KVStoreError, ProfileError, ProphetError
from ..monitoring.metrics import KeySets, Metrics
from ..monitoring.stats import Stats, stats
from ..monitoring.timeline import Timeline
from ..monitoring.watchdog import Watchdog
from ..network.connections import Connection, to_scheduler
from ..network.drain import LinkMonitor, server_sockets
from ..place import worker_name
from ..planning.orders import Orders, forward_order
from ..profiling.gradient_profile import GradientProfile
from ..profiling.online import ProfileLearner
from ..quantities import format_rate
from ..runtime import not_started
from ..sizes import message_bytes
from .api import PlainStore
from .arguments import as_list
from .failures import Failures, failure
from .keys import Key, KeyBook
from .layout import Layout
from .lifecycle import FailOpen
from .order_exchange import OrderExchange, OrderSource
from .parameters import Parameter, Parameters

logger = logging.getLogger("prophet_mx")

SETTLING = 5  # pushes of a key after those that make the first profile, until the profile stands


class ScheduledPath:
    """The part of a store that exists only while its traffic is scheduled.

    All that can fail is done here and in :meth:`start`, which must follow. Until then the caller's store works without the path.

    Parameters
    ----------
    kv : the plain store; only its type, its rank and the number of workers are read.

    Raises ConfigError or ProfileError if a file that a setting names is wrong, or cannot be made, and KVStoreError if a thread cannot be
    started.

    Attributes
    ----------
    config : the settings in force; from the first push on, the shared ones are rank 0's.
    rank : of this worker.
    driver, watchdog : their threads run from start() to close().
    parameters : the gradients that were pushed, and their buffers.
    profiled : whether there is a profile of these parameters from an earlier job; known from :meth:`join` on.
    """

    def __init__(self, kv: KVStore, config: Config, keys: KeyBook) -> None:
        self.config = config
        self._keys = keys
        self._saved: Optional[GradientProfile] = None
        if config.profile and os.path.exists(config.profile):
            self._saved = GradientProfile.load(config.profile)
        self.rank, self._workers = kv.rank, kv.num_workers
        self.driver = _core.Driver(config.policy, keys.servers, config.window or 0, config.lead or 0)
        self.parameters = Parameters(self.driver, keys, Layout(keys), kv.type, self._workers)
        self._metrics = Metrics(config, kv.rank)
        self._timeline: Optional[Timeline] = None
        try:
            if config.timeline:
                self._timeline = self._new_timeline(config.timeline, config.timeline_limit)
        except ProphetError:
            self._metrics.close()
            raise
        self.profiled = False
        self._unseen: Optional[mx.base.MXNetError] = None  # of the program's own operations, found by join()
        self._key_sets = KeySets()
        self._iteration = 0
        self._clock = -1  # gradient whose pushes are the clock of the exchange of orders
        self._exchange: Optional[OrderExchange] = None
        self.failures: Optional[Failures] = None  # of the optimizer on the servers
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the threads of the driver and of the watchdog. KVStoreError if one cannot be started: then none runs."""
        self._fail = FailOpen(self.driver)
        self._monitor: Optional[LinkMonitor] = None
        self._learner = ProfileLearner(self.driver, self.config.warmup)
        self._order_source = OrderSource(self.driver, self._learner)
        names = self.parameters.unit_names  # not self: the watchdog must not keep it alive
        try:
            self.driver.start()
            self.watchdog = Watchdog(self.driver, self.config, self.rank, lambda unit: names[unit], self._fail)
        except KVStoreError:
            self.stop()
            raise
        except OSError as error:
            self.stop()
            raise not_started("scheduler", error) from error
        logger.info(
            "scheduling gradient traffic: policy %s, %s of %d, %d server(s)",
            self.config.policy,
            worker_name(self.rank),
            self._workers,
            self._keys.servers,
        )

    @property
    def layout(self) -> Layout:
        """The layout on which the workers have agreed; until then, every gradient is whole."""
        return self.parameters.layout

    # -- a push --------------------------------------------------------------------------------------------------------------

    def next_iteration(self, parameter: Parameter) -> int:
        """The caller's iteration: a new one begins when a parameter is pushed again."""
        if parameter.gradient == self._clock:
            self._clock_pushed()
        if parameter.iteration == self._iteration:
            self._iteration_begins()
        parameter.iteration = self._iteration
        return self._iteration

    def _clock_pushed(self) -> None:
        """Take part in the exchange of orders, even after a failure: the other workers count on the messages."""
        exchange = self._exchange
        if exchange is None or self.parameters.compression != 1:
            return
        limit = partial(self.driver.set_unlimited, False)
        take_part = partial(exchange.clock_pushed, lambda: self.orders(self.layout), self._use_orders, limit)
        self.driver.set_calling(True)
        try:
            self._guarded("the exchange of orders", take_part)
        finally:  # also if a signal handler raises an exception
            self.driver.set_calling(False)

    def _iteration_begins(self) -> None:
        """The work of an iteration, done once, so that a push has little to do. KVStoreError if the optimizer on the servers has failed."""
        if self.failures is not None:
            self.driver.set_calling(True)
            try:
                self.failures.iteration_begins()
            finally:
                self.driver.set_calling(False)
        ended, self._iteration = self._iteration, self._iteration + 1
        if self._fail.reason:
            return
        try:
            self._key_sets.iteration_ends(ended, self.parameters.pushed_in(ended))
            self._metrics.iteration(self._iteration, self.driver)
            self._learner.iteration_begins(self._iteration, self.parameters.names, self.parameters.sizes)
        except Exception as error:  # an error in prophet_mx must not stop training
            self.driver.record(False)
            self._fail("the profile", error)

    # -- the first push ------------------------------------------------------------------------------------------------------

    def join(self, config: Config, plain: Optional[PlainStore], sample: Optional[mx.nd.NDArray]) -> None:
        """Take the settings that hold for all workers, and find the connections to the servers, while the others wait.

        ``plain`` is the wrapped store without scheduling; None if this worker may not have the keys that it would ask for. ``sample`` is
        the first gradient, which rank 0 alone needs.
        """
        if config != self.config:
            self.adopt(config)
        if sample is not None:
            self.parameters.gradients_are_like(sample)
        try:
            mx.nd.waitall()  # the initial pulls are over: only what is asked now is on the wire
        except mx.base.MXNetError as error:  # not now, as the others wait; but MXNet will not raise it again
            self._unseen = error
        monitor = self._monitor = LinkMonitor(self.driver, self.config, self._keys.servers, self._fail)
        if plain is not None:
            self._guarded("the link monitor", lambda: monitor.attach(lambda server: self._ask(plain, server)))
        self._guarded("the watchdog", lambda: self._watch_connections(monitor.sockets))
        self.profiled = bool(self._guarded("the profile", self._start_from_saved))

    def raise_unseen(self) -> None:
        """Raise the error of the program's own operations that :meth:`join` found, if any, now that the workers have agreed."""
        unseen, self._unseen = self._unseen, None
        try:
            if unseen is not None:
                raise unseen
        finally:
            del unseen  # it refers to this frame, and with that to the store

    def adopt(self, config: Config) -> None:
        """Take rank 0's settings in place of this worker's own, before the first gradient is sent."""
        self.config = config
        self._learner.warmup = config.warmup
        self.driver.set_policy(config.policy)
        self._metrics.policy_known(config.policy)
        if self._timeline is not None:  # its head names the policy; nothing has been recorded yet
            path, limit = self._timeline.asked
            self.stop_timeline()
            try:
                self._timeline = self._new_timeline(path, limit)
            except ProphetError as error:
                logger.error("%s", error)

    def measured(self, rate: float, message: float, unit: int) -> None:
        """Take what rank 0 has measured, and the size of a unit."""
        if rate:
            self.driver.set_rate(rate)
            self._order_source.most = 0.0 if self.config.bandwidth else rate * self._keys.servers
        self._note("while all workers send, each of them gets from a server", format_rate(rate), rate)
        self._note("while all workers send, a message takes each of them", f"{1e6 * message:.0f} us", message)
        self.driver.set_sizes(unit, message_bytes(rate, message, self._keys.servers))

    def begin(self, layout: Layout, plain: PlainStore) -> None:
        """Schedule what is pushed from now on, by the layout on which the workers have agreed."""
        self.parameters.layout = layout
        if layout.order_key is not None:
            self._clock = max(self._keys.gradients[key] for key in layout.known)  # the last layer is hardly ever frozen
            self._exchange = OrderExchange(plain, layout.order_key, len(layout.units()), self.config.warmup + SETTLING)
        if layout.told_keys:
            self.failures = Failures(plain, layout.told_keys)
            self.watchdog.listen(self.failures.found)
        cut = [len(parts) for parts in layout.slices.values() if len(parts) > 1]
        sliced = f"{len(cut)} of {len(self._keys.gradients)} gradients are sliced, into {sum(cut)} slices of about {layout.unit} bytes"
        groups = len(set(layout.group_of.values()))
        shared = f", {len(layout.group_of)} small ones share {groups} messages" if groups else ""
        logger.info("layout: %s%s", sliced if cut else "no gradient is sliced", shared)

    def _note(self, what: str, value: str, measured: float) -> None:
        """Tell the log and the timeline what was measured, if it was."""
        if measured:
            logger.info("%s %s", what, value)
            if self._timeline is not None:
                self._timeline.note(f"{what} {value}")

    def _guarded(self, part: str, function: Callable[[], Any]) -> Any:
        """Call a part of prophet_mx whose errors must not reach the caller. Returns None if it failed."""
        try:
            return function()
        except Exception as error:
            self._fail(part, error)
            return None

    def _watch_connections(self, known: Sequence[Tuple[int, int]]) -> None:
        """Let the watchdog report the connections that break; ``known`` are those whose servers are."""
        to_servers = [Connection(fd, server) for fd, server in known] or [Connection(fd, None) for fd in server_sockets()]
        self.watchdog.watch(to_servers + [Connection(fd, -1) for fd in to_scheduler()])

    def _start_from_saved(self) -> bool:
        """Start from the profile of an earlier job, if there is one of these parameters; whether there is."""
        names = {str(key): gradient for key, gradient in self._keys.gradients.items()}
        profiled = self._saved is not None and self._learner.use(self._saved, names)
        if self._saved is not None and not profiled:
            logger.warning("the profile in %s describes other parameters and is not used", self.config.profile)
        return profiled

    def saved_order(self) -> Dict[str, int]:
        """The place of each parameter in the forward order, by the profile of an earlier job; empty without one."""
        if self._saved is None:
            return {}
        order = forward_order(dict(enumerate(self._saved.ready_times())), self._saved.steps)
        return {self._saved.gradients[index].name: place for place, index in enumerate(order)}

    def orders(self, layout: Layout) -> Optional[Orders]:
        """The orders that this worker hands out: rank 0's, if they are new."""
        return self._guarded("the orders", lambda: self._order_source.new(layout.sizes())) if self.rank == 0 else None

    def _use_orders(self, agreed: Orders) -> None:
        """Take new orders from rank 0, while gradients are on their way."""

        def use() -> None:
            self.parameters.layout = self.layout.ordered(agreed)
            self.driver.set_places(self.parameters.places())
            logger.info("the order of %d units now follows the profile", len(agreed.urgencies))

        self._guarded("the orders", use)

    def _ask(self, plain: PlainStore, server: int) -> bool:
        """Pull the smallest key that is on this server alone, which changes nothing; False if there is none."""
        key = self._keys.smallest_on(server)
        if key is None:
            return False
        scratch = mx.nd.empty(self._keys.shapes[key].shape, dtype=self._keys.shapes[key].dtype)
        plain.pull(key, scratch)
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
        return Timeline(
            self.driver,
            _core.Recorder,
            path,
            limit,
            rank=self.rank,
            workers=self._workers,
            links=[f"link to server {server}" for server in range(self._keys.servers)],
            gradients=self.parameters.unit_gradients,
            names=self.parameters.titles,
            about={"policy": self.config.policy},
        )

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
        """Tell the timeline of a value that is asked for by a pull alone, without a push."""
        parameter = self.parameters.get(key)
        if self._timeline is not None and parameter is not None:
            for target in as_list(out):
                parameter.native.note_landed(target.handle.value, parameter.iteration)

    def stats(self) -> Stats:
        """See :class:`Stats`."""
        drain = self._monitor.source if self._monitor else "none"
        layout, config = self.layout, self.config
        return stats(self.driver.snapshot(), self._learner.profile, config.policy, drain, layout.message, layout.unit, self._fail.reason)

    # -- the end -------------------------------------------------------------------------------------------------------------

    def failed_updates(self, plain: PlainStore) -> str:
        """Whether the optimizer on the servers has failed, in words, when all is answered; '' if not. Waits for the servers."""
        if not self.layout.told_keys or self.watchdog.server_gone:
            return ""
        with self.watchdog.blocked("the servers' last answers"):
            return failure(plain, self.layout.told_keys)

    def close(self) -> None:
        """Stop scheduling, and watching. May be called again."""
        self.stop()
        if not self.forked():
            self.watchdog.close()

    def stop(self) -> None:
        """Release all units and hold none from now on; requests on their way are still watched. May be called again."""
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
                logger.error("%s", error)  # the job has done its work: no reason to fail
            self._saved = self._learner.profile
