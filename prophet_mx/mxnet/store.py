"""A store that was taken over: its handle, its keys, its optimizer, and the meeting of all workers at their first push."""

import logging
import os
import pickle
from contextlib import ExitStack, contextmanager, nullcontext
from enum import Enum
from itertools import chain
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Set

import mxnet as mx
import numpy as np
from mxnet.base import KVStoreHandle
from mxnet.kvstore import KVStore

from ..config import Config, check_for_mxnet
from ..errors import ConfigError, KVStoreError, not_allowed
from ..monitoring.metrics import PlainIterations, set_up_logging
from ..place import index_here, worker_name
from ..planning.orders import natural_places
from ..planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from ..policies import OFF
from .api import NAIVE, PlainStore, bind, is_naive, is_synchronous, why_unscheduled
from .arguments import as_list, check_compression, check_init, check_rows, checked_priority, parameter_names, pickled_optimizer
from .creation import dist_store_wrapped, expect_store
from .data_path import ScheduledPath
from .failures import raise_if_failed
from .keys import MEETING_INTS, Key, KeyBook, shape_of
from .layout import Hints, Wrapping
from .lifecycle import attend, deferred_signals, end, let_go, unseen_raised
from .negotiation import negotiate, text_may_come
from .optimizers import may_know_numbers, order_matters, slicing_allowed
from .owned import ENDED, OwnedStore

logger = logging.getLogger("prophet_mx")

expect_store()

COMPRESSION_FACTOR = {"none": 1, "2bit": 16}


class Mode(Enum):
    """What a store does with a gradient."""

    PLAIN = "hands it to MXNet; workers of such a store never meet"
    UNMET = "meets the other workers first"
    SCHEDULED = "sends it when the scheduler says so"
    UNSCHEDULED = "hands it to MXNet, as all workers do"
    REFUSED = "raises an error, as the workers could not agree"


