"""What is measured, and by which command: one row per question.

    python -m benchmarks.questions --list
    python -m benchmarks.questions ablation-short            writes to benchmarks/scratch
    python -m benchmarks.questions ablation-short --publish  also replaces benchmarks/results/ablation-short

Further options go to the command, such as --repeats 5, --seed 2 or --lock FILE. The exit code is the command's; 2 for a wrong argument.
"""

import argparse
import os
import shlex
import sys
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

# Commands, and the timeline, which is off in measured jobs.
_EXCLUDED = tuple(f":(exclude)prophet_mx/{path}" for path in ("cli", "doctor", "simulation", "monitoring/timeline.py"))
# Of the comparison, all but what comes after the measurement.
_COMPARISON = (
    "benchmarks/testbed",
    "benchmarks/comparison",
    "prophet_mx/profiling/models",
    *(f":(exclude)benchmarks/comparison/{name}.py" for name in ("joined", "metadata", "results", "tables")),
)
MXNET = ("_ext", "prophet_mx", *_EXCLUDED, ":(exclude)prophet_mx/torch", *_COMPARISON, "benchmarks/run.py")
PYTORCH = (
    "prophet_mx",
    *_EXCLUDED,
    ":(exclude)prophet_mx/mxnet",
    *_COMPARISON,
    "benchmarks/collectives.py",
    "benchmarks/jobs/collectives.py",
)
CUDA = (*MXNET, "benchmarks/devices.py", "benchmarks/training.py", "benchmarks/jobs/transformer.py", "examples/mxnet-image-classification")
SIMULATION = (
    "_ext",
    "prophet_mx/simulation",
    "prophet_mx/planning",
    "prophet_mx/profiling",
    "prophet_mx/policies.py",
    "prophet_mx/sizes.py",
)


class Question(NamedTuple):
    """A question.

    Attributes
    ----------
    name : of the folder in benchmarks/results.
    asks : what its result shows.
    module : of benchmarks/, the command that measures it.
    arguments : of that command.
    alters : what git looks at to tell whether a change could alter the result.
    labels : what methods are called in tables.
    """

    name: str
    asks: str
    module: str
    arguments: Tuple[str, ...]
    alters: Tuple[str, ...] = MXNET
    labels: Mapping[str, str] = {}

    def command(self, *more: str) -> List[str]:
        """The words after ``python -m``."""
        return [f"benchmarks.{self.module}", *self.arguments, *more]


def _cells(*texts: str) -> Tuple[str, ...]:
    return tuple(word for text in texts for word in ("--cell", text))


def _methods(*names: str) -> Tuple[str, ...]:
    return ("--methods", ",".join(names))


