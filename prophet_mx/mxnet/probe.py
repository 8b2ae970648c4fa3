"""``python -m prophet_mx.mxnet.probe``: what MXNet says of itself, and whether the compiled core knows it, as a line of JSON.

``prophet-mx doctor`` runs it in a process of its own: ``import mxnet`` can fail, abort, or never return (``DMLC_ROLE``).
"""

import json
from typing import Any, Dict


def probe() -> Dict[str, Any]:
    """The versions, what this MXNet was built with, and the errors in words."""
    found: Dict[str, Any] = {}
    try:
        import numpy

        found["numpy"] = numpy.__version__
        import mxnet

        found["mxnet"] = mxnet.__version__
        features = mxnet.runtime.Features()
        found["dist"] = features.is_enabled("DIST_KVSTORE")
        found["cuda"] = features.is_enabled("CUDA")
        found["gpus"] = mxnet.context.num_gpus() if found["cuda"] else 0
    except Exception as error:
        found["mxnet_error"] = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        return found
    try:
        from .api import bind

        bind()
    except Exception as error:
        found["core_error"] = str(error)
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(probe()))
