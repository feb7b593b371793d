"""The Plan of three small networks on every backend, as a table to read: plans/<backend>/<network>.txt.

In the files, `why` names a sentence of `SENTENCES`: another wording changes one line here and no file.
DETENT_UPDATE_PLANS=1 writes them anew; look at the difference before you keep it.
"""

import os
import re
from pathlib import Path

import pytest

from detent.planning import plan
from detent.targets import BACKENDS
from tests.planning.nets import DEFAULT, captured_model

PLANS = Path(__file__).parent / "plans"
NETWORKS = ("residual_cnn", "mobile_cnn", "transformer_block")

# What a plan may say about a tensor; {of} is a kind of operation or the name of a tensor.
SENTENCES = {
    "input_of": "input of {of}",
    "output_of": "output of {of}",
    "weight_of": "weight of {of}",
    "bias_of": "bias of {of}",
    "derived_bias": "scale of input times weight",
    "same_as": "same numbers as {of}",
    "scale_of": "one scale with {of}",
    "pairs": "pairs add up to 128 at most",
    "network_output": "network outputs stay float",
    "float_bias": "{backend} adds a float bias",
    "float_op": "{backend} does not quantize {of}",
    "float_input_of": "{backend} does not quantize what {of} takes in",
    "no_groups": "{of} inputs do not divide into groups of 32",
    "fused_into": "{backend} fuses it into {of}",
}


def name_sentences(why, backend):
    """The sentences of `why` by name: `weight of conv; pairs add ... (for a)` -> `weight_of(conv), pairs, for(a)`."""
    said, users = re.fullmatch(r"(.*?)(?: \(for (.+)\))?", why).groups()
    names = [_name_sentence(sentence, backend) for sentence in said.split("; ")]
    return ", ".join([*names, *([f"for({users})"] if users else [])])


def _name_sentence(sentence, backend):
    found = []
    for name, template in SENTENCES.items():
        pattern = re.escape(template).replace(r"\{of\}", r"([\w.]+)").replace(r"\{backend\}", re.escape(backend))
        if match := re.fullmatch(pattern, sentence):
            found.append(f"{name}({match[1]})" if match.groups() else name)
    assert len(found) == 1, f"{sentence!r} is {found or 'none'} of SENTENCES; it must be one"
    return found[0]


def printed_plan(backend, network):
    """`str(plan)` with the names of the sentences in its last column."""
    target = BACKENDS[backend]
    title, head, *rows = str(plan(captured_model(network, target.batch_norm), target, DEFAULT)).split("\n")
    why = head.index("why")
    named = [row if row.startswith("note: ") else row[:why] + name_sentences(row[why:], backend) for row in rows]
    return "\n".join([title, head, *named, ""])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plan_is_the_one_on_file(backend, network):
    found = printed_plan(backend, network)
    file = PLANS / backend / f"{network}.txt"
    if os.environ.get("DETENT_UPDATE_PLANS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    assert file.exists(), "DETENT_UPDATE_PLANS=1 writes it, to be read before it is kept"
    assert file.read_text() == found


def test_no_plan_is_left_of_a_backend_or_network_that_is_gone():
    on_file = {(file.parent.name, file.stem) for file in PLANS.rglob("*.txt")}
    assert on_file == {(backend, network) for backend in BACKENDS for network in NETWORKS}


def test_every_sentence_is_on_file():
    on_file = "\n".join(file.read_text() for file in PLANS.rglob("*.txt"))
    assert [name for name in SENTENCES if not re.search(rf"(?:  |, ){name}(?:\(|,|$)", on_file, re.M)] == []


@pytest.mark.parametrize(
    ("why", "named"),
    [
        ("input of conv", "input_of(conv)"),
        ("weight of conv; pairs add up to 128 at most", "weight_of(conv), pairs"),
        ("input of add (for add, add_1)", "input_of(add), for(add, add_1)"),
        ("same numbers as layer1.0_relu", "same_as(layer1.0_relu)"),
        ("openvino does not quantize gelu", "float_op(gelu)"),
        ("openvino does not quantize what gelu takes in", "float_input_of(gelu)"),
    ],
)
def test_a_sentence_has_a_name(why, named):
    assert name_sentences(why, "openvino") == named


@pytest.mark.parametrize("why", ["", "input of conv;", "ncnn adds a float bias", "input of a conv"])
def test_a_sentence_that_is_not_in_the_table_fails(why):
    with pytest.raises(AssertionError, match="none of SENTENCES"):
        name_sentences(why, "openvino")
