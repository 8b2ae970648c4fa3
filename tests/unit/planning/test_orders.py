"""When two orders differ."""

from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning.orders import Orders, differ


@given(st.integers(20, 200).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(0, n - 1), st.integers(0, n - 1))))
def test_orders_differ_if_a_unit_is_over_a_twentieth_away(drawn):
    places, source, target = drawn
    moved = list(places)
    moved.insert(target, moved.pop(source))
    far = max(abs(a - b) for a, b in zip(places, moved)) > len(places) / 20
    same = list(range(len(places)))
    assert differ(Orders(places, same), Orders(moved, same)) == differ(Orders(same, places), Orders(same, moved)) == far
