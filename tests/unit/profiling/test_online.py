"""The learned profile follows the keys of a job: layers that are unfrozen, buckets that come later, a saved profile of some of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.online import ProfileLearner

SPACING = 0.01  # seconds between two gradients of a job's backward


class Driver:
    """Keeps what the learner would hand to the compiled scheduler, and gives it ready events."""

    def __init__(self):
        self.recording, self.events, self.step_of, self.due = True, [], None, None

    def record(self, recording):
        self.recording = recording
        if recording:
            self.events = []

    def take_events(self):
        taken, self.events = self.events, []
        return taken

    def set_steps(self, step_of, due):
        self.step_of, self.due = step_of, due


class Job:
    """A job that pushes some of six layers in each iteration; a layer's only unit has its number. Backward begins with the last layer."""

    def __init__(self, layers=6, warmup=3):
        self.driver = Driver()
        self.learner = ProfileLearner(self.driver, warmup)
        self.layers, self.iteration = layers, 0

    def run(self, pushed, times=1, spacing=SPACING):
        names, sizes = {g: f"layer{g}" for g in range(self.layers)}, dict.fromkeys(range(self.layers), 100)
        for _ in range(times):
            self.learner.iteration_begins(self.iteration, names, sizes)
            if self.driver.recording:
                self.driver.events += [(self.iteration, g, 1.0 * self.iteration + (self.layers - g) * spacing) for g in pushed]
            self.iteration += 1

    def consistent(self):
        """What is handed out is of the profile's gradients, each with its own time."""
        if self.learner.profile is None:
            return
        ready = self.learner.ready_times()
        assert {f"layer{g}": time for g, time in ready.items()} == {
            gradient.name: time for gradient, time in zip(self.learner.profile.gradients, self.learner.profile.ready_times())
        }
        assert sorted(g for step in self.learner.steps() for g in step) == sorted(ready)
        for g, step in enumerate(self.driver.step_of):
            assert (step >= 0) == (g in ready)
            if step >= 0:
                assert g in self.learner.steps()[step]


def test_unfrozen_layers_join_the_profile_within_a_few_iterations():
    job = Job()
    job.run([3, 4, 5], 20)
    assert set(job.learner.ready_times()) == {3, 4, 5}
    for _ in range(20):
        job.run(range(6))
        job.consistent()
    ready = job.learner.ready_times()
    assert [round(ready[g], 6) for g in range(6)] == [0.05, 0.04, 0.03, 0.02, 0.01, 0.0]


def test_a_profile_goes_on_following_when_layers_are_frozen_again():
    job = Job()
    job.run(range(6), 20)
    job.run([3, 4, 5], 100, spacing=2 * SPACING)
    job.consistent()
    ready = job.learner.ready_times()
    assert ready[3] - ready[5] == pytest.approx(4 * SPACING, rel=0.2)
    assert set(ready) == set(range(6))


def test_a_saved_profile_of_some_keys_is_extended():
    job = Job()
    saved = GradientProfile.from_samples("job", ["layer4", "layer5"], [100, 100], [[SPACING, 0.0]] * 3)
    assert job.learner.use(saved, {f"layer{g}": g for g in range(6)})
    job.consistent()
    job.run(range(6), 20)
    job.consistent()
    assert set(job.learner.ready_times()) == set(range(6))
    assert job.learner.profile is not saved


def test_buckets_that_share_no_key():
    job = Job()
    job.run([0, 1], 10)
    job.run([4, 5], 10)
    job.run([2, 3], 14)
    job.consistent()
    assert set(job.learner.ready_times()) == set(range(6))


def even(ready):
    return {g: round(time, 6) for g, time in ready.items()} == {g: round((5 - g) * SPACING, 6) for g in range(6)}


def test_the_very_first_iteration_is_not_learned():
    """It allocates memory, and compiles."""
    job = Job(warmup=1)
    job.run(range(6), 1, spacing=7 * SPACING)
    job.run(range(6), 6)
    assert even(job.learner.ready_times())


def test_an_iteration_is_learned_when_it_is_over_though_its_end_comes_while_the_next_one_is_pushed():
    job = Job(warmup=1)
    names, sizes = {g: f"layer{g}" for g in range(6)}, dict.fromkeys(range(6), 100)
    for iteration in range(8):
        job.learner.iteration_begins(iteration, names, sizes)
        ready = [(number, g, number + (6 - g) * SPACING) for number in (iteration - 1, iteration) for g in range(6) if number >= 0]
        job.driver.events += [(number, g, time) for number, g, time in ready if (g < 2) == (number < iteration)]
        assert job.learner.profile is None or even(job.learner.ready_times()), iteration
    assert job.learner.profile is not None


def test_a_gradient_is_ready_with_the_last_of_its_units():
    """Whatever the order in which they are told, and however long the first of a large gradient are there before."""
    job = Job(warmup=1)
    names, sizes = {g: f"layer{g}" for g in range(6)}, dict.fromkeys(range(6), 100)
    for iteration in range(8):
        job.learner.iteration_begins(iteration, names, sizes)
        for g in range(6):
            times = [iteration + (6 - g) * SPACING - early * g for early in (0.002, 0.0, 0.001)]
            job.driver.events += [(iteration, g, time) for time in times]
    assert even(job.learner.ready_times())


@settings(max_examples=60)
@given(st.integers(1, 4), st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=60))
def test_whatever_keys_an_iteration_pushes(warmup, iterations):
    job = Job(warmup=warmup)
    for pushed in iterations:
        job.run(pushed)
        job.consistent()
    job.run(range(6), 2 * warmup + 15)
    job.consistent()
    assert set(job.learner.ready_times()) == set(range(6))
