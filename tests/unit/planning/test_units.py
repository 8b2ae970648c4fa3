"""How gradients become units: the slices of a gradient, and what travels together."""

import doctest
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import planning
from prophet_mx.planning.orders import static_order
from prophet_mx.planning.unit_sizes import GROWTH, CollectiveCost, UnitSizes, collective_sizes, fixed_sizes
from prophet_mx.planning.units import GROUP_MEMBERS, Member, cut, groups, partition, together

RATES = st.floats(1e3, 1e11)
MEMBERS = st.tuples(st.integers(0, 5000), st.sampled_from([2, 4, 8]), st.integers(0, 2), st.integers(0, 9), st.floats(0, 1))
GRADIENTS = st.lists(MEMBERS.map(lambda drawn: Member(drawn[0] * drawn[1], *drawn[1:])), max_size=30)
SIZES = st.builds(
    lambda least, more, turn: UnitSizes(least, least + more, turn), st.integers(1, 20_000), st.integers(0, 40_000), st.floats(0, 1)
)
LAYERS = st.lists(st.integers(1, 200_000).map(lambda count: 4 * count), min_size=1, max_size=30)


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(planning.units)
    assert tried.attempted >= 5 and tried.failed == 0


@given(elements=st.integers(0, 10_000), element_bytes=st.sampled_from([2, 4, 8]), unit=st.integers(0, 50_000))
def test_slices_are_the_gradient_in_pieces_of_about_a_unit(elements, element_bytes, unit):
    slices = cut(elements, element_bytes, unit)
    assert slices[0].start == 0 and slices[-1].stop == elements
    assert all(one.stop == other.start for one, other in zip(slices, slices[1:]))
    lengths = [part.stop - part.start for part in slices]
    assert max(lengths) - min(lengths) <= 1
    if unit == 0:
        assert len(slices) == 1
    elif len(slices) > 1:
        assert min(lengths) > 0 and (max(lengths) - 1) * element_bytes <= unit


@given(
    elements=st.integers(0, 10_000_000),
    element_bytes=st.sampled_from([2, 4, 8]),
    unit=st.integers(32_000, 4_000_000),
    most=st.integers(16_000, 1_000_000),
)
def test_no_slice_reaches_the_number_of_elements_that_mxnet_spreads_over_servers(elements, element_bytes, unit, most):
    slices = cut(elements, element_bytes, unit, most)
    assert slices[0].start == 0 and slices[-1].stop == elements and all(one.stop == other.start for one, other in zip(slices, slices[1:]))
    assert max(part.stop - part.start for part in slices) <= most


@given(sizes=st.lists(st.integers(1, 1000)), least=st.integers(1, 3000))
def test_neighbours_together_have_enough_and_no_fewer_would(sizes, least):
    counts = together(sizes, least)
    assert sum(counts) == len(sizes) and all(counts)
    groups = [[sizes.pop(0) for _ in range(count)] for count in counts]
    if len(groups) > 1:
        assert all(sum(group) >= least for group in groups)
        assert all(sum(group[:-1]) < least for group in groups[:-1])


def test_the_smallest_units_of_a_huge_gradient_are_a_million():
    assert len(cut(2**40, 4, 4)) == 2**20


@given(GRADIENTS, SIZES, RATES)
def test_every_element_travels_once_and_each_gradient_and_unit_is_one_range_of_the_flat_array_of_its_kind(gradients, sizes, rate):
    layout = defaultdict(list)
    for each in partition(gradients, sizes, rate):
        assert each.slices and {gradients[piece.gradient].kind for piece in each.slices} == {each.kind}
        assert each.bytes == sum((piece.stop - piece.start) * gradients[piece.gradient].itemsize for piece in each.slices)
        layout[each.kind] += each.slices
    laid = []
    for pieces in layout.values():
        place = None
        for piece in pieces:
            if piece.start == 0:
                assert place is None or place.stop * gradients[place.gradient].itemsize == gradients[place.gradient].bytes
                laid.append(piece.gradient)
            else:
                assert (piece.gradient, piece.start) == (place.gradient, place.stop)
            place = piece
        assert place.stop * gradients[place.gradient].itemsize == gradients[place.gradient].bytes
    assert sorted(laid) == list(range(len(gradients)))


@given(GRADIENTS, SIZES, RATES)
def test_a_unit_is_as_urgent_as_its_most_urgent_gradient_and_ready_with_its_last(gradients, sizes, rate):
    units = partition(gradients, sizes, rate)
    assert [each.urgency for each in units] == sorted(each.urgency for each in units)
    for each in units:
        members = [gradients[piece.gradient] for piece in each.slices]
        assert each.urgency == min(member.urgency for member in members)
        assert each.ready == max(member.ready for member in members)


@given(GRADIENTS, SIZES, RATES)
def test_units_are_no_larger_than_one_and_a_half_times_what_is_asked_for(gradients, sizes, rate):
    """But for an element, as slices are of whole ones."""
    for each in partition(gradients, sizes, rate):
        assert each.bytes <= 1.5 * sizes.most + max(gradients[piece.gradient].itemsize for piece in each.slices)


def neighbours(gradients, sizes, rate):
    """Pairs of units of one kind, of which the first comes just before the second."""
    by_kind = defaultdict(list)
    for each in partition(gradients, sizes, rate):
        by_kind[each.kind].append(each)
    return [pair for units in by_kind.values() for pair in zip(units, units[1:])]


