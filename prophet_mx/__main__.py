"""``python -m prophet_mx``: the same as the command ``prophet-mx``."""

import sys

from .cli.main import main

sys.exit(main())
