"""``python -m prophet_mx.torch.probe``: what PyTorch says of itself, and whether the adapter can be imported, as a line of JSON.

``prophet-mx doctor`` runs it in a process of its own: ``import torch`` takes seconds, and can fail or abort.
"""

import json
from typing import Any, Dict

import torch
import torch.distributed as dist


def probe() -> Dict[str, Any]:
    """The version, the backends of this build (``nccl``: its version, '' without it), and the GPUs that it sees."""
    there = dist.is_available()
    nccl = there and dist.is_nccl_available()
    return {
        "torch": torch.__version__,
        "gloo": there and dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else "",  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
        "cuda": torch.version.cuda is not None,
        "gpus": torch.cuda.device_count(),
    }


if __name__ == "__main__":
    print("\n" + json.dumps(probe()))
