"""Exit codes of the commands that use the testbed."""

import sys

from prophet_mx.errors import ProphetError

from .network import NeedsRoot

EXIT_FAILED, EXIT_NEEDS_ROOT = 1, 3


def exit_code(error: ProphetError) -> int:
    """Print what went wrong; the code with which to end: 3 without the privileges that namespaces need, else 1."""
    print(f"error: {error}", file=sys.stderr)
    return EXIT_NEEDS_ROOT if isinstance(error, NeedsRoot) else EXIT_FAILED
