"""Every error that prophet_mx raises on purpose derives from :class:`ProphetError`."""


class ProphetError(Exception):
    """Base class of all errors of prophet_mx."""


class MXNetMissingError(ProphetError, ImportError):
    """MXNet is not installed, and was needed; the message names the extra that installs it."""


class MissingPackageError(ProphetError, ImportError):
    """A package that is not always needed is not installed; the message names the extra that installs it."""


class UnsupportedMXNetError(ProphetError):
    """The installed MXNet is one whose engine layout is not known."""


class ConfigError(ProphetError, ValueError):
    """A setting has a wrong value; the message names the setting, the value and what is allowed."""


class KVStoreError(ProphetError, ValueError):
    """A call to :class:`~prophet_mx.ScheduledKVStore` that cannot be carried out; nothing was sent.

    Where MXNet raises for the same call, it is also an instance of what MXNet raises, such as ``mx.MXNetError``.
    """


class CollectiveError(ProphetError, RuntimeError):
    """Gradients cannot be reduced: another rank has ended or did not come, or a gradient is missing."""


class ProfileError(ProphetError, ValueError):
    """A profile that is empty, truncated or inconsistent."""


class TraceError(ProphetError, ValueError):
    """A trace that is damaged, is not one of the timeline's, or shows too little."""


class LaunchError(ProphetError):
    """A job could not be started."""


class SimulationError(ProphetError):
    """A simulated job came to a standstill: a fault of the scheduler that was simulated."""