@given(GRADIENTS, SIZES, RATES)
def test_what_fits_into_the_smallest_unit_does_not_travel_apart(gradients, sizes, rate):
    for one, other in neighbours(gradients, sizes, rate):
        spare = max(gradients[piece.gradient].itemsize for piece in one.slices + other.slices)  # slices are of whole elements
        assert one.bytes + other.bytes > sizes.least - spare


@given(GRADIENTS, SIZES, RATES)
def test_what_is_little_does_not_travel_alone_beside_what_it_could_go_with(gradients, sizes, rate):
    for one, other in neighbours(gradients, sizes, rate):
        parted = one.slices[-1].gradient == other.slices[0].gradient  # slices of one gradient
        assert parted or min(one.bytes, other.bytes) > sizes.least / 8 or one.bytes + other.bytes > 1.5 * sizes.most


@given(st.integers(10_000, 10_000_000), st.floats(0.1, 10), st.floats(0, 0.01))
def test_units_shrink_towards_the_end_of_backward_and_grow_from_there_on(count, turn, startup):
    """One large gradient is there from the beginning, and travels before and after the last one becomes ready."""
    gradients = [Member(4, 4, 0, 0, turn), Member(4 * count, 4, 0, 1, 0.0)]
    cost = CollectiveCost(startup, 1e7)
    sizes = collective_sizes(cost, turn)
    [_, *slices] = units = partition(gradients, sizes, cost.rate)
    if len(units[0].slices) > 1:
        slices = units
    begin = 0.0
    for each in slices:
        allowed = max(sizes.least, min(sizes.most, cost.rate * abs(turn - begin) / GROWTH))
        assert each.bytes <= 1.5 * allowed + 8
        if each is not slices[-1]:  # which takes what is left
            assert each.bytes >= 0.99 * allowed - 8
        begin += each.bytes / cost.rate


@given(LAYERS, st.floats(0.1, 3))
def test_nothing_that_starts_before_the_end_of_backward_is_long_in_the_way_of_what_comes_last(layers, rho):
    """Backward takes as long for each byte; the last layer's gradients are there first. Sizes are those for an ideal link, from which one
    that does not interrupt what it sends may be some units away."""
    rate = 1e6
    ready = [sum(layers[place:]) / rate / rho for place in range(len(layers))]
    gradients = [Member(size, 4, 0, rank, moment) for rank, (size, moment) in enumerate(zip(layers, ready))]
    cost = CollectiveCost(0.02, rate)
    sizes = collective_sizes(cost, max(ready))
    units = partition(gradients, sizes, rate)
    clock = 0.0
    for index in static_order(units, cost):
        start = max(clock, units[index].ready)
        clock = start + cost.seconds(units[index].bytes)
        if start < sizes.turn:
            assert clock - sizes.turn <= 1.5 * sizes.least / rate + sizes.turn / 8


def test_slices_of_one_gradient_do_not_travel_together_and_a_small_neighbour_goes_with_one():
    big, small = Member(9600, 4, 0, 0, 0.5), Member(400, 4, 0, 1, 0.4)
    units = partition([big, small], fixed_sizes(4000), 1e6)
    assert [len(each.slices) for each in units] == [1, 2] and units[-1].slices[-1].gradient == 1


def test_small_gradients_share_one_unit():
    gradients = [Member(400, 4, 0, rank, 0.5) for rank in range(10)]
    [one] = partition(gradients, fixed_sizes(4000), 1e6)
    assert [piece.gradient for piece in one.slices] == list(range(10))
    assert len(partition(gradients, fixed_sizes(2000), 1e6)) == 2


@given(GRADIENTS, SIZES, RATES)
def test_the_same_numbers_give_the_same_units(gradients, sizes, rate):
    assert partition(list(gradients), sizes, rate) == partition(tuple(gradients), sizes, rate)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(["float16", "float32", None]), st.integers(0, 40)), max_size=60),
    st.integers(1, 20_000),
    st.integers(1, 5000),
)
def test_groups_are_of_small_neighbours_of_one_kind_and_few_enough_for_one_server(gradients, unit, most):
    width = {"float16": 2, "float32": 4, None: 4}
    sizes = [count * width[kind] for count, kind, _ in gradients]
    kinds, urgency = [kind for _, kind, _ in gradients], [place for _, _, place in gradients]
    found = groups(sizes, kinds, urgency, unit, most)
    members = [member for group in found for member in group]
    assert len(members) == len(set(members))
    small = sorted((index for index, size in enumerate(sizes) if 0 < size <= unit / 2), key=lambda index: (urgency[index], index))
    for group in found:
        [kind] = {kinds[member] for member in group}
        assert 2 <= len(group) <= GROUP_MEMBERS and kind is not None
        assert sum(sizes[member] for member in group) <= unit
        assert sum(sizes[member] // width[kinds[member]] for member in group) + len(group) <= most
        alike = [index for index in small if kinds[index] == kind]
        first = alike.index(group[0])
        assert list(group) == alike[first : first + len(group)]
        urgent = sum(sizes[index] for index in range(len(sizes)) if (urgency[index], index) < (urgency[group[0]], group[0]))
        assert sum(sizes[member] for member in group) <= max(unit / 8 + urgent / 4, sizes[group[0]])
