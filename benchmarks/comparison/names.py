"""How cells and methods are called in tables."""

import re
from typing import List

from prophet_mx.quantities import format_rate

from .cells import Cell

MODELS = {
    "resnet18_v1": "ResNet-18",
    "resnet50_v1": "ResNet-50",
    "resnet152_v1": "ResNet-152",
    "inceptionv3": "Inception-v3",
    "vgg16": "VGG-16",
    "mobilenet1.0": "MobileNet",
    "mobilenetv2_1.0": "MobileNet-v2",
}
STEPS = ",ready=steps"


def model(cell: str) -> str:
    """The name of a cell's model."""
    profile = cell.split(",", maxsplit=1)[0]
    return MODELS.get(profile, profile)


def title(text: str, kind: str = "") -> str:
    """A cell in words: ``ResNet-50, 150 ms, rho 1``; of workers, servers and rate only what is not 2, 1 and 1 Gbit/s."""
    ranks = "ranks=" in text
    cell = Cell.parse(text.replace(STEPS, "").replace("ranks=", "workers="))
    parts: List[str] = [model(text)]
    if cell.compute is not None:
        parts.append(f"{cell.compute * 1e3:g} ms")
    parts += [f"{name} {value:g}" for name, value in (("rho", cell.rho), ("scale", cell.scale)) if value is not None]
    if ranks and cell.workers != 2:
        parts.append(f"{cell.workers} ranks")
    if not ranks and (cell.workers, cell.servers) != (2, 1):
        parts.append(f"{cell.workers} workers, {cell.servers} server" + "s" * (cell.servers > 1))
    if cell.rate != Cell.rate:
        parts.append(format_rate(cell.rate))
    if cell.slow:
        parts.append(f"one {'rank' if ranks else 'worker'} {cell.slow - 1:.0%} slower")
    if cell.jitter:
        parts.append(f"compute times vary by {cell.jitter:.0%}")
    if cell.copy:
        parts.append(f"copies at {cell.copy / 1e9:g} GB/s")
    if STEPS in text:
        parts.append("gradients in steps")
    return ", ".join(parts + {"cpu": ["all on the processor"]}.get(kind, []))


def family(method: str) -> str:
    """A method without its settings: of DDP without its buckets."""
    return re.sub(r"-\d+[KM]B$", "", method.split(":", maxsplit=1)[0])
