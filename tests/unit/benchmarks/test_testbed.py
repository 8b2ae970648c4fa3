"""The testbed where it cannot be used."""

import pytest

from benchmarks.testbed import Testbed, TestbedError, network
from benchmarks.testbed import __main__ as command_line


def test_without_root_one_line_says_so_and_the_exit_code_is_its_own(monkeypatch, capsys):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(network.shutil, "which", lambda tool: "/sbin/" + tool)
    assert command_line.main(["goodput"]) == 3
    assert capsys.readouterr().err.splitlines() == ["error: the testbed needs root: it makes network namespaces and shapes their links"]


@pytest.mark.parametrize("workers, servers, rate", [(0, 1, 125e6), (1, 0, 125e6), (2, 1, 1e6), (2, 1, 2e10), (300, 1, 125e6)])
def test_impossible_clusters_are_refused(workers, servers, rate):
    with pytest.raises(TestbedError):
        Testbed(workers, servers, rate)
