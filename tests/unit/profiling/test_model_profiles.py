"""The profiles that ship."""

import pytest

from prophet_mx.errors import ProfileError
from prophet_mx.profiling.model_profiles import model_names, model_profile


@pytest.mark.parametrize(
    "name, model",
    [
        ("vgg16", "vgg16"),
        ("ResNet-50", "resnet50_v1"),
        ("mobilenet_v2", "mobilenetv2_1.0"),
        ("i", "inceptionv3"),
        ("BERT", "bert_base"),
        ("DenseNet-121", "densenet121"),
    ],
)
def test_a_model_is_found_as_people_write_its_name(name, model):
    profile = model_profile(name)
    assert profile.name == model and profile.compute_seconds == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    "name, allowed",
    [("resnet", "resnet152_v1, resnet18_v1, resnet50_v1"), ("gpt", ", ".join(model_names())), ("", "bert_base, "), ("-", "bert")],
)
def test_a_name_of_no_model_or_of_several_is_refused_with_those_that_there_are(name, allowed):
    with pytest.raises(ProfileError) as caught:
        model_profile(name)
    assert str(caught.value).startswith(f"model {name!r} is not allowed; allowed: {allowed}")
