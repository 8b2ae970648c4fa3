# See tests/support/cluster.py.
raise ImportError("the processes of test jobs do without it")
