"""Every error that prophet_mx raises on purpose derives from :class:`ProphetError`."""


class ProphetError(Exception):
    """Base class of all errors of prophet_mx."""


class MXNetMissingError(ProphetError, ImportError):
    """MXNet is needed and is not installed; the message says how to install it."""


class MissingPackageError(ProphetError, ImportError):
    """An optional package is needed and is not installed; the message says how to install it."""


class UnsupportedMXNetError(ProphetError):
    """The engine layout of the installed MXNet is not known."""


class ConfigError(ProphetError, ValueError):
    """A setting has a wrong value; the message names the setting, the value and what is allowed."""


class KVStoreError(ProphetError, ValueError):
    """A call to :class:`~prophet_mx.ScheduledKVStore` cannot be carried out; nothing was sent.

    If MXNet raises an error for the same call, this one is also an instance of that class, such as ``mx.MXNetError``.
    """


class CollectiveError(ProphetError, RuntimeError):
    """Gradients cannot be reduced: another rank has ended or does not take part, or a gradient is missing."""


class ProfileError(ProphetError, ValueError):
    """A profile is empty, truncated or inconsistent."""


class TraceError(ProphetError, ValueError):
    """A trace is damaged, was not written by prophet_mx, or is too short."""


class LaunchError(ProphetError):
    """A job could not be started."""


class SimulationError(ProphetError):
    """A simulated job came to a standstill: a fault in the scheduler."""
