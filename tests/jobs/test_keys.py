"""Keys so large that MXNet cannot place them, in a job."""

from support.cluster import run_cluster

JOB = """
    import mxnet as mx
    from prophet_mx import KVStoreError, ScheduledKVStore

    kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)

    def refused(key):
        one = mx.nd.ones((3,))
        try:
            kv.init(key, [one] * len(key) if isinstance(key, list) else one)
        except KVStoreError as error:
            return isinstance(error, mx.MXNetError), str(error)
        raise AssertionError(f"{key} was accepted")

    print("refused", refused(215331), refused([7, 215333]))
    print("own", refused(2_000_000_000)[1])
    kv.init(8, mx.nd.ones((3, 2)).tostype("row_sparse"))
    keys = [3, 215330, 430661, 646000]      # two of them on the first server by luck, one where the product overflows twice
    values = [mx.nd.zeros((3000,)) for _ in keys]
    kv.init(keys, values)
    kv.init(646001, mx.nd.zeros((2_000_000,)))  # spread over the servers: nothing is multiplied
    for step in range(3):
        for key, value in zip(keys, values):
            kv.pushpull(key, mx.nd.ones((3000,)) * (1 + kv.rank + step), out=value)
        mx.nd.waitall()
        assert all((value == 3 + 2 * step).asnumpy().all() for value in values), [value[0].asscalar() for value in values]
    own = [key for key in kv._keys._numbers if kv._keys.is_own(key)]
    assert len(own) > 8, own
    print("taken", refused(own[1])[1])
    kv.init(5, mx.nd.ones((3,)))
    print("units", kv.stats()["units"])
"""


def test_keys_above_the_bound_train_where_mxnet_can_place_them_and_are_refused_where_it_cannot():
    job = run_cluster(JOB, 2, 2, env={"PROPHET_BANDWIDTH": "1Gbit"}, timeout=60)
    for worker in job.workers:
        assert worker.output.count("(True, ") == 2 and "MXNet cannot place number 215333 on 2 servers" in worker.output, job.logs()
        assert "is taken: prophet_mx makes it" in worker.output and "units 36" in worker.output, job.logs()
        assert "own key 2000000000 is taken" in worker.output, job.logs()
