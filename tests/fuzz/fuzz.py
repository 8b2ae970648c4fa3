"""Coverage-guided fuzzing of one parser with atheris (pip install .[fuzz]).

usage: fuzz.py PARSER [libFuzzer's options] [FOLDER]     such as -runs=1000000 -seed=1
       fuzz.py all [libFuzzer's options]                 every parser in turn, each in the folder build/fuzz/PARSER

Exit code 0 after -runs executions without a finding. A finding is printed with its traceback, and its bytes are put into a file
crash-...; 'fuzz.py PARSER crash-...' shows it again. What FOLDER holds is where it begins, and it keeps there what reached new code.
"""

import logging
import subprocess
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent))

with atheris.instrument_imports(include=["prophet_mx"]):
    from parsers import PARSERS, seeds


def main() -> None:
    if sys.argv[1:2] == ["all"]:
        sys.exit(max(run_apart(name) for name in PARSERS))
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"usage: fuzz.py PARSER [OPTION ...] [FOLDER]; parsers: {', '.join(PARSERS)}")
    logging.disable(logging.CRITICAL)
    name = sys.argv.pop(1)
    folders = [Path(argument) for argument in sys.argv[1:] if Path(argument).is_dir()]
    for folder in folders[:1]:
        for number, seed in enumerate(seeds(name)):
            (folder / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, PARSERS[name])
    atheris.Fuzz()


def run_apart(name: str) -> int:
    """Fuzz one parser in a process of its own, as libFuzzer ends its process; the exit code, with the findings printed."""
    folder = Path(__file__).resolve().parents[2] / "build" / "fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, __file__, name, f"-artifact_prefix={folder.parent}/", *sys.argv[2:], str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = done.stdout.splitlines()
    print("\n".join([f"fuzz: {name}:"] + (["  " + lines[-1]] if done.returncode == 0 and lines else lines[-60:])), flush=True)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    main()
