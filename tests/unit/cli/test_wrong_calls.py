"""Wrong calls, as somebody new to the commands makes them, and what the commands answer: one line on stderr that names the command, and
exit code 2."""

import re
import shlex
from dataclasses import replace
from importlib import import_module
from textwrap import dedent

import pytest

from prophet_mx.policies import POLICIES
from support.commands import cli
from support.profiles import RESNET18, recorded
from support.traces import made, written

# A call, and below it, indented, what is answered. After an error in the arguments, ... stands for the hint to the command's own --help.
CALLS = """
train
    prophet-mx: error: no command 'train'; commands: doctor, predict, launch, compare, report, simulate ...
predcit --model vgg16
    prophet-mx: error: no command 'predcit'; did you mean 'predict'? ...
--verson
    prophet-mx: error: unknown option '--verson'; did you mean '--version'? ...
predict --bandwidth 10Gbit
    prophet-mx predict: error: one of the arguments --model --profile is required ...
predict --model vgg16 --compute 250ms
    prophet-mx predict: error: the following arguments are required: --bandwidth ...
predict --model vgg16 --bandwidth 10Gbit
    prophet-mx predict: error: --model vgg16 needs --compute, the compute time of its iteration on your machines, such as 250ms
predict --model gpt --compute 250ms --bandwidth 10Gbit
    prophet-mx predict: error: argument --model: model 'gpt' is not allowed; allowed: bert_base, densenet121, inceptionv3, mobilenetv2_1.0,
    resnet152_v1, resnet18_v1, resnet50_v1, transformer_base, vgg16, vgg19 ...
predict --model resent50 --compute 250ms --bandwidth 10Gbit
    prophet-mx predict: error: argument --model: model 'resent50' is not allowed; allowed: bert_base, densenet121, inceptionv3,
    mobilenetv2_1.0, resnet152_v1, resnet18_v1, resnet50_v1, transformer_base, vgg16, vgg19; did you mean 'resnet50_v1'? ...
predict --model resnet --compute 250ms --bandwidth 10Gbit
    prophet-mx predict: error: argument --model: model 'resnet' is not allowed; allowed: resnet152_v1, resnet18_v1, resnet50_v1 ...
predict --model vgg16 --profile job.json --compute 250ms --bandwidth 10Gbit
    prophet-mx predict: error: argument --profile: not allowed with argument --model ...
predict --model vgg16 --compute 250 --bandwidth 10Gbit
    prophet-mx predict: error: argument --compute: '250' is not allowed; allowed: a time with its unit, such as 250ms or 250s ...
predict --model vgg16 --compute 250 ms --bandwidth 10Gbit
    prophet-mx predict: error: argument --compute: '250' is not allowed; allowed: a time with its unit, such as 250ms or 250s ...
predict --model vgg16 --compute 250ms --bandwidth 10 Gbit
    prophet-mx predict: error: argument --bandwidth: '10' is not allowed; allowed: a rate from 1 Mbit/s to 80 Tbit/s such as 10Gbit,
    1.25GB/s or 1.25e9 (bytes/s); b is bits, B is bytes ...
predict vgg16 --compute 250ms --model vgg16 --bandwidth 10Gbit
    prophet-mx predict: error: unexpected argument 'vgg16' ...
predict --model vgg16 --compute 0 --bandwidth 10Gbit
    prophet-mx predict: error: argument --compute: '0' is not allowed; allowed: a time in us, ms or s from 0.001us to 1e6s, such as
    300ms ...
predict --model vgg16 --compute 5min --bandwidth 10Gbit
    prophet-mx predict: error: argument --compute: '5min' is not allowed; allowed: a time in us, ms or s from 0.001us to 1e6s, such as
    300ms ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbits
    prophet-mx predict: error: argument --bandwidth: '10Gbits' is not allowed; allowed: a rate from 1 Mbit/s to 80 Tbit/s such as 10Gbit,
    1.25GB/s or 1.25e9 (bytes/s); b is bits, B is bytes ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit,
    prophet-mx predict: error: argument --bandwidth: '' is not allowed; allowed: a rate from 1 Mbit/s to 80 Tbit/s such as 10Gbit,
    1.25GB/s or 1.25e9 (bytes/s); b is bits, B is bytes ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --wokers 8
    prophet-mx predict: error: unknown option '--wokers'; did you mean '--workers'? ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --workers 8.5
    prophet-mx predict: error: argument --workers: '8.5' is not allowed; allowed: a whole number from 1 to 1024, or to 100000
    with predict --all-reduce ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --workers 2,1025
    prophet-mx predict: error: --workers 1025 is not allowed; allowed: a whole number from 1 to 1024, or to 100000 with predict --all-reduce
simulate --model vgg16 --compute 250ms --bandwidth 10Gbit --servers 2000
    prophet-mx simulate: error: argument --servers: '2000' is not allowed; allowed: a whole number from 1 to 1024 ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --servers 0
    prophet-mx predict: error: argument --servers: '0' is not allowed; allowed: a whole number from 1 to 1024 ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --policy p3
    prophet-mx predict: error: argument --policy: 'p3' is not allowed; allowed: plain, POLICIES ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --policy profet
    prophet-mx predict: error: argument --policy: 'profet' is not allowed; allowed: plain, POLICIES; did you mean 'prophet'? ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --costs none.json
    prophet-mx predict: error: --costs 'none.json' cannot be read: No such file or directory
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --costs three.json
    prophet-mx predict: error: --costs 'three.json' is not allowed; allowed: a JSON object of rtt, message_bytes, message_seconds,
    server_message_seconds, server_byte_seconds, jitter, straggler, copy_rate, copy_chunk
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --ports 64Kbit
    prophet-mx predict: error: argument --ports: '64Kbit' is not allowed; allowed: a size from 1500 bytes to 10 TB such as 64KB ...
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --hosts drop
    prophet-mx predict: error: --hosts is not allowed without --ports; allowed: --ports
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --ports 64KB
    prophet-mx predict: error: --ports is not allowed with --all-reduce; allowed: the options of the job, --bandwidth, --workers,
    --startup
predict --model vgg16 --compute 250ms --bandwidth 10Gbit --csv no/such/folder/out.csv
    prophet-mx predict: error: argument --csv: 'no/such/folder/out.csv' is not allowed; allowed: a file in a folder that exists ...
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --servers 2
    prophet-mx predict: error: --servers is not allowed with --all-reduce; allowed: the options of the job, --bandwidth, --workers,
    --startup
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --seed 0
    prophet-mx predict: error: --seed is not allowed with --all-reduce; allowed: the options of the job, --bandwidth, --workers,
    --startup
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --iterations 20
    prophet-mx predict: error: --iterations is not allowed with --all-reduce; allowed: the options of the job, --bandwidth, --workers,
    --startup
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --workers 1
    prophet-mx predict: error: --workers 1 is not allowed with --all-reduce; allowed: a whole number of ranks from 2
predict --model bert --compute 250ms --bandwidth 10Gbit --all-reduce --startup 800
    prophet-mx predict: error: argument --startup: '800' is not allowed; allowed: a time with its unit, such as 800us or 800ms ...
predict --model bert --compute 250ms --bandwidth 10Gbit --startup 800us
    prophet-mx predict: error: --startup is not allowed without --all-reduce; allowed: --message-time, --server-time
predict --profile none.json --bandwidth 10Gbit
    prophet-mx predict: error: cannot read the profile 'none.json': No such file or directory
predict --profile vgg16 --bandwidth 10Gbit
    prophet-mx predict: error: --profile vgg16: there is no such file; use --model vgg16 for the built-in profile
predict --profile ResNet-50 --bandwidth 10Gbit
    prophet-mx predict: error: --profile ResNet-50: there is no such file; use --model resnet50_v1 for the built-in profile
predict --profile notes.txt --bandwidth 10Gbit
    prophet-mx predict: error: notes.txt: not a complete JSON text: Expecting value: line 1 column 1 (char 0)
predict --profile trace.json --bandwidth 10Gbit
    prophet-mx predict: error: trace.json: not a profile of this version: its format is None, not 'prophet_mx profile 1'
predict --profile few.json --bandwidth 10Gbit
    prophet-mx predict: error: profile 'resnet18_v1' has no compute times, and with 2 step(s) they cannot be estimated; allowed: from 5
    steps on, or with --compute, the time of an iteration without communication: PROPHET_LOG_EVERY shows about that for one worker and one
    server on one machine
predict --profile job.json --bandwidth 10Gbit --compute 1ms
    prophet-mx predict: error: --compute 1ms is not allowed; allowed: more than the 162.614ms from the first to the last step of the
    profile
simulate job.json --bandwidth 10Gbit
    prophet-mx simulate: error: one of the arguments --model --profile is required ...
simulate --bandwidth --profile job.json
    prophet-mx simulate: error: argument --bandwidth: expected one argument ...
simulate --profile job.json --bandwidth 10Gbit --no-range
    prophet-mx simulate: error: unknown option '--no-range' ...
simulate --profile job.json --bandwidth 10Gbit --size inf
    prophet-mx simulate: error: argument --size: 'inf' is not allowed; allowed: a number from 0.001 to 10 ...
simulate --profile job.json --bandwidth 10Gbit --jitter 30%
    prophet-mx simulate: error: argument --jitter: '30%' is not allowed; allowed: a number from 0 to 0.99 ...
simulate --profile job.json --bandwidth 10Gbit --straggler 0.5
    prophet-mx simulate: error: argument --straggler: '0.5' is not allowed; allowed: a number from 1 to 1000 ...
simulate --profile job.json --bandwidth 10Gbit --rtt=-1ms
    prophet-mx simulate: error: argument --rtt: '-1ms' is not allowed; allowed: a time in us, ms or s from 0 to 100ms, such as 50us or
    0.2ms ...
simulate --profile job.json --bandwidth 10Gbit --message-time 50
    prophet-mx simulate: error: argument --message-time: '50' is not allowed; allowed: a time with its unit, such as 50us or 50ms ...
simulate --profile job.json --bandwidth 10Gbit --csv ""
    prophet-mx simulate: error: argument --csv: '' is not allowed; allowed: a file in a folder that exists ...
simulate --profile job.json --bandwidth 10Gbit --overhead 1.5
    prophet-mx simulate: error: argument --overhead: '1.5' is not allowed; allowed: a size from 0 to 10 kB such as 200 ...
simulate --profile job.json --bandwidth 10Gbit --copy-rate 0
    prophet-mx simulate: error: argument --copy-rate: '0' is not allowed; allowed: a rate from 1 Mbit/s to 80 Tbit/s such as 10Gbit,
    1.25GB/s or 1.25e9 (bytes/s); b is bits, B is bytes ...
simulate --profile job.json --bandwidth 10Gbit --seed x
    prophet-mx simulate: error: argument --seed: 'x' is not allowed; allowed: a whole number from 0 to 4294967296 ...
simulate --profile job.json --bandwidth 10Gbit --iterations 0
    prophet-mx simulate: error: argument --iterations: '0' is not allowed; allowed: a whole number from 1 to 1000 ...
report
    prophet-mx report: error: the following arguments are required: TRACE ...
report none.json
    prophet-mx report: error: none.json: cannot be read (No such file or directory)
report notes.txt
    prophet-mx report: error: notes.txt: damaged, or not a trace: not a complete JSON text (Expecting value: line 1 column 1 (char 0))
report job.json
    prophet-mx report: error: job.json: not a trace of prophet_mx; PROPHET_TIMELINE=trace.json makes a job write one
report trace.json -o trace.json
    prophet-mx report: error: --output 'trace.json' is not allowed: it is a trace; allowed: another file
report trace.json -o ""
    prophet-mx report: error: argument -o/--output: '' is not allowed; allowed: a file in a folder that exists ...
report trace.json -o no/such/folder/report.html
    prophet-mx report: error: argument -o/--output: 'no/such/folder/report.html' is not allowed; allowed: a file in a folder that exists ...
launch -n two -- python train.py
    prophet-mx launch: error: argument -n/--workers: 'two' is not allowed; allowed: a whole number from 1 to 512 ...
compare --policy off -- true
    prophet-mx compare: error: argument --policy: 'off' is not allowed; allowed: POLICIES ...
compare --iterations 5 -- true
    prophet-mx compare: error: argument --iterations: '5' is not allowed; allowed: a whole number from 10 to 1000000 ...
compare --env PROPHET_POLICY=fifo -- true
    prophet-mx compare: error: --env PROPHET_POLICY=fifo is not allowed: compare sets it; allowed: --policy NAME, --iterations N
compare -n 2
    prophet-mx compare: error: no command given; allowed: a program and its arguments after '--', as in '-- python train.py'
doctor --scheduler node1
    prophet-mx doctor: error: argument --scheduler: 'node1' is not allowed; allowed: HOST:PORT with a port from 1 to 65535 ...
doctor --scheduler node1:²
    prophet-mx doctor: error: argument --scheduler: 'node1:²' is not allowed; allowed: HOST:PORT with a port from 1 to 65535 ...
doctor 10.0.0.1:9091
    prophet-mx doctor: error: unexpected argument '10.0.0.1:9091' ...
"""
TABLE = [
    (call, " ".join(answer.split()).replace("POLICIES", ", ".join(POLICIES)))
    for call, answer in re.findall(r"^(\S.*)\n((?:    .*\n)+)", dedent(CALLS), re.MULTILINE)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the calls are made: profiles, a trace and other files."""
    path = tmp_path_factory.mktemp("calls")
    recorded(RESNET18).save(str(path / "job.json"))
    replace(recorded(RESNET18), steps=(tuple(range(20, 62)), tuple(range(20)))).save(str(path / "few.json"))
    written(path / "trace.json", made())
    (path / "notes.txt").write_text("not JSON")
    (path / "three.json").write_text("[3]")
    return path


@pytest.mark.parametrize("call, answer", TABLE, ids=[call for call, _ in TABLE])
def test_a_wrong_call_is_answered_with_one_line(call, answer, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = cli(*shlex.split(call))
    command = answer.partition(":")[0]
    assert done.stderr == re.sub(r" \.\.\.$", f" ('{command} --help' explains)", answer) + "\n"
    assert (done.returncode, done.stdout) == (2, "") and sorted(folder.iterdir()) == before


def test_the_table_has_what_a_new_user_may_do_wrong_with_every_command():
    assert len(TABLE) >= 30 and len(TABLE) == CALLS.count(": error: ")
    assert {call.split()[0] for call, _ in TABLE} >= {"launch", "doctor", "predict", "simulate", "report"}


def test_a_command_that_needs_the_compiled_part_says_so_where_it_is_missing(monkeypatch):
    def without(name, package):
        if name == ".predict":
            raise ImportError("no module", name="prophet_mx._core.scheduler")
        return import_module(name, package)

    monkeypatch.setattr("prophet_mx.cli.main.import_module", without)
    done = cli("predict", "--help")
    assert (done.returncode, done.stdout) == (2, "") and "'predict' needs the compiled part of prophet_mx" in done.stderr
    assert "'prophet-mx doctor' says how to install it" in done.stderr


def test_an_interrupted_command_says_nothing(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("prophet_mx.cli.simulate.simulate", interrupted)
    done = cli("simulate", "--model", "vgg16", "--compute", "250ms", "--bandwidth", "10Gbit", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_bare_command_explains_itself():
    done = cli()
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == cli("--help").stdout
