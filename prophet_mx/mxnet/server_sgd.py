"""How a server updates arrays by SGD: with one call of MXNet's operator for several, or compiled, if that gives the same bits.

Servers get the text of this file with that of slice_optimizer.py. It needs nothing but MXNet.
"""

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from mxnet.base import _LIB, NDArrayHandle, OpHandle, c_str, c_str_array, check_call
from mxnet.ndarray import NDArray, multi_sgd_mom_update, multi_sgd_update
from mxnet.ndarray import array as new_array

from .server_masters import address_of

try:  # a server may have another version of prophet_mx, or none
    from prophet_mx._core import sgd as compiled_sgd
except ImportError:
    compiled_sgd = None  # type: ignore[assignment]

MOST = 45  # arrays that one call of MXNet's operators for several arrays takes


def is_builtin(optimizer: Any) -> bool:
    """Whether this is an optimizer of MXNet's own: a subclass may do anything."""
    return type(optimizer).__module__ == "mxnet.optimizer.optimizer"


def _multipliers(optimizer: Any, number: int) -> Tuple[float, float]:
    """Those of learning rate and weight decay, as the optimizer looks them up. They never change on a server."""
    name = optimizer.idx2name.get(number)
    rate, decay = (table[number] if number in table else table.get(name, 1.0) for table in (optimizer.lr_mult, optimizer.wd_mult))
    return rate, decay


def _any_number_of_calls(schedule: Any) -> bool:
    """Whether a schedule gives the same rate however often it is asked. One of the user's may count that."""
    return schedule is None or type(schedule).__module__ == "mxnet.lr_scheduler"


Coefficients = Tuple[float, float, float]  # by which one update multiplies a weight, a gradient, and the velocity
_known: Dict[Tuple[float, ...], Optional[Coefficients]] = {}  # by the settings of an update
MOST_KNOWN = 1000


def coefficients(rate: float, decay: float, rescale: float, momentum: float) -> Optional[Coefficients]:
    """Those of the compiled update for these settings; None if it would not have the bits of MXNet's operator.

    MXNet gets settings as texts, and rounds in its own way. So its operator is asked, with arrays of a few elements. The first three tell
    the coefficients. The others tell whether all the rest is the same, too.
    """
    if compiled_sgd is None:
        return None
    settings = (rate, decay, rescale, momentum)
    if settings not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[settings] = _found(*settings)
    return _known[settings]


def _found(rate: float, decay: float, rescale: float, momentum: float) -> Optional[Coefficients]:
    values = [
        np.concatenate([row, np.sin(np.arange(64) * (1.5 + place)) * 10.0 ** (np.arange(64) % 9 - 6)])
        for place, row in enumerate(np.eye(3))
    ]
    weight, gradient, velocity = (one.astype(np.float32) for one in values)
    texts = {"lrs": [rate], "wds": [decay], "num_weights": 1, "rescale_grad": rescale}
    theirs = [new_array(one) for one in (weight, gradient, velocity)]
    multi_sgd_mom_update(*theirs, out=theirs[0], momentum=momentum, **texts)
    told = theirs[2].asnumpy()[:3]
    found = (float(0 - told[0]), float(0 - told[1]), float(told[2]))
    if momentum <= 0:
        theirs = [new_array(weight), theirs[1], new_array(velocity)]
        multi_sgd_update(*theirs[:2], out=theirs[0], **texts)
    compiled_sgd(weight.ctypes.data, velocity.ctypes.data if momentum > 0 else 0, gradient.ctypes.data, weight.size, *found)
    same = weight.tobytes() == theirs[0].asnumpy().tobytes() and velocity.tobytes() == theirs[2].asnumpy().tobytes()
    return found if same else None


