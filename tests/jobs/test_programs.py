"""Random programs get with ScheduledKVStore, bit for bit, what they get with plain dist_sync; 'make fuzz-programs' runs more of them."""

import pytest

from programs.compare import failure
from programs.generator import drawn

# Together they have almost all dimensions; unit/test_programs.py shows that all are drawn.
SEEDS = (847, 1046, 490)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_sees_the_same_values_as_with_plain_dist_sync(seed):
    program = drawn(seed)
    found = failure(program)
    assert found is None, f"{found.kind}\n{program.text()}\n{found.text}"
