"""Settings of MXNet's engine, which reads them when MXNet is imported: import this module first.

On a CPU the engine runs operators and a store's messages in the same threads, one by default, so that messages wait for operators. A worker
of a distributed job gets two, unless the variable is set. With GPUs operators run elsewhere, and this changes nothing.
"""

import os

if os.environ.get("DMLC_ROLE") == "worker":
    os.environ.setdefault("MXNET_CPU_WORKER_NTHREADS", "2")
