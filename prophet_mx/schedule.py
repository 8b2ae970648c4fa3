"""The name under which batch scripts know the folder of the hook: :mod:`prophet_mx.launcher.hook`."""

from .launcher.hook import FOLDER

__all__ = ["FOLDER"]
