"""The profiles that ship with prophet_mx: models of MXNet's zoo and two transformers, to predict with before any job of one's own has run.

``python -m benchmarks.profiles standard`` computes them from the models' layers. Sizes are those of float32; compute times are shares of
one second, to be scaled to what an iteration takes on the machines of the user.
"""

import os
import re
from typing import Tuple

from ..errors import ProfileError, nearest, not_allowed
from .gradient_profile import GradientProfile

FOLDER = os.path.join(os.path.dirname(__file__), "models")


def model_names() -> Tuple[str, ...]:
    """The models whose profiles ship, by name."""
    return tuple(sorted(name[: -len(".json")] for name in os.listdir(FOLDER) if name.endswith(".json")))


def model_profile(name: str) -> GradientProfile:
    """The profile of a model. Case, ``-`` and ``_`` do not matter, and the beginning of a name will do: ``ResNet-50`` is resnet50_v1.

    Raises ProfileError if no model's name begins so, or several do.

    >>> model_profile("ResNet-50").name, model_profile("vgg16").total_bytes
    ('resnet50_v1', 553430176)
    """
    names, word = model_names(), _letters(name)
    found = [model for model in names if _letters(model).startswith(word)] if word else []
    if len(found) != 1:
        beginnings = {_letters(model)[: len(word)]: model for model in names}
        near = "" if found else nearest(word, beginnings)
        raise ProfileError(
            not_allowed(f"model {name!r}", ", ".join(found or names)) + (f"; did you mean {beginnings[near]!r}?" if near else "")
        )
    return GradientProfile.load(os.path.join(FOLDER, found[0] + ".json"))


def _letters(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())
