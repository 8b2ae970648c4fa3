"""The name under which launchers start :mod:`prophet_mx.launcher.remote` on other hosts, whose prophet_mx may be of another version."""

import sys

from .launcher.remote import main

if __name__ == "__main__":
    sys.exit(main())
