"""A link that is cut and one that is slow."""

import subprocess
import time

import pytest

from benchmarks.testbed.network import Shape, Testbed
from support.faults import LATE, LOAD, QUIET, SHORT, WARN, FaultJob, told

pytestmark = pytest.mark.alone


def test_a_cut_link_is_told_from_a_slow_one_and_training_goes_on_when_it_is_back():
    with Testbed(workers=2, servers=1, rate=125e6) as bed:
        nodes = {"scheduler": "s0", "server 0": "s0", "worker 0": "w0", "worker 1": "w1"}

        def spawn(label, command, env, **options):
            env = {**env, "DMLC_PS_ROOT_URI": bed.nodes["s0"], "DMLC_NODE_HOST": bed.nodes[nodes[label]]}
            return bed.popen(nodes[label], command, env=env, **options)

        def link(state):
            subprocess.run(["ip", "-n", bed.namespace("hub"), "link", "set", "s0", state], check=True)

        with FaultJob(2, 1, {**SHORT, "PROPHET_UNIT": "40000", "LARGEST": "300000"}, spawn) as job:
            job.runs(10, 40)
            # For 1.2 MB of each of two workers. The queue has room for a whole iteration: it is slow, but nothing is lost.
            job.hold()  # what is on its way while the queue is made anew would be lost
            bed.set_rate(1e6, Shape.for_rate(1e6, queue_time=3))
            job.release()
            job.runs(1, 30)
            began = time.monotonic()
            job.runs(2, 60)
            assert (time.monotonic() - began) / 2 > WARN, job.logs()
            assert not any(told(job.output(label), QUIET, WARN) for label in job.workers), job.logs()
            bed.set_rate(125e6)
            job.hold()
            link("down")
            job.release()  # what is sent from now on gets nowhere
            cut = time.monotonic()
            for label in job.workers:
                job.says(label, "are resent and not acknowledged: the network to the server is cut", WARN + LATE + LOAD, cut)
                assert told(job.output(label), QUIET, WARN) == 1, job.logs()
            link("up")
            job.runs(10, 30)
            for label in job.workers:
                job.says(label, "continues after", LATE + LOAD)
            job.finish()
            for label in job.workers:
                assert job.output(label).count("continues after") == 1, job.logs()
