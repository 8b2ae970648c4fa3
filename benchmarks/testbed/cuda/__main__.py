"""Builds the emulated CUDA runtime: see the package."""

import sys

from . import EmulationError, build

if __name__ == "__main__":
    try:
        print(build())
    except EmulationError as error:
        sys.exit(str(error))
