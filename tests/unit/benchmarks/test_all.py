"""All questions in one go: what runs in which order, and what a failure or an interruption leaves."""

import subprocess
from types import SimpleNamespace

import pytest

from benchmarks import all as everything
from benchmarks import publish
from benchmarks.all import Runner
from benchmarks.questions import QUESTIONS

MXNET = [name for name, question in QUESTIONS.items() if question.module in publish.COMPARISONS]


@pytest.fixture
def ran(monkeypatch):
    """The questions' names in the order of their commands; ``ran.codes`` has what commands of a question end with."""

    class Ran(list):
        def __init__(self):
            super().__init__()
            self.codes, self.words = {}, []

    found = Ran()

    class Fake:
        def __init__(self, command, **_):
            found.append(command[command.index("--name") + 1])
            found.words.append(command)

        def wait(self, timeout=None):
            code = found.codes.get(found[-1], 0)
            if isinstance(code, list):
                code = code.pop(0) if code else 0
            if isinstance(code, BaseException):
                found.codes[found[-1]] = 0
                raise code
            return code

        def send_signal(self, number):
            found.append(f"signal {int(number)}")

    known = {"Popen": Fake, "call": lambda command, **_: 0, "STDOUT": subprocess.STDOUT, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(everything, "subprocess", SimpleNamespace(**known))
    return found


def test_there_are_ten_questions_at_most_and_they_take_less_than_two_hours():
    assert len(QUESTIONS) <= 10 and sum(question.minutes for question in QUESTIONS.values()) <= 115


def test_rounds_are_the_outer_loop_and_what_needs_results_comes_last(ran, tmp_path):
    assert everything.main(["--root", str(tmp_path)]) == 0
    rounds = [*MXNET[:5], "cost", *MXNET[5:]]
    assert ran[: len(rounds)] == [name for name in QUESTIONS if name != "simulator"] and ran[-1] == "simulator"
    assert ran.count("rho") == 4 and ran[len(rounds) : len(rounds) + len(MXNET)] == MXNET  # three rounds, and publishing
    until = [words[words.index("--until") + 1] for words in ran.words if words[2] == "benchmarks.run" and "--until" in words]
    assert until == sorted(until) and set(until) == {"1", "2", "3"}
    assert all(str(tmp_path) in words[words.index("--published") + 1] for words in ran.words)


def test_a_question_that_fails_does_not_end_the_others_and_is_said_in_the_end(ran, tmp_path, capsys):
    ran.codes["devices"] = 1
    assert everything.main(["--root", str(tmp_path)]) == 1
    assert ran.count("devices") == 4 and ran.count("paper") == 4
    told = capsys.readouterr()
    assert "failed: devices: not published; see" in told.err and "rho: 0.0 min, published" in told.out


def test_without_privileges_nothing_else_is_tried(ran, tmp_path):
    ran.codes["models"] = 3
    assert everything.main(["--root", str(tmp_path)]) == 3 and ran == ["models"]


def test_an_interruption_ends_it_and_what_hangs_is_ended(ran, tmp_path):
    ran.codes["rho"] = [KeyboardInterrupt()]
    ran.codes["models"] = [subprocess.TimeoutExpired("models", 1)]
    assert everything.main(["--root", str(tmp_path)]) == 130
    assert ran[:2] == ["models", "signal 2"] and ran[-1] == "signal 2" and "conditions" not in ran


def test_a_question_in_an_environment_that_is_missing_fails_alone(monkeypatch, tmp_path, capsys):
    ended = []
    monkeypatch.setattr(everything, "_wait", lambda process: ended.append(process.wait()) or 0)
    arguments = ["--root", str(tmp_path), "--questions", "pytorch", "--torch", str(tmp_path / "none")]
    monkeypatch.setattr(everything.subprocess, "call", lambda command, **_: 0)
    assert everything.main(arguments) == 1 and not ended
    assert "No such file" in capsys.readouterr().out


def test_a_quick_run_takes_the_first_cell_and_is_not_for_the_checkout(tmp_path, capsys):
    with pytest.raises(SystemExit):
        everything.main(["--quick"])
    assert "--quick needs --root FOLDER" in capsys.readouterr().err
    words = Runner._command(type("Quick", (), {"quick": True})(), QUESTIONS["rho"])
    assert words.count("--cell") == 1 and words[2].startswith("resnet50_v1,rho=0.1,") and "--methods" in words
    assert Runner._command(type("Quick", (), {"quick": False})(), QUESTIONS["rho"]) == QUESTIONS["rho"].command()