SHORT_MODELS = ("resnet18_v1", "resnet50_v1", "vgg16", "inceptionv3", "mobilenetv2_1.0")
SHORT = tuple(f"{model},rho={rho},compute=0.15" for model in SHORT_MODELS for rho in ("0.5", "1", "2"))
HEADLINE = tuple(f"{model},rho=1,compute=0.15" for model in ("resnet50_v1", "vgg16", "inceptionv3", "mobilenetv2_1.0"))
LONG = tuple(f"{model},rho=1,compute=1" for model in (*SHORT_MODELS, "resnet152_v1"))
FOUR = tuple(f"{model},rho=1,compute={compute}" for compute in ("0.15", "1") for model in ("resnet50_v1", "vgg16"))
CONDITIONS = (
    "resnet50_v1,rho=1,compute=0.15,servers=2",
    "resnet50_v1,rho=1,compute=1,servers=2",
    "resnet50_v1,rho=1,compute=0.09,rate=3Gbit",
    "resnet50_v1,rho=1,compute=0.15,rate=3Gbit",
    "resnet50_v1,rho=1,scale=1,rate=3Gbit",
    "resnet50_v1,rho=1,compute=0.15,workers=4,servers=2,rate=500Mbit",
    "resnet50_v1,rho=1,compute=1,workers=4,servers=2,rate=500Mbit",
    "resnet50_v1,rho=1,compute=0.15,slow=1.3",
    "resnet50_v1,rho=1,compute=0.15,jitter=0.3",
)
SHIPPED = ("pushpull", "p3", "credit", "prophet")
# What an expert would try: P3's slices in elements, ByteScheduler's units with two, four and eight of them unanswered, and of prophet's
# sizes one at a time.
P3_SLICES = (10_000, 20_000, 80_000, 160_000, 320_000)  # 40,000 is what it has by itself
CREDITS = (
    *((unit, 4) for unit in (64_000, 128_000, 256_000, 512_000, 1_000_000, 2_000_000)),
    *((unit, number) for unit in (128_000, 256_000, 512_000) for number in (2, 8)),
)
PROPHET_SIZES = {
    "PROPHET_UNIT": (64_000, 96_000, 128_000, 192_000, 256_000),
    "PROPHET_WINDOW": (128_000, 256_000, 512_000, 1_000_000),
    "PROPHET_LEAD": (384_000, 768_000, 1_500_000, 3_000_000),
}
OWN_SWEEP = tuple(f"prophet:{name}={size}" for name, sizes in PROPHET_SIZES.items() for size in sizes)
SWEEP = (
    *(f"p3:MXNET_KVSTORE_SLICE_THRESHOLD={elements}" for elements in P3_SLICES),
    *(f"credit:PROPHET_UNIT={unit}:PROPHET_LEAD={number * unit}" for unit, number in CREDITS),
    *OWN_SWEEP,
)
COLLECTIVES = (
    *(f"resnet50_v1,ranks=2,rho={rho},compute=0.15,rate=1Gbit" for rho in ("0.5", "1", "2")),
    "vgg16,ranks=2,rho=1,compute=0.15,rate=1Gbit",
    "resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit,slow=1.3",
    "resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit,jitter=0.3",
    "resnet50_v1,ranks=4,rho=1,compute=0.15,rate=500Mbit",
)
DDP = ("ddp", "ddp-1MB", "ddp-2MB", "ddp-4MB", "ddp-bf16-2MB", "scheduled")
ON_PROCESSOR = tuple(
    f"resnet50_v1,ranks=2,rho={rho},compute={compute},rate=1Gbit" for rho, compute in (("1", "0.15"), ("1", "1"), ("0.05", "0.15"))
)
# The scripts give the engine two threads for operators and messages on the CPU; by default MXNet has one.
ONE_THREAD = {f"{method}:MXNET_CPU_WORKER_NTHREADS=1": f"{method}, one thread" for method in SHIPPED}
BOTH = tuple(f"{model},rho=1,compute={compute}" for model in ("resnet50_v1", "vgg16") for compute in ("0.15", "1"))


# Networks of full size. VGG-16 has smaller images, and so 218 MB of its 553: more would take two cores too long.
ON_DEVICES = (
    "resnet50_v1,batch=128,device=v100,script=gluon,rate=4Gbit",
    "resnet18_v1,batch=128,device=v100,script=gluon,rate=4Gbit",
    "mobilenetv2_1.0,batch=128,device=v100,script=gluon,rate=2Gbit",
    "densenet121,batch=64,device=v100,script=gluon,rate=2Gbit",
    "inceptionv3,batch=64,device=v100,script=gluon,rate=5Gbit",
    "vgg16,batch=256,device=v100,script=gluon,side=112,rate=4Gbit",
    "bert_6_384,batch=256,device=v100,script=transformer,rate=5Gbit",
    "resnet50_v1,batch=128,device=v100,script=module,rate=4Gbit",
)
# Of Prophet's paper (ICPP 2021), at rates that two cores carry.
PAPER = tuple(
    f"{model},batch=64,device=m60,script=gluon,rate={rate}" for model in ("resnet50_v1", "inceptionv3") for rate in ("1Gbit", "3Gbit")
)
PAPER_RATES = "1Gbit,2Gbit,3Gbit,4Gbit,5Gbit,7Gbit,10Gbit"
# About 20 s a job. Orders are exchanged in the first ten iterations.
ON_DEVICES_PROTOCOL = ("--warmup", "12", "--iterations", "12", "--timeout", "120")
MANY = ("--iterations", "30")  # short ones are soon over
# Where nothing has changed, two runs of five jobs agree in 95 of 100 rows or more, two of three jobs in 90.
FIVE = ("--repeats", "5")
SOME = ("--iterations", "20")


