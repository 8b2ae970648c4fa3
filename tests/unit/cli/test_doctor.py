"""The command ``prophet-mx doctor``: its exit codes and arguments."""

import pytest

from prophet_mx.cli.main import main
from prophet_mx.doctor import examination
from prophet_mx.doctor.checks import check_port_variable


def test_warnings_count_only_if_asked(monkeypatch):
    monkeypatch.setattr(examination, "CHECKS", (check_port_variable,))
    monkeypatch.setenv("PORT", "80")
    assert main(["doctor"]) == 0
    assert main(["doctor", "--strict"]) == 1
    monkeypatch.delenv("PORT")
    assert main(["doctor", "--strict"]) == 0


@pytest.mark.parametrize("text", ["host", "host:", ":9091", "host:0", "host:65536", "host:x"])
def test_a_wrong_scheduler_is_one_line(text):
    with pytest.raises(SystemExit) as error:
        main(["doctor", "--scheduler", text])
    assert error.value.code == 2
