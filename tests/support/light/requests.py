# See tests/support/cluster.py. MXNet imports it in every process, to download files that no test downloads.