def _ablation(unit: int) -> Dict[str, str]:
    """Method -> what it leaves out, all with the same unit (bytes)."""
    same = f":PROPHET_UNIT={unit}"
    return {
        f"prophet{same}": "prophet",
        f"priority{same}": "no blocks",
        f"prophet{same}:PROPHET_WINDOW=1TiB": "no drain window",
        f"prophet{same}:PROPHET_LEAD=1TiB": "no lead limit",
        f"fifo{same}:PROPHET_LEAD={5 * unit}": "no order",
        "prophet:PROPHET_UNIT=4MB": "no slices",
        "prophet-icpp21": "the paper's rule",
    }


def _ablations(name: str, compute: str, unit: int, *protocol: str) -> Question:
    methods = _ablation(unit)
    cells = _cells(*(f"{model},rho=1,compute={compute}" for model in ("resnet50_v1", "vgg16")))
    asks = f"what each part of the policy is worth, with {compute} s of compute and units of {unit:,} bytes"
    return Question(name, asks, "run", (*cells, *_methods(*methods), *protocol), labels=methods)


def _prediction(name: str, compute: str, unit: int, *protocol: str) -> Question:
    methods = {f"{policy}:PROPHET_UNIT={unit}": policy for policy in ("prophet", "priority")}
    cell = f"resnet50_v1,rho=1,compute={compute}"
    cells = _cells(cell, f"{cell},slow=1.3", f"{cell},jitter=0.3", f"{cell},workers=4,servers=2,rate=500Mbit")
    asks = f"what gradient blocks are worth: prophet and priority with {compute} s of compute and units of {unit:,} bytes"
    return Question(name, asks, "run", (*cells, *_methods(*methods), *protocol), labels=methods)


