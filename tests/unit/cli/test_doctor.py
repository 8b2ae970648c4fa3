"""The command ``prophet-mx doctor``: its exit codes and arguments."""

import json

import pytest

from prophet_mx.cli.main import main
from prophet_mx.doctor import examination
from prophet_mx.doctor.checks import ERROR, OK, WARNING, Finding, check_cores, check_port_variable


def test_warnings_count_only_if_asked(monkeypatch):
    monkeypatch.setattr(examination, "CHECKS", (check_port_variable,))
    monkeypatch.setenv("PORT", "80")
    assert main(["doctor"]) == 0
    assert main(["doctor", "--strict"]) == 1
    monkeypatch.delenv("PORT")
    assert main(["doctor", "--strict"]) == 0


def test_what_is_wrong_comes_first(monkeypatch, capsys):
    found = [Finding(name, status, "found", "do") for name, status in (("a", OK), ("b", WARNING), ("c", ERROR), ("d", OK), ("e", ERROR))]
    monkeypatch.setattr(examination, "CHECKS", (lambda job: found,))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["error", "c"], ["error", "e"], ["warning", "b"], ["ok", "a"], ["ok", "d"]]
    assert lines[-1] == "2 errors, 1 warning, 2 ok"
    main(["doctor", "--json"])
    assert [one["check"] for one in json.loads(capsys.readouterr().out)] == ["c", "e", "b", "a", "d"]


def test_the_processes_of_this_machine_can_be_named(capsys, monkeypatch):
    monkeypatch.setattr(examination, "CHECKS", (check_cores,))
    main(["doctor", "-n", "3", "--servers", "2"])
    assert "for 3 worker(s) and 2 server(s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--workers", "some"], ["--workers", "'some'", "0 to 512"]),
        (["-s", "-1"], ["--servers", "'-1'", "0 to 512"]),
        (["--scheduler", "gpu1"], ["--scheduler", "'gpu1'", "HOST:PORT"]),
    ],
)
def test_a_wrong_argument_names_the_option_and_what_is_allowed(arguments, parts, capsys):
    with pytest.raises(SystemExit) as error:
        main(["doctor", *arguments])
    told = capsys.readouterr().err
    assert error.value.code == 2 and len(told.splitlines()) == 1 and all(part in told for part in parts), told


@pytest.mark.parametrize("text", ["host", "host:", ":9091", "host:0", "host:65536", "host:x"])
def test_a_wrong_scheduler_is_one_line(text):
    with pytest.raises(SystemExit) as error:
        main(["doctor", "--scheduler", text])
    assert error.value.code == 2
