"""Golden plans: the units of thirteen models, their sizes and their orders, for MXNet and for PyTorch.

``plans/MODEL.json`` holds them. After a change that is meant to alter plans, ``pytest unit/planning/test_plans.py --rewrite-plans`` writes
the files anew, and their diff shows what the change does to which model.
"""

import json
from itertools import groupby
from pathlib import Path

import pytest

from prophet_mx.planning.orders import natural_places, orders
from prophet_mx.planning.rounds import Parameter, RoundPlanner
from prophet_mx.planning.unit_sizes import CollectiveCost, unit_bytes
from prophet_mx.planning.units import cut, groups
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.model_profiles import model_names, model_profile
from prophet_mx.sizes import Traffic
from support.profiles import transformer

HERE = Path(__file__).parent
PLANS = HERE / "plans"
MODELS = {
    **{name: model_profile(name) for name in model_names()},
    **{path.stem: GradientProfile.load(str(path)) for path in (HERE / "models").glob("*.json")},
    "transformer": transformer(layers=12, width=768, vocabulary=30_522, tokens=128),
}
COMPUTE = 0.15  # seconds of an iteration
ELEMENT = 4  # bytes
# What is measured at the start of a job: two workers and a server at 1 Gbit/s, and eight workers and four servers at 10 Gbit/s.
SERVERS = {
    "1 Gbit/s": Traffic([], rate=59e6, message=0.0004, workers=2, servers=1, grouped=True),
    "10 Gbit/s": Traffic([], rate=147e6, message=0.0002, workers=8, servers=4, grouped=True),
}
RINGS = {"1 Gbit/s": CollectiveCost(startup=0.0008, rate=115e6), "10 Gbit/s": CollectiveCost(startup=0.0002, rate=1.1e9)}


def plan_for_servers(profile, network):
    """Keys have the numbers that gluon.Trainer gives them, by the order of the parameters' names. A group has that of its first member."""
    place = {index: number for number, index in enumerate(sorted(range(len(profile.gradients)), key=lambda i: profile.gradients[i].name))}
    keys = sorted(place, key=place.__getitem__)
    traffic = network._replace(sizes=[profile.gradients[index].bytes for index in keys])
    unit = unit_bytes("prophet", traffic)
    slices = [cut(profile.gradients[index].bytes // ELEMENT, ELEMENT, unit) for index in keys]
    names = [profile.gradients[index].name for index in keys]
    sizes = [ELEMENT * parts[-1].stop for parts in slices]
    kinds = [0 if len(parts) == 1 else None for parts in slices]
    grouped = {members[0]: members for members in groups(sizes, kinds, natural_places(names), unit)}
    others = {member for members in grouped.values() for member in members[1:]}
    units = [
        (key, sum(sizes[member] for member in grouped[key]) if key in grouped else ELEMENT * (part.stop - part.start))
        for key, parts in enumerate(slices)
        if key not in others
        for part in parts
    ]
    ready = {place[index]: moment for index, moment in enumerate(profile.ready_times())}
    steps = [[place[index] for index in step] for step in profile.steps]
    carried = [(grouped.get(key, (key,)), size) for key, size in units]
    found = orders(carried, ready, steps, traffic.rate * traffic.servers)
    lines = []
    total = sorted(range(len(units)), key=found.positions.__getitem__)
    for _, run in groupby(enumerate(total), lambda pair: (units[pair[1]][0], pair[1] - pair[0], found.urgencies[pair[1]] - pair[0])):
        members = [unit for _, unit in run]
        key = units[members[0]][0]
        what = f"{len(members)} of {len(slices[key])} slices" if len(slices[key]) > 1 else "whole"
        if key in grouped:
            what = "with " + ", ".join(names[member] for member in grouped[key][1:])
        lines.append(f"{found.urgencies[members[0]]}: {names[key]}, {what}, {sum(units[unit][1] for unit in members)} bytes")
    return {"unit": unit, "units": len(units), "in total order, by urgency": lines}


def plan_for_a_ring(profile, cost):
    parameters = [Parameter(each.name, each.bytes, ELEMENT, "float32") for each in profile.gradients]
    plan = RoundPlanner(parameters, None).plan(profile, cost)
    lines = []
    for place in plan.order:
        ends = [plan.units[place].slices[0], plan.units[place].slices[-1]]
        names = [f"{profile.gradients[each.gradient].name}[{each.start}:{each.stop}]" for each in ends]
        what = names[0] if len(plan.units[place].slices) == 1 else f"{len(plan.units[place].slices)} pieces from {names[0]} to {names[1]}"
        lines.append(f"{place}: {what}, {plan.units[place].bytes} bytes")
    return {"units": len(plan.units), "in the order in which they start, by urgency": lines}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_plan_of_a_model_is_the_one_on_file(model, request):
    profile = MODELS[model].scaled(compute=COMPUTE)
    plan = {
        "mxnet": {name: plan_for_servers(profile, network) for name, network in SERVERS.items()},
        "pytorch": {name: plan_for_a_ring(profile, cost) for name, cost in RINGS.items()},
    }
    path = PLANS / f"{model}.json"
    if request.config.getoption("--rewrite-plans"):
        path.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    assert plan == json.loads(path.read_text(encoding="utf-8")), f"if this is meant: pytest {Path(__file__).name} --rewrite-plans"


def test_every_file_is_the_plan_of_a_model():
    assert {path.stem for path in PLANS.iterdir()} == set(MODELS) and len(MODELS) == 13
