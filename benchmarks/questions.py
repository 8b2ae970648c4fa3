"""What is measured, and by which command: one row per question that a user asks. All together take under two hours.

    python -m benchmarks.questions --list
    python -m benchmarks.questions rho              writes to benchmarks/scratch
    python -m benchmarks.questions rho --publish    also replaces benchmarks/results/rho

Further options go to the command, such as --repeats 5, --seed 2 or --lock FILE. The exit code is the command's; 2 for a wrong argument.
``python -m benchmarks.all`` runs all of them, a round of each in turn.
"""

import argparse
import os
import shlex
import sys
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

# Commands, and the timeline, which is off in measured jobs.
_EXCLUDED = (
    *(f":(exclude)prophet_mx/{path}" for path in ("cli", "doctor", "simulation", "monitoring/timeline.py")),
    ":(exclude)_ext/prophet_mx/_core/timeline",
)
# Of the comparison, all but what comes after the measurement.
_COMPARISON = (
    "benchmarks/testbed",
    "benchmarks/comparison",
    "prophet_mx/profiling/models",
    *(f":(exclude)benchmarks/comparison/{name}.py" for name in ("metadata", "results", "tables")),
)
# What only collectives need.
_COLLECTIVES = (
    *(f":(exclude)prophet_mx/{path}" for path in ("torch", "planning/rounds.py", "planning/owners.py")),
    ":(exclude)_ext/prophet_mx/_core/norms.pyx",
)
MXNET = ("_ext", "prophet_mx", *_EXCLUDED, *_COLLECTIVES, *_COMPARISON, "benchmarks/run.py")
PYTORCH = (
    "prophet_mx",
    "_ext/prophet_mx/_core/norms.pyx",
    *_EXCLUDED,
    *(f":(exclude)prophet_mx/{path}" for path in ("mxnet", "planning/placement.py")),  # what only servers need
    *_COMPARISON,
    "benchmarks/collectives.py",
    "benchmarks/jobs/collectives.py",
)
TRAINING = (*MXNET, "benchmarks/training.py", "examples/mxnet-image-classification")
CUDA = (*TRAINING, "benchmarks/devices.py", "benchmarks/jobs/transformer.py")
SIMULATION = (
    "_ext",
    "prophet_mx/simulation",
    "prophet_mx/planning",
    "prophet_mx/profiling",
    "prophet_mx/policies.py",
    "prophet_mx/sizes.py",
    "benchmarks/validate_simulator.py",
)


class Question(NamedTuple):
    """A question.

    Attributes
    ----------
    name : of the folder in benchmarks/results.
    asks : what its result shows.
    minutes : that it takes on two cores, as estimated.
    module : of benchmarks/, the command that measures it.
    arguments : of that command.
    alters : what git looks at to tell whether a change could alter the result.
    labels : what methods are called in tables.
    needs : the environment of the Makefile that it runs in: "", "torch" or "cuda".
    """

    name: str
    asks: str
    minutes: float
    module: str
    arguments: Tuple[str, ...]
    alters: Tuple[str, ...] = MXNET
    labels: Mapping[str, str] = {}
    needs: str = ""

    def command(self, *more: str) -> List[str]:
        """The words after ``python -m``."""
        return [f"benchmarks.{self.module}", *self.arguments, *more]


def _cells(*texts: str) -> Tuple[str, ...]:
    return tuple(word for text in texts for word in ("--cell", text))


def _methods(*names: str) -> Tuple[str, ...]:
    return ("--methods", ",".join(names))


# Jobs as users run them: SGD with momentum on the servers, and Trainer's keys.
USERS = "update=servers,keys=names"
SHORT = f"rho=1,compute=0.15,{USERS}"
MODELS = ("resnet50_v1", "inceptionv3", "mobilenetv2_1.0", "densenet121", "vgg16", "resnet152_v1", "bert_base")
# By push and pull: MXNet's P3 can hang at the end of a job that calls pushpull.
P3 = "p3-push+pull"
BASELINES = ("pushpull", P3, "credit", "prophet")
SOME = ("--warmup", "12", "--iterations", "12", "--timeout", "90")  # orders are exchanged in the first ten
NAMES = {P3: "P3", "p3": "P3", "credit": "ByteScheduler"}

_SAME = ":PROPHET_UNIT=128000"  # the parts are compared with units of the same size
PARTS = {
    f"prophet{_SAME}": "prophet",
    f"priority{_SAME}": "no blocks",
    f"prophet{_SAME}:PROPHET_WARMUP=1000": "no learned order",
    f"prophet{_SAME}:PROPHET_GROUPS=off": "no groups",
    f"prophet{_SAME}:PROPHET_WINDOW=1TiB": "no drain window",
    f"prophet{_SAME}:PROPHET_LEAD=1TiB": "no lead limit",
    "prophet:PROPHET_UNIT=4MB": "no slices",
    f"fifo{_SAME}:PROPHET_LEAD=640000": "no order",
    "prophet-icpp21": "the paper's rule",
}
_RINGS = ("resnet50_v1,ranks=2,rho=1", "vgg16,ranks=2,rho=1", "resnet50_v1,ranks=2,rho=2")
RINGS = (*(f"{cell},compute=0.15,rate=1Gbit,ready=steps" for cell in _RINGS), "real,ranks=2,rate=1Gbit")
WAITING = "scheduled-clip:PROPHET_CLIPPING=wait"
DDP = ("ddp", "ddp-1MB", "ddp-4MB", "ddp-clip-4MB", "ddp-bf16-4MB", "scheduled", "scheduled-clip", WAITING, "scheduled-bf16")
# Of full size, as far as two cores carry them: VGG-16 takes 40 s a job and more.
FULL_SIZE = ("resnet50_v1,batch=128,device=v100,script=gluon,rate=4Gbit", "bert_6_384,batch=256,device=v100,script=transformer,rate=5Gbit")
PAPER = tuple(f"{model},batch=64,device=m60,script=gluon,rate=2Gbit" for model in ("resnet50_v1", "inceptionv3"))