class SgdCall:
    """SGD, with the settings that ``SGD.update_multi_precision`` gives to MXNet's operator, but without making all of them anew each time.
    Few functions call others here: Python's stack grows in pages, and a server may get one and give it back at each call.

    It is compiled where that has the same bits, and takes a fifth of the time. Such an update waits for its arrays, and is done when the
    call returns. ``numbers`` and ``states`` are those of the arrays that are updated, at most ``MOST``.
    """

    def __init__(self, optimizer: Any, numbers: Sequence[int], states: Sequence[Any], half: bool) -> None:
        self._optimizer, self._states = optimizer, states
        self._multipliers = [(number, *_multipliers(optimizer, number)) for number in numbers]
        self._asks = not _any_number_of_calls(optimizer.lr_scheduler)
        self._settings: Any = None
        self._coefficients: List[Optional[Coefficients]] = []
        self._compiled = compiled_sgd is not None and not half and not optimizer.clip_gradient
        self._memory: List[Any] = [None] * len(numbers)  # of each array weight and gradient, by handle and address, and elements
        self._velocities = [0] * len(numbers)
        own = [[array for array in (state if half else (state,)) if array is not None] for state in states]
        self._stride = 2 + len(own[0])
        self._inputs = (NDArrayHandle * (len(own) * self._stride))()
        self._outputs = (NDArrayHandle * len(own))()
        for place, arrays in enumerate(own):
            for behind, array in enumerate(arrays, place * self._stride + 2):
                self._inputs[behind] = array.handle
        for place, state in enumerate(states if self._compiled else ()):
            if isinstance(state, NDArray):
                check_call(_LIB.MXNDArrayWaitToRead(state.handle))
                self._velocities[place] = address_of(state)
        operator = OpHandle()
        name = f"multi_{'mp_' if half else ''}sgd_{'mom_' if optimizer.momentum > 0 else ''}update"
        check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(operator)))
        written = ctypes.cast(self._outputs, ctypes.POINTER(NDArrayHandle))
        outputs = (ctypes.byref(ctypes.c_int(len(own))), ctypes.byref(written))
        self._arrays = (operator, ctypes.c_int(len(self._inputs)), self._inputs, *outputs)
        self._types = ctypes.byref(ctypes.POINTER(ctypes.c_int)())

    @staticmethod
    def knows(optimizer: Any) -> bool:
        known = type(optimizer).__name__ in ("SGD", "ccSGD") and is_builtin(optimizer)
        return known and optimizer.momentum >= 0 and not optimizer.param_dict

    def put(self, place: int, weight: Any, grad: Any) -> None:
        """Which arrays are updated. The caller keeps them until they are updated."""
        self._inputs[place * self._stride] = self._outputs[place] = weight.handle
        self._inputs[place * self._stride + 1] = grad.handle
        if self._compiled:
            known = self._memory[place]
            if known is None:
                self._compiled = weight.dtype == grad.dtype == np.float32
            elements = weight.size if known is None else known[-1]
            self._memory[place] = weight.handle, grad.handle, address_of(weight), address_of(grad), elements

    def __call__(self, counts: Sequence[int]) -> None:
        """Update the arrays, which have had so many updates."""
        optimizer, known = self._optimizer, self._optimizer._index_update_count
        rates, decays, rate = [], [], None
        for (number, rate_multiplier, decay_multiplier), count in zip(self._multipliers, counts):
            known[number] = count + 1
            if count >= optimizer.num_update:
                optimizer.num_update, rate = count + 1, None
            if rate is None or self._asks:
                rate = optimizer.learning_rate
            rates.append(rate * rate_multiplier)
            decays.append(optimizer.wd * decay_multiplier)
        settings = (rates, decays, optimizer.rescale_grad, optimizer.momentum, optimizer.clip_gradient)
        if settings != self._settings:
            self._settings = settings
            if self._compiled:
                self._coefficients = [coefficients(*pair, optimizer.rescale_grad, optimizer.momentum) for pair in zip(rates, decays)]
                self._compiled = None not in self._coefficients
            if not self._compiled:
                texts = {"lrs": rates, "wds": decays, "num_weights": len(rates), "rescale_grad": optimizer.rescale_grad}
                if optimizer.momentum > 0:
                    texts["momentum"] = optimizer.momentum
                if optimizer.clip_gradient:
                    texts["clip_gradient"] = optimizer.clip_gradient
                values = [str(value) for value in texts.values()]
                self._arguments = (*self._arrays, ctypes.c_int(len(texts)), c_str_array(list(texts)), c_str_array(values), self._types)
        if self._compiled:
            for (written, read, weight, gradient, elements), velocity, factors in zip(self._memory, self._velocities, self._coefficients):
                check_call(_LIB.MXNDArrayWaitToRead(read))
                check_call(_LIB.MXNDArrayWaitToWrite(written))
                compiled_sgd(weight, velocity, gradient, elements, *factors)  # type: ignore[misc]
            return
        code = _LIB.MXImperativeInvokeEx(*self._arguments)
        if code:
            check_call(code)
