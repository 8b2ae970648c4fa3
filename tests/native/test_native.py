"""What 'make check-native' runs under sanitizers, here on the ordinary build and short; and its own parts."""

import sys
from pathlib import Path

import pytest

from support.commands import python

NATIVE = Path(__file__).resolve().parent
sys.path.append(str(NATIVE))

import check  # noqa: E402


@pytest.mark.parametrize("script, amount", [("stress.py", "12"), ("engine.py", "25")])
def test_the_stress_of_the_native_code(script, amount):
    assert f": {amount} " in python(NATIVE / script, amount, expect=0).stdout


def test_only_leaks_of_our_own_allocations_count():
    ours = "Direct leak of 8 byte(s)\n    #0 0x7f in malloc (libasan.so+0x1)\n    #1 0x7e in grow /x/prophet_mx/_core/drain.so+0x2"
    python = "Direct leak of 9 byte(s)\n    #0 0x7f in malloc (libasan.so+0x1)\n    #1 0x7e in PyMem_Malloc\n    #2 0x7d in f /x/_core.c.so"
    assert check.own_leaks(f"==1==ERROR\n\n{python}\n\n{ours}\n\nSUMMARY") == [ours]


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        check.main(["adress"])
    assert ended.value.code == 2 and "allowed: address, thread, valgrind" in capsys.readouterr().err
