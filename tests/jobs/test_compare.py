"""``prophet-mx compare`` on real jobs."""

import re
import sys
from textwrap import dedent

from support.commands import prophet_mx

JOB = """
    import sys, time
    import mxnet as mx

    kv = mx.kv.create("dist_sync")
    value = mx.nd.ones((9,))
    kv.init("a", value)
    for step in range(int(sys.argv[1])):
        kv.pushpull("a", value, out=value)
        mx.nd.waitall()
        time.sleep(0.002)
    """


def test_a_job_runs_in_turns_and_the_verdict_comes_last(tmp_path):
    (tmp_path / "train.py").write_text(dedent(JOB))
    command = ["-n", "1", "--schedule", "--turns", "2", "--iterations", "20", "--warmup", "10", "--", sys.executable, tmp_path / "train.py"]
    done = prophet_mx("compare", "--quiet", *command, "100000", expect=0)
    turns = re.findall(r"^\[launch\] turn (\d) of 2, policy (\w+): [\d.]+ ms per iteration$", done.stdout, re.MULTILINE)
    assert turns == [("1", "off"), ("1", "prophet"), ("2", "prophet"), ("2", "off")]
    assert re.match(
        r"(No difference can be seen|No difference that matters|Scheduling makes this job [\d.]+ times as \w+ \(.*\)): an ",
        done.stdout.splitlines()[-1],
    )

    done = prophet_mx("compare", *command, "15")  # shorter than the warm-up
    assert done.returncode == 1 and "the job with plain dist_sync ended after about 11 iterations, but times" in done.stderr
    assert "[worker 0] " in done.stdout
