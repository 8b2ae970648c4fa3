"""Profiles of MXNet's model zoo: sizes known from the literature, compute split sensibly, files that can be made again."""

import math

import pytest

from benchmarks.profiles import STANDARD, build_profile, main
from prophet_mx.errors import ProfileError
from prophet_mx.planning.bound import rho
from prophet_mx.profiling.gradient_profile import GradientProfile
from support.profiles import DATA

# Learned parameters in millions, arrays. Gluon's ResNet v1 has biases in the 1x1 convolutions of its bottlenecks.
KNOWN = {
    "resnet18_v1": (11.69, 62),
    "resnet50_v1": (25.58, 161 + 32),
    "resnet50_v2": (25.55, None),
    "vgg16": (138.36, 32),
    "mobilenetv2_1.0": (3.50, None),
    "alexnet": (61.10, 16),
    "densenet121": (7.98, 364),
    "vgg19": (143.67, 38),
    "bert_base": (110.11, None),  # with the heads of its pretraining
    "transformer_base": (63.08, None),
}


@pytest.mark.parametrize("model", KNOWN)
def test_sizes_are_those_of_the_models(model):
    millions, arrays = KNOWN[model]
    profile = build_profile(model)
    assert profile.total_bytes / 4e6 == pytest.approx(millions, abs=0.006)
    assert arrays in (None, len(profile.gradients))


@pytest.mark.parametrize("model", STANDARD)
def test_the_stored_profiles_are_what_the_script_makes(model):
    assert build_profile(model) == GradientProfile.load(str(DATA / f"{model}.json"))


def test_a_profile_does_not_depend_on_what_was_built_before():
    assert build_profile("alexnet") == build_profile("alexnet")


def test_forward_order_and_compute_of_resnet18():
    profile = build_profile("resnet18_v1", compute=0.9)
    names = [gradient.name for gradient in profile.gradients]
    assert names[:3] == ["conv0_weight", "batchnorm0_gamma", "batchnorm0_beta"]
    assert names[-2:] == ["dense0_weight", "dense0_bias"]
    assert not any("running" in name for name in names)
    assert len(profile.steps) == 5  # as many bursts as MXNet makes of it
    assert profile.compute_seconds == pytest.approx(0.9, rel=1e-4)
    for gradient in profile.gradients:
        assert gradient.backward == pytest.approx(2 * gradient.forward, abs=3e-8)
    # Two 3x3 convolutions of 64 channels at 56x56 and of 512 at 7x7 take equally many operations.
    first, last = (profile.gradients[names.index(name)].forward for name in ("stage1_conv0_weight", "stage4_conv1_weight"))
    assert first == pytest.approx(last, rel=1e-3)


def test_convolutions_take_most_of_resnet50_and_hardly_any_of_the_batch_changes_that():
    profile, single = build_profile("resnet50_v1"), build_profile("resnet50_v1", batch=1)
    convolutions = math.fsum(g.forward + g.backward for g in profile.gradients if "conv" in g.name)
    assert 0.8 < convolutions / profile.compute_seconds < 1
    assert [g.forward for g in profile.gradients] == pytest.approx([g.forward for g in single.gradients], abs=1e-4)


def test_all_gradients_of_an_operator_are_ready_in_one_step():
    for steps in (1, 3, 7, 16):
        profile = build_profile("vgg16", steps=steps)
        assert len(profile.steps) == steps
        where = {profile.gradients[index].name: step for step, indices in enumerate(profile.steps) for index in indices}
        assert all(where[name] == where[name[: -len("weight")] + "bias"] for name in where if name.endswith("weight"))
        assert list(profile.step_times()) == sorted(profile.step_times())
    assert len(build_profile("vgg16").steps) == 4


def test_what_the_zoo_cannot_do_is_a_profile_error():
    for arguments in (
        dict(model="resnet51_v1"),
        dict(model="alexnet", steps=9),
        dict(model="alexnet", steps=0),
        dict(model="inceptionv3", image=32),
        dict(model="alexnet", batch=0),
        dict(model="bert_base", image=224),
        dict(model="alexnet", compute=float("nan")),
    ):
        with pytest.raises(ProfileError):
            build_profile(**arguments)


def test_the_command_line_scales(tmp_path, capsys):
    path = str(tmp_path / "half.json")
    assert main(["resnet18_v1", "--out", path, "--compute", "900ms", "--scale", "0.5", "--steps", "7"]) == 0
    half = GradientProfile.load(path)
    assert half.total_bytes == pytest.approx(11.69e6 * 2, rel=1e-3)
    assert half.compute_seconds == pytest.approx(0.9, rel=1e-4) and len(half.steps) == 7
    assert main(["resnet18_v1", "--out", path, "--rho", "2", "--rate", "59MB"]) == 0
    assert rho(GradientProfile.load(path), 59e6) == pytest.approx(2, rel=1e-3)
    assert main(["resnet51_v1", "--out", path]) == 1
    assert "resnet51_v1" in capsys.readouterr().err
