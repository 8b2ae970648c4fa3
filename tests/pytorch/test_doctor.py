"""prophet-mx doctor as a process that looks at the PyTorch that is installed."""

import json

from support.commands import prophet_mx


def findings(done):
    """check -> (status, what was found and what to do)."""
    return {one["check"]: (one["status"], f"{one['found']}: {one['do']}") for one in json.loads(done.stdout)}


def test_a_healthy_machine():
    done = prophet_mx("doctor", "--json", env={"GLOO_SOCKET_IFNAME": "lo"})
    found = findings(done)
    assert done.returncode == 0, found
    assert all(found[name][0] == "ok" for name in ("python", "pytorch", "gloo", "core", "settings", "torchrun", "gloo_nic")), found
    assert not {"mxnet", "van", "PORT", "scheduler"} & set(found), found


def test_everything_that_is_wrong_is_named_at_once():
    job = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = prophet_mx("doctor", "--json", env={**job, "GLOO_SOCKET_IFNAME": "nosuch0", "PROPHET_WINDOW": "4MB", "OMP_NUM_THREADS": "1"})
    found = findings(done)
    assert done.returncode == 1
    assert {name for name, (status, _) in found.items() if status == "error"} == {"torchrun", "gloo_nic", "settings"}, found
    assert found["pytorch"][0] == "ok"


def test_a_broken_pytorch_is_told_in_words(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    found = findings(prophet_mx("doctor", "--json", env={"PYTHONPATH": str(tmp_path)}))
    assert found["pytorch"][0] == "error" and "libcudart.so.12" in found["pytorch"][1], found
