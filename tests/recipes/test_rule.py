"""Which layers a rule means, and what it asks for them."""

import pytest

from detent.errors import RecipeError
from detent.recipes import Match, Rule, TensorRequest


@pytest.mark.parametrize(
    ("match", "name", "kind", "answer"),
    [
        pytest.param({"name": "layer1.*"}, "layer1.0.conv1", "conv", True, id="star-takes-dots"),
        pytest.param({"name": "layer1"}, "layer1.0", "conv", False, id="all-of-the-name"),
        pytest.param({"name": "Layer1.*"}, "layer1.0", "conv", False, id="case-counts"),
        pytest.param({"name": "layer?.conv[12]"}, "layer3.conv2", "conv", True, id="one-letter"),
        pytest.param({"name": "layer?.conv[12]"}, "layer3.conv3", "conv", False, id="not-that-letter"),
        pytest.param({"kind": "conv*"}, "up", "conv_transpose", True, id="kind"),
        pytest.param({"kind": "conv"}, "up", "conv_transpose", False, id="not-that-kind"),
        pytest.param({"name": "up", "kind": "conv"}, "up", "linear", False, id="both-must-fit"),
        pytest.param({"name": "up", "kind": "linear"}, "up", "linear", True, id="both-fit"),
    ],
)
def test_match(match, name, kind, answer):
    assert Match(**match).matches(name, kind) is answer


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ({"name": "fc"}, "name 'fc'"),
        ({"kind": "conv"}, "kind 'conv'"),
        ({"kind": "conv", "name": "fc"}, "name 'fc' and kind 'conv'"),
    ],
)
def test_a_match_prints_as_a_person_would_say_it(match, text):
    assert str(Match(**match)) == text


def test_quantize_of_a_rule_speaks_for_every_tensor_that_does_not_say_otherwise():
    rule = Rule(match=Match(name="fc"), weight=TensorRequest(bits=4, quantize=True), quantize=False)
    assert rule.request("weight") == TensorRequest(bits=4, quantize=True)
    assert rule.request("activation") == TensorRequest(quantize=False)
    assert Rule(match=Match(name="fc")).request("bias") == TensorRequest()


@pytest.mark.parametrize(
    ("given", "asked", "found", "to_do"),
    [
        pytest.param({}, "match", "it is missing", "add it", id="no-match"),
        pytest.param(
            {"match": {}},
            "match = {}",
            "it has neither name nor kind",
            "add a name glob, a kind glob, or both",
            id="empty-match",
        ),
        pytest.param(
            {"match": "fc"}, "match = 'fc'", "it is a str", "give a mapping with keys of name, kind", id="word-match"
        ),
        pytest.param(
            {"match": {"nmae": "fc"}},
            "match.nmae = 'fc'",
            "no such key; known: name, kind",
            "did you mean 'name'?",
            id="misspelt-name",
        ),
        pytest.param(
            {"match": {"name": ""}}, "match.name = ''", "it is empty", "give at least one character", id="empty-name"
        ),
        pytest.param({"match": {"kind": 3}}, "match.kind = 3", "it is a int", "give text", id="kind-number"),
        pytest.param(
            {"match": {"name": "fc"}, "wieght": {}},
            "wieght = {}",
            "no such key; known: match, weight, activation, bias, quantize",
            "did you mean 'weight'?",
            id="misspelt-role",
        ),
        pytest.param(
            {"match": {"name": "fc"}, "weight": {"bits": "4"}},
            "weight.bits = '4'",
            "it is a str",
            "give an integer",
            id="inside-a-request",
        ),
    ],
)
def test_a_mistake_is_refused(given, asked, found, to_do, refuses):
    with refuses(RecipeError, f"Rule: {asked}", found, to_do):
        Rule(**given)
