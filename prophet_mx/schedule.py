"""The name under which batch scripts know the folder of the hook: :mod:`prophet_mx.launcher.environment`."""

from .launcher.environment import FOLDER

__all__ = ["FOLDER"]
