"""Host files, and which host gets which processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import LaunchError
from prophet_mx.launcher.hosts import Host, parse_host_list, parse_hosts, place


def test_host_file():
    text = "\n# all\n gpu1  slots=2 # old\nme@gpu2\taddress=10.0.0.2 slots=3\n10.0.0.9\n"
    assert parse_hosts(text, "hosts") == [Host("gpu1", 2), Host("me@gpu2", 3, "10.0.0.2"), Host("10.0.0.9", 1)]


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ["hosts", "names no host"]),
        ("# nothing", ["hosts", "names no host"]),
        ("a\n\na slots=2", ["hosts, line 3", "a appears twice"]),
        ("a slots=0", ["line 1", "'slots=0'", "1 to 512"]),
        ("a slots=" + "9" * 5000, ["line 1", "1 to 512"]),
        ("a slots=two", ["line 1", "'slots=two'", "1 to 512"]),
        ("a slot=2", ["line 1", "'slot=2'", "slots=N"]),
        ("-oProxyCommand=id", ["line 1", "'-oProxyCommand=id'", "user@10.0.0.7"]),
        ("a;id", ["line 1", "'a;id'"]),
        ("$(id)", ["line 1", "'$(id)'"]),
        ("x@-oProxyCommand=id", ["line 1"]),
    ],
)
def test_a_wrong_host_file(text, parts):
    with pytest.raises(LaunchError) as caught:
        parse_hosts(text, "hosts")
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_list_of_hosts():
    assert parse_host_list("gpu1") == [Host("gpu1")]
    assert parse_host_list("gpu1:4, me@gpu-2.example.org:512,10.0.0.9:1") == [
        Host("gpu1", 4),
        Host("me@gpu-2.example.org", 512),
        Host("10.0.0.9"),
    ]


@given(st.lists(st.tuples(st.sampled_from(["gpu", "me@gpu", "10.0.0."]), st.none() | st.integers(1, 512)), min_size=1, max_size=9))
def test_a_list_of_hosts_says_the_same_as_a_file(parts):
    named = [(f"{name}{i}", slots) for i, (name, slots) in enumerate(parts)]
    listed = ",".join(name + (f":{slots}" if slots else "") for name, slots in named)
    lines = "\n".join(name + (f" slots={slots}" if slots else "") for name, slots in named)
    assert parse_host_list(listed) == parse_hosts(lines, "hosts")


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ["''", "gpu1,gpu2"]),
        ("a,,b", ["'' in 'a,,b'"]),
        ("a:", ["'a:'", "':N'"]),
        ("a:0", ["'a:0'", "1 to 512"]),
        ("a:513", ["'a:513'", "1 to 512"]),
        ("a:two", ["'a:two'"]),
        ("a,b:2,a:2", ["a appears twice in 'a,b:2,a:2'", "a:N"]),
        ("::1", ["'::1'"]),
        ("-oProxyCommand=id", ["'-oProxyCommand=id'"]),
        ("a b", ["'a b'"]),
    ],
)
def test_a_wrong_list_of_hosts(text, parts):
    with pytest.raises(LaunchError) as caught:
        parse_host_list(text)
    assert all(part in str(caught.value) for part in parts), caught.value


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_workers_and_servers_are_spread(slots, data):
    hosts = [Host(f"h{i}", count) for i, count in enumerate(slots)]
    workers = data.draw(st.none() | st.integers(1, sum(slots)))
    servers = data.draw(st.none() | st.integers(1, 20))
    placed, n_workers, n_servers = place(hosts, workers, servers)
    of = {role: [process.host for process in placed if process.role == role] for role in ("scheduler", "server", "worker")}
    assert of["scheduler"] == [0]
    assert len(of["worker"]) == n_workers == (workers or sum(slots))
    assert len(of["server"]) == n_servers == (servers or len(set(of["worker"])))
    for role in ("server", "worker"):
        assert [process.index for process in placed if process.role == role] == list(range(len(of[role])))
    on = [of["worker"].count(i) for i in range(len(hosts))]
    assert all(count <= host.slots for count, host in zip(on, hosts))
    # A host has fewer workers than another only if it is full, or comes later in the round.
    assert all(a >= b - (i > j) or a == hosts[i].slots for i, a in enumerate(on) for j, b in enumerate(on))
    counts = [of["server"].count(i) for i in range(len(hosts))]
    assert max(counts) - min(counts) <= 1