class WrappedStore(OwnedStore):
    """All of a :class:`~prophet_mx.ScheduledKVStore` but what it does with gradients; its parameters and errors are described there.

    ``_path`` exists in the mode SCHEDULED. In UNMET and REFUSED it exists if this worker schedules by its own settings, or has begun to.
    """

    _mode: Mode
    automatic = False  # made by prophet_mx.mxnet.automatic: the script may still wrap it itself, as if it were a plain store

    def __init__(self, kv: KVStore, settings: Dict[str, Any]) -> None:
        # First: __del__ runs also when this raises, and must find a handle that is safe to free.
        self.handle = KVStoreHandle()
        self._path: Optional[ScheduledPath] = None
        self._config, notes = Config.read(**settings)
        check_for_mxnet(self._config)
        set_up_logging(self._config)
        if isinstance(kv, WrappedStore):
            if not kv.automatic or kv._mode not in (Mode.PLAIN, Mode.UNMET):
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
        self._take_over(kv._given_back() if isinstance(kv, WrappedStore) else kv)
        if "dist" in self.type:
            dist_store_wrapped()
            if index_here() not in (None, self.rank):
                logger.warning("process worker %d of prophet-mx launch is rank %d of the job: messages name both", index_here(), self.rank)
        self._path = path
        if notes and self.rank == 0:
            logger.warning("variables of ByteScheduler: %s", "; ".join(notes))
        self._keys = keys
        self._optimizer: Optional[bytes] = None  # as it was when it was set
        self._names: Dict[Any, str] = {}  # of parameters by int keys, where the optimizer has told them
        self._trained: Set[Any] = set()  # keys that were initialised from arrays with gradients
        self._wrapping: Optional[Wrapping] = None  # of optimizers, once the workers have met
        self._told_keys: List[Key] = []  # by which the servers tell of failures, from then on
        self._sums = False  # whether they met without an optimizer on the servers, as far as this worker knows
        self._compression = 1  # factor by which MXNet makes gradients smaller
        self._shifted = False  # whether a text key has another number than without the wrapper
        self._mode = Mode.UNMET if is_synchronous(self) else Mode.PLAIN
        self._refused = ""  # why nothing may be sent
        self._plain_iterations = PlainIterations(self._config.log_every) if self._config.log_every else None  # used without a path
        if path is None:
            if self._config.compress:
                logger.warning("compress=%s has no effect: gradient traffic is not scheduled", self._config.compress)
            level = logging.INFO if self._config.policy == OFF else logging.WARNING
            logger.log(level, "gradient traffic is not scheduled: %s", reason)
            if self._config.timeline:
                logger.warning("no timeline is written to %s: it shows scheduled traffic only", self._config.timeline)
            return
        attend(self, path)

    def _given_back(self) -> KVStore:
        """The plain store again. This one has been closed, and is of no use afterwards."""
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
        with self._making(key, value):
            super().init(key, value)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """As :meth:`mxnet.kvstore.KVStore.broadcast`; KVStoreError, before anything is sent, if the arguments are wrong."""
        if self._path is not None:
            check_init(self._keys, key, value, out)
            priority = checked_priority(priority)
        with self._making(key, value):
            super().broadcast(key, value, out, priority)

    @contextmanager
    def _making(self, key: Any, value: Any) -> Iterator[None]:
        """A context in which the caller makes keys, together with the other workers."""
        self._check_new(key, value)
        with self._watched("the other workers, which must initialise this key as well"), self._in_store():
            yield
        self._register(key, value)

    def _check_type(self, value: Any) -> None:
        """KVStoreError if a new array is not of float32, while others travel in 16 bits; see halving.py."""
        for array in chain.from_iterable(map(as_list, as_list(value))):
            if np.dtype(array.dtype) != np.float32:
                raise KVStoreError(
                    f"a key of {np.dtype(array.dtype)} cannot be added while gradients travel in 16 bits, as servers would take it for "
                    "float32: initialise it before the first push, or set compress='off'"
                )

    def _check_new(self, key: Any, value: Any) -> None:
        """KVStoreError if the caller makes a key of prophet_mx: one of the meeting, or, once the workers have met, any other, even if
        nothing is scheduled. These keys also shift the number of a new string key, which is right only if the optimizer on the servers
        knows them."""
        if self._mode is Mode.PLAIN:
            return
        names = as_list(key)
        for name in names:
            if isinstance(name, (str, int)) and self._keys.is_own(name):
                raise KVStoreError(
                    f"key {name!r} is taken: prophet_mx makes it for itself; use another one"
                    + ("" if name in MEETING_INTS else ", or make it before the first push")
                )
        if self._path is not None and self._path.layout.halves:
            self._check_type(value)
        if self._mode is not Mode.UNMET and self._wrapping is None and names and isinstance(names[0], str):
            self._check_shifted(names[0])

    def _check_shifted(self, name: str) -> None:
        """KVStoreError if the optimizer on the servers may go by the number of this new text key, which is another than without the
        wrapper. Blocks until every worker is here, as making the key does."""
        with deferred_signals():
            may_come = text_may_come(self._plain, self._keys, self._compression != 1, self._optimizer)
        self._shifted = self._shifted or may_come
        if not may_come:
            raise KVStoreError(
                f"key {name!r:.80} cannot be added: other keys were initialised before wrapping, and the optimizer on the servers may take "
                "its number for another parameter's; wrap the store before the first key, or initialise this one before the first push"
            )

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """As :meth:`mxnet.kvstore.KVStore.row_sparse_pull`; KVStoreError, before anything is sent, if a key is dense, or an array is not
        like its key."""
        if self._path is not None:
            check_rows(self._keys, key, out)
        with self._in_store():
            super().row_sparse_pull(key, out, priority, row_ids)

    def _barrier(self) -> None:
        with self._watched("the other workers at a barrier"):
            super()._barrier()
        self._keys.barriers += 1

    @contextmanager
    def _in_store(self) -> Iterator[None]:
        """A context for calls of MXNet's store that may make room for a key: the driver's own thread has to know of them."""
        driver = None if self._path is None else self._path.driver
        if driver is not None:
            driver.set_calling(True)
        try:
            yield
        finally:
            if driver is not None:
                driver.set_calling(False)

    def _watched(self, what: str) -> ContextManager[None]:
        """A context in which the watchdog counts the time that the caller waits for this."""
        return nullcontext() if self._path is None else self._path.watchdog.blocked(what)

    def _register(self, key: Any, value: Any) -> None:
        self._keys.calls += 1
        for name, arrays in zip(key, value) if isinstance(key, (list, tuple)) else [(key, value)]:
            array = as_list(arrays)[0]
            shape = shape_of(array)
            self._keys.add(name, shape if array.stype == "default" else None, shape)
            if array.grad is not None:
                self._trained.add(name)
            if self._mode is Mode.UNMET and self.rank == 0 and array.stype == "default" and array.context.device_type.startswith("cpu"):
                self._plain.initial[name] = array

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_optimizer`.

        Raises
        ------
        KVStoreError
            this is not an optimizer or cannot be pickled, or gradients are already sliced and it is not known to be exact on
            slices, or already scheduled and its result depends on the order of updates, or it may know parameters by numbers that they
            do not have. Nothing was sent. Or the workers have met, and the servers cannot load it.
        """
        if self._shifted and may_know_numbers(optimizer, 0):
            raise KVStoreError(
                f"{type(optimizer).__name__} may know parameters by their numbers, which are others here: keys were initialised before "
                "wrapping, and more of them after the first push; wrap the store before the first key"
            )
        if self._path is None and not (self._wrapping is not None and self._wrapping.shifts(optimizer)):
            super().set_optimizer(optimizer)
            self._optimizer, self._keys.optimizer_set = pickle.dumps(optimizer) if self._mode is not Mode.PLAIN else None, self._keys.waits
            return
        pickled = pickled_optimizer(optimizer)
        self._names = parameter_names(optimizer)
        if self._path is not None:
            self._path.parameters.known = self._names
        if self._wrapping is not None and (self._wrapping.parameters or self._wrapping.groups) and not slicing_allowed(optimizer):
            raise KVStoreError(
                f"{type(optimizer).__name__} is not known to be exact on slices, and the layout was fixed when the "
                "first gradient was pushed; set the optimizer before the first push"
            )
        if self._path is not None and self._path.layout.halves and self._sums:
            raise KVStoreError(
                "gradients travel in 16 bits, and the servers have no weights that an optimizer could update: set the optimizer before the "
                "first push, or compress='off'"
            )
        if self._mode is Mode.SCHEDULED and order_matters(optimizer):
            raise KVStoreError(
                f"the result of {type(optimizer).__name__} depends on the order in which parameters are updated, and gradients are "
                "scheduled since the first push; set the optimizer before it, or set PROPHET_POLICY=off"
            )
        super().set_optimizer(optimizer if self._wrapping is None else self._wrapping.wrap(pickled, self._group_values()))
        self._optimizer, self._keys.optimizer_set = pickled, self._keys.waits
        raise_if_failed(self._plain, self._told_keys)

    def _group_values(self) -> Dict[int, "np.ndarray[Any, Any]"]:
        """What the members of groups have, by the numbers of the groups, if the servers may have had no optimizer since the first push."""
        if self._path is None or not self._sums:
            return {}
        found = {self._keys.number(key): values for key, values in self._path.parameters.group_values().items()}
        return {number: values for number, values in found.items() if number is not None}

    # -- the first push ------------------------------------------------------------------------------------------------------

    def _meet(self, key: Any, sample: Optional[mx.nd.NDArray] = None) -> None:
        """Before anything is pushed, once: learn whether rank 0 schedules and how, and agree on the layout if it does. Every worker of a
        synchronous store comes here, whatever its own settings are, and blocks until all are here. ``sample`` is missing if this worker's
        own settings schedule nothing."""
        others = "the other workers, which must push their first gradient as well, each through a ScheduledKVStore"
        joined: List[ScheduledPath] = []

        def join(config: Config, alike: bool) -> ScheduledPath:
            self._config = config
            if self._path is None:
                self._path = self._late_path(config)
                waiting.enter_context(self._watched(others))
            joined.append(self._path)
            self._path.join(config, self._plain if alike else None, sample)
            return self._path

        with unseen_raised(joined), deferred_signals(), ExitStack() as waiting:
            for name in as_list(key)[:1]:
                if isinstance(name, (str, int)):
                    self._keys.gradient(name)  # the others have to know of a key that was made before the store was wrapped
            waiting.enter_context(self._watched(others))
            try:
                layout = negotiate(
                    self._plain,
                    self._keys,
                    self._config,
                    self._optimizer,
                    self._compression != 1,
                    self._path is not None,
                    join,
                    self._hints(),
                )
            except Exception as error:
                self._mode, self._refused = Mode.REFUSED, str(error) or type(error).__name__
                raise
            finally:
                self._plain.initial.clear()  # no more pulls of ours
            self._wrapping, self._told_keys, self._sums = layout.wrapping, layout.told_keys, layout.sums
            self._mode = Mode.SCHEDULED if layout.scheduled else Mode.UNSCHEDULED
            path = self._path
            if path is not None and layout.scheduled:
                path.begin(layout, self._plain)
            elif path is not None:
                path.close()
                self._path = None
                let_go(self)

    def _hints(self) -> Hints:
        """What is known of the dense keys. Where some were initialised from arrays that have gradients, as those of Trainer, the others get
        none."""
        frozen = [index for index, key in enumerate(self._keys.shapes) if key not in self._trained] if self._trained else []
        return Hints(self._places(), frozen)

    def _places(self) -> List[int]:
        """The places of the dense keys in the forward order, as far as it is known: by the profile of an earlier job, or else by the names
        of parameters that Trainer has numbered, in the order of sorted texts. Empty if the keys are in that order, as those of Module."""
        dense = list(self._keys.shapes)
        learned = self._path.saved_order() if self._path is not None else {}
        if learned and all(str(key) in learned for key in dense if not self._trained or key in self._trained):
            return [learned.get(str(key), len(learned)) for key in dense]  # running statistics have no gradients, and are in no profile
        names = [self._names.get(key) for key in dense]
        known = [name for name in names if name is not None]
        return natural_places(known) if len(known) == len(names) and self._keys.texts is False else []

    def _late_path(self, config: Config) -> ScheduledPath:
        """The path of a worker whose own settings schedule nothing, under those of rank 0, while the others wait."""
        if is_naive():
            raise KVStoreError(
                f"{worker_name(self.rank)}: {NAIVE} runs every operation inside the call that pushes it, and rank 0 schedules gradients, "
                "which needs another engine on all workers: unset MXNET_ENGINE_TYPE for this worker, or set PROPHET_POLICY=off for rank 0"
            )
        bind()
        path = ScheduledPath(self, config, self._keys)
        path.parameters.compression = self._compression
        path.start()
        attend(self, path)
        return path

    def _meet_unscheduled(self, key: Any) -> Optional[ScheduledPath]:
        """At a push without a path: where this worker's own settings schedule nothing, the workers meet all the same. Returns the path if
        rank 0 schedules."""
        if self._mode is Mode.UNMET:
            self._meet(key)
        self._check_refused()
        if self._path is None and self._plain_iterations is not None:
            first = key[0] if isinstance(key, (list, tuple)) and key else key
            if isinstance(first, (str, int)):  # MXNet refuses what is not
                self._plain_iterations.pushed(first)
        return self._path

    def _check_refused(self) -> None:
        if self._mode is Mode.REFUSED:
            raise KVStoreError(self._refused)

    # -- the rest ------------------------------------------------------------------------------------------------------------

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """As :meth:`mxnet.kvstore.KVStore.set_gradient_compression`; KVStoreError, before anything is sent, for wrong
        parameters, or if the first push has put small gradients into groups."""
        if self._path is not None:
            check_compression(compression_params)
            if self._path.layout.group_of or self._path.layout.halves:
                shared = "small gradients share messages" if self._path.layout.group_of else "gradients travel in 16 bits"
                raise KVStoreError(f"gradient compression cannot be set after the first push, as {shared} by then")
        super().set_gradient_compression(compression_params)
        self._compression = COMPRESSION_FACTOR.get(compression_params.get("type", "none"), 1)
        if self._path is not None:
            self._path.parameters.compression = self._compression

    def close(self) -> None:
        """Stop scheduling: everything held is sent at once, later pushes are not held, and nothing is watched. Called at exit; may
        be called again."""
        if self._path is not None:
            self._path.close()

    def free_at_exit(self) -> None:
        """See :meth:`OwnedStore.free_at_exit`. What the program pushes afterwards, in an exit handler of its own, is refused."""
        self._mode, self._refused = Mode.REFUSED, ENDED
        if self._path is not None:
            self._path.parameters.forget()
        super().free_at_exit()

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
        raise ConfigError(not_allowed(f"{name}={text!r}", "a whole number from 1"))
    return number
