"""The flat buffers: memory in which each unit, and each parameter's gradient, is one contiguous range; and who else uses that memory."""

import sys
from typing import List, Sequence, Tuple

import torch

from ..planning.units import MergedUnit

ALIGNED = 64  # bytes: kernels of accelerators read four numbers at once, which have up to 16 bytes each


def lay_out(units: Sequence[MergedUnit], params: List[torch.Tensor]) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """Flat buffers, one for each kind of ``units``: a tensor per unit, and a view per parameter.

    Slices of one kind lie one after the other in the order of the list, so that each unit and each parameter is a contiguous range. Their
    parameters have one dtype and one device. A view has the shape and the strides of its parameter, so that the elements of both lie in the
    same order.

    On accelerators each gradient begins at a multiple of ``ALIGNED`` bytes, as one with memory of its own does. Where memory is not
    aligned, kernels add up a norm in another order, and its last bits would not be those of DistributedDataParallel. A unit also carries
    the gaps within it, which are 0.
    """
    first = {unit.kind: params[unit.slices[0].gradient] for unit in units}
    step = {kind: 1 if param.device.type == "cpu" else ALIGNED // param.element_size() for kind, param in first.items()}
    used = dict.fromkeys(first, 0)
    spans, offsets = [], {}
    for unit in units:
        begins = []
        for index, start, stop in unit.slices:
            if start == 0:
                offsets[index] = used[unit.kind] = -(-used[unit.kind] // step[unit.kind]) * step[unit.kind]
            begins.append(used[unit.kind])
            used[unit.kind] += stop - start
        spans.append((begins[0], used[unit.kind] - begins[0]))
    flats = {kind: torch.zeros(used[kind], dtype=param.dtype, device=param.device) for kind, param in first.items()}
    ranges = [flats[unit.kind].narrow(0, *span) for unit, span in zip(units, spans)]
    views = list(params)
    for unit in units:
        for index, start, _ in unit.slices:
            if start == 0:
                views[index] = _shaped(flats[unit.kind], offsets[index], params[index])
    return ranges, views


def lies_otherwise(param: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether its elements lie in another order in memory than with these strides, as after ``model.to(memory_format=...)``. With the
    guards off."""
    now = param.stride()
    return now != strides and any(size > 1 and a != b for size, a, b in zip(param.shape, now, strides))


def _shaped(flat: torch.Tensor, offset: int, param: torch.Tensor) -> torch.Tensor:
    """The part of ``flat`` from ``offset`` on in the shape of a parameter, and in its strides where they leave no holes."""
    dense = torch.empty_like(param, memory_format=torch.preserve_format, requires_grad=False)
    return view_like(flat, dense, offset)


def view_like(flat: torch.Tensor, shape: torch.Tensor, offset: int) -> torch.Tensor:
    """A tensor on the memory of ``flat``, in the shape and strides of another. Not a view to autograd, as its memory may change."""
    return flat.new_empty(0).set_(flat.untyped_storage(), offset, shape.shape, shape.stride())  # type: ignore[call-overload,no-any-return]


def _references(holder: List[torch.Tensor]) -> int:
    return sys.getrefcount(holder[0])


def _memory_references(tensor: torch.Tensor) -> int:
    count = getattr(torch._C, "_storage_Use_Count", None)
    return sys.maxsize if count is None else int(count(tensor.untyped_storage()._cdata))


ALONE = _references([torch.empty(1)])  # ``sys.getrefcount`` of what one list or attribute refers to
_MEMORY_ALONE = min(_memory_references(torch.empty(1)), sys.maxsize - 1)


def held_elsewhere(holder: List[torch.Tensor], was_there: bool) -> bool:
    """Whether anything but this list refers to the one tensor in it, or, if it ``was_there`` before backward, to its memory.

    Called with the guards off. The memory of a gradient that backward has just made has references of PyTorch's own.
    """
    return _references(holder) > ALONE or was_there and _memory_references(holder[0]) > _MEMORY_ALONE
