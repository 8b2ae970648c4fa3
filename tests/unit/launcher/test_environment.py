"""The hook that schedules scripts which know nothing of prophet_mx."""

import os

from prophet_mx.launcher.environment import with_hook
from prophet_mx.schedule import FOLDER


def test_the_hook_is_first_on_the_path_and_there_once():
    once = with_hook({"A": "b", "PYTHONPATH": os.pathsep.join(["x", "", "y"])})
    assert once == {"A": "b", "PYTHONPATH": os.pathsep.join([FOLDER, "x", "y"])} == with_hook(once)