_FOUND = (
    Question(
        "headline",
        "README's cells: iterations of 150 ms, methods as shipped",
        "run",
        (*_cells(*HEADLINE), *_methods(*SHIPPED), *MANY, *FIVE, "--timeout", "60"),
    ),
    Question(
        "short", "iterations of some 150 ms, methods as shipped", "run", (*_cells(*SHORT), *_methods(*SHIPPED), *MANY, "--timeout", "90")
    ),
    Question("long", "iterations of a second, methods as shipped", "run", (*_cells(*LONG), *_methods(*SHIPPED))),
    Question(
        "conditions",
        "two servers, faster links, four workers, a slower worker, compute times that vary",
        "run",
        (*_cells(*CONDITIONS), *_methods(*SHIPPED), *MANY, "--timeout", "120"),
    ),
    Question("tuning", "which settings of each method are the best", "run", (*_cells(*FOUR), *_methods(*SWEEP), *SOME, "--repeats", "1")),
    Question(
        "tuned",
        "all methods as shipped, and at the best that tuning found; run tuning first",
        "run",
        (*_cells(*FOUR), *SOME, *_methods(*SHIPPED), "--best", "tuning"),
    ),
    Question(
        "regret",
        "two servers: the sizes that prophet chooses, and others, one at a time",
        "run",
        (*_cells(*CONDITIONS[:2]), *SOME, *_methods("prophet", *OWN_SWEEP), "--repeats", "1"),
    ),
    _ablations("ablation-short", "0.15", 128_000, *MANY, *FIVE),
    _ablations("ablation-long", "1", 240_000),
    _prediction("prediction-short", "0.15", 128_000, *MANY, "--repeats", "7"),
    _prediction("prediction-long", "1", 240_000, *FIVE),
    Question(
        "training",
        "nothing emulated but the network: networks that an example script trains on the processor",
        "training",
        # rho 1 with what an iteration takes of a worker's core: 0.37 s and 45 MB of gradients, 0.20 s and 13 MB.
        (
            *_cells("resnet18_v1,rate=2Gbit", "mobilenet1.0,rate=1Gbit"),
            *_methods(*SHIPPED, *ONE_THREAD),
            "--iterations",
            "15",
            "--timeout",
            "90",
        ),
        (*MXNET, "benchmarks/training.py", "examples/mxnet-image-classification"),
        {"pushpull": "plain `dist_sync`", "p3": "P3", **ONE_THREAD},
    ),
    Question(
        "processor",
        "where the processors' time goes, by role and by what is done",
        "processor",
        _cells("resnet50_v1,rho=1,scale=1,rate=3Gbit", "resnet50_v1,rho=1,compute=1,workers=4,servers=2,rate=500Mbit"),
        (*MXNET, "benchmarks/processor.py"),
    ),
    Question(
        "bandwidth",
        "time against the links' rate: the points of the picture",
        "run",
        (
            *_cells(*(f"resnet50_v1,compute=0.5,scale=0.3,rate={rate}" for rate in ("400Mbit", "1Gbit", "2Gbit"))),
            *_methods("pushpull", "priority", "prophet"),
        ),
    ),
    Question(
        "simulator",
        "the simulator against all cells that were measured: costs fitted on one cell, and as measured when the jobs started",
        "validate_simulator",
        ("long", "short", "conditions", "bandwidth", "--fit", HEADLINE[0]),
        (*SIMULATION, "benchmarks/validate_simulator.py"),
    ),
    Question(
        "overhead",
        "what scheduling costs where there is nothing to schedule",
        "overhead",
        (),
        (*MXNET, "benchmarks/overhead.py", "benchmarks/comparison/own_jobs.py"),
    ),
    Question(
        "watchdog",
        "what the watchdog costs: the base is scheduled as well, with its thread ended",
        "overhead",
        ("--base", "unwatched"),
        (*MXNET, "benchmarks/overhead.py", "benchmarks/comparison/own_jobs.py"),
    ),
    Question(
        "servers",
        "what an update costs a server, alone and in groups",
        "servers",
        (),
        (*MXNET, "benchmarks/servers.py", "benchmarks/comparison/own_jobs.py"),
    ),
    Question(
        "copies",
        "gradients on a device with copy engines: copied in pieces, and whole",
        "run",
        (
            *_cells("vgg16,scale=0.1,compute=0.3,servers=2,rate=1Gbit,copy=1.2GB"),
            *_methods("prophet", "prophet:TESTBED_COPIES=whole", "pushpull"),
        ),
        labels={"prophet": "in pieces", "prophet:TESTBED_COPIES=whole": "whole"},
    ),
    Question("rate-change", "links whose rate halves and doubles again", "rate_change", (), (*MXNET, "benchmarks/rate_change.py")),
    Question(
        "sizes",
        "in the simulator, 2 to 1,000 workers: the sizes that are chosen against the best of a sweep",
        "sizes",
        (
            "--cells",
            "workers=2",
            "--cells",
            "workers=8",
            "--cells",
            "workers=32,rate=10Gbit",
            "--cells",
            "workers=128,servers=32,rate=10Gbit",
            "--cells",
            "workers=1000,rate=10Gbit",
        ),
        (*SIMULATION, "benchmarks/sizes.py"),
    ),
    Question(
        "pytorch",
        "all-reduce, the device emulated: DistributedDataParallel and ScheduledOptimizer; needs PyTorch",
        "collectives",
        (*_cells(*COLLECTIVES), "--kinds", "device", *_methods(*DDP), *SOME),
        PYTORCH,
    ),
    Question(
        "pytorch-long",
        "the same in iterations of a second; needs PyTorch",
        "collectives",
        (*_cells("resnet50_v1,ranks=2,rho=1,compute=1,rate=1Gbit"), "--kinds", "device", *_methods(*DDP)),
        PYTORCH,
    ),
    Question(
        "pytorch-cpu",
        "the same with copies and updates on the processor; needs PyTorch",
        "collectives",
        (*_cells(*ON_PROCESSOR), "--kinds", "cpu", *_methods(*DDP), *SOME),
        PYTORCH,
    ),
    Question(
        "real",
        "all-reduce, nothing emulated but the network: a residual network trained on the processor; needs PyTorch",
        "collectives",
        (*_cells("real,ranks=2,rate=1Gbit"), *_methods("ddp", "ddp-2MB", "ddp-8MB", "scheduled")),
        PYTORCH,
    ),
    Question(
        "frameworks-mxnet",
        "MXNet with as many servers as workers, to be put beside PyTorch",
        "run",
        (*_cells(*(f"{cell},servers=2" for cell in BOTH)), *_methods("pushpull", "p3", "prophet"), "--timeout", "120"),
    ),
    Question(
        "frameworks-pytorch",
        "PyTorch with the same models and bytes per link; needs PyTorch",
        "collectives",
        (
            *_cells(*(f"{cell},ranks=2,ready=steps" for cell in BOTH)),
            *_methods("ddp", "ddp-2MB", "ddp-4MB", "ddp-8MB", "scheduled"),
            "--kinds",
            "device",
        ),
        PYTORCH,
    ),
    Question(
        "networks",
        "time per iteration of ten networks on the emulated V100, without communication; needs MXNet's CUDA build",
        "networks",
        ("--device", "v100"),
        ("benchmarks/testbed/cuda", "benchmarks/networks.py"),
    ),
    Question(
        "devices",
        "scripts with networks of full size on emulated GPUs; needs MXNet's CUDA build",
        "devices",
        (*_cells(*ON_DEVICES), *_methods(*SHIPPED), "--tune", "credit", *ON_DEVICES_PROTOCOL),
        CUDA,
    ),
    Question(
        "paper-setup",
        "the paper's networks, batch and GPU, which is emulated, and what they learn; needs MXNet's CUDA build",
        "devices",
        (*_cells(*PAPER), *_methods(*SHIPPED), "--learn", "--warmup", "8", "--iterations", "5", "--timeout", "120"),
        CUDA,
    ),
    Question(
        "paper-rates",
        "the same at other rates of the links, in the simulator; publish paper-setup first",
        "paper",
        ("paper-setup", "--rates", PAPER_RATES),
        (*SIMULATION, "benchmarks/paper.py"),
    ),
    Question(
        "quick",
        "three cells and one job of each method, to try it out",
        "run",
        (
            *_cells("resnet50_v1,rho=1,compute=0.15", "resnet50_v1,rho=1,compute=1", "vgg16,rho=1,compute=1"),
            *_methods("pushpull", "p3", "credit", "prophet"),
            "--repeats",
            "1",
        ),
    ),
)
QUESTIONS = {question.name: question for question in _FOUND}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. The command takes this process's place."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", nargs="?", choices=QUESTIONS, metavar="QUESTION", help="one of --list")
    parser.add_argument("--list", action="store_true", help="all questions, each with its command")
    parser.add_argument("--publish", action="store_true", help="replace the published result")
    options, more = parser.parse_known_args(arguments)
    if options.list:
        for question in QUESTIONS.values():
            print(f"{question.name}: {question.asks}\n    {shlex.join(['python', '-m', *question.command()])}")
        return 0
    if options.question is None:
        parser.error("name a question, or --list")
    found = QUESTIONS[options.question]
    words = found.command(*(["--publish", found.name] if options.publish else []), *more)
    print(shlex.join(["python", "-m", *words]), flush=True)
    return os.execv(sys.executable, [sys.executable, "-m", *words])


if __name__ == "__main__":
    sys.exit(main())