_FOUND = (
    Question(
        "models",
        "how much faster is my job? Six models and a transformer",
        31,
        "run",
        (*_cells(*(f"{model},{SHORT}" for model in MODELS)), *_methods(*BASELINES), "--tune", "credit", *SOME),
        labels=NAMES,
    ),
    Question(
        "devices",
        "and in scripts on GPUs, which are emulated, with models of full size?",
        16,
        "devices",
        (
            *_cells(*FULL_SIZE),
            *_methods("pushpull", "p3", "credit", "prophet"),
            *("--tune", "credit", "--warmup", "12", "--iterations", "10", "--timeout", "90"),
        ),
        CUDA,
        NAMES,
        "cuda",
    ),
    Question(
        "rho",
        "when does it not help? From short communication to long",
        8,
        "run",
        (
            *_cells(*(f"resnet50_v1,rho={rho},compute=0.15,{USERS}" for rho in ("0.1", "0.5", "1", "2", "4"))),
            *_methods("pushpull", "prophet"),
            *SOME,
        ),
    ),
    Question(
        "conditions",
        "with more servers and workers, a slower worker, and times that vary?",
        9,
        "run",
        (
            *_cells(
                f"resnet50_v1,{SHORT},servers=2",
                f"resnet50_v1,{SHORT},workers=4,servers=2,rate=500Mbit",
                f"resnet50_v1,{SHORT},slow=1.3",
                f"resnet50_v1,{SHORT},jitter=0.3",
            ),
            *_methods("pushpull", P3, "prophet"),
            *SOME,
        ),
        labels=NAMES,
    ),
    Question(
        "parts",
        "what is each part worth?",
        13,
        "run",
        (*_cells(*(f"{model},{SHORT}" for model in ("resnet50_v1", "inceptionv3", "densenet121"))), *_methods(*PARTS), *SOME),
        labels=PARTS,
    ),
    Question(
        "cost",
        "what does scheduling cost where there is nothing to schedule?",
        1,
        "overhead",
        (),
        (*MXNET, "benchmarks/overhead.py", "benchmarks/comparison/own_jobs.py"),
    ),
    Question(
        "training",
        "and in real training on the processor, where only the network is emulated?",
        7,
        "training",
        (*_cells("resnet18_v1,rate=2Gbit", "mobilenet1.0,rate=1Gbit"), *_methods("pushpull", "p3", "prophet"), *SOME),
        TRAINING,
        {"pushpull": "plain `dist_sync`", "p3": "P3"},
    ),
    Question(
        "pytorch",
        "with PyTorch: DistributedDataParallel as shipped, tuned, with clipping and with 16 bits, and ScheduledOptimizer?",
        15,
        "collectives",
        (*_cells(*RINGS), "--kinds", "device", *_methods(*DDP), *SOME),
        PYTORCH,
        {WAITING: "scheduled-clip, wait"},
        needs="torch",
    ),
    Question(
        "paper",
        "in the set-up of Prophet's paper: its networks, batch and GPU, which is emulated?",
        15,
        "devices",
        (*_cells(*PAPER), *_methods("pushpull", "p3", "credit", "prophet"), *("--warmup", "9", "--iterations", "5", "--timeout", "90")),
        CUDA,
        NAMES,
        "cuda",
    ),
    Question(
        "simulator",
        "how far off is predict? The simulator against the cells above, with costs fitted on one, and as jobs measured them",
        0,
        "validate_simulator",
        # The model with the most messages: there their cost is seen best.
        ("models", "rho", "conditions", "--fit", f"resnet152_v1,{SHORT}"),
        SIMULATION,
    ),
)
QUESTIONS = {question.name: question for question in _FOUND}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. The command takes this process's place."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", nargs="?", choices=QUESTIONS, metavar="QUESTION", help="one of --list")
    parser.add_argument("--list", action="store_true", help="all questions, each with its command and how long it takes")
    parser.add_argument("--publish", action="store_true", help="replace the published result")
    options, more = parser.parse_known_args(arguments)
    if options.list:
        for question in QUESTIONS.values():
            print(f"{question.name}: {question.asks} {question.minutes:g} min")
            print(f"    {shlex.join(['python', '-m', *question.command()])}")
        print(f"all: {sum(question.minutes for question in QUESTIONS.values()):g} min")
        return 0
    if options.question is None:
        parser.error("name a question, or --list")
    found = QUESTIONS[options.question]
    words = found.command(*(["--publish", found.name] if options.publish else []), *more)
    print(shlex.join(["python", "-m", *words]), flush=True)
    return os.execv(sys.executable, [sys.executable, "-m", *words])


if __name__ == "__main__":
    sys.exit(main())
