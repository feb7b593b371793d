"""Rotations: the same function in float, channels without outliers, and what is left as it is."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import rotate
from detent.algorithms.common.floating import as_float, remember_float
from detent.algorithms.rotate_core import read_turned, rotation, write_turned
from detent.errors import RecipeError

DIM = 32


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim, 1e-5)
        self.up, self.gate, self.down = nn.Linear(dim, 64), nn.Linear(dim, 64), nn.Linear(64, dim)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(torch.sigmoid(self.gate(y)) * self.up(y))


class Stream(nn.Module):
    """A residual stream with outliers in two channels, as language models have."""

    def __init__(self, dim=DIM, ties=False):
        super().__init__()
        self.words = nn.Embedding(40, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, 40, bias=False)
        with torch.no_grad():
            self.words.weight[:, [3, 7]] *= 30
            for norm in (self.norm, *(block.norm for block in self.blocks)):
                norm.weight.uniform_(0.5, 2)
        if ties:
            self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def prepared_for(net, recipe="ptq", batches=None):
    batches = batches or tokens()
    return detent.prepare(net.eval(), (batches[0],), backend="academic_nlp", recipe=recipe), batches


def tokens():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 40, (8, 6), generator=generator) for _ in range(4)]


@pytest.mark.parametrize("size", [1, 2, 12, 64, 60])
def test_a_rotation_is_orthogonal_and_flat_where_it_is_hadamards(size):
    turn = rotation(size, seed=3)
    assert torch.allclose(turn @ turn.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
    if size & (size - 1) == 0:
        assert torch.allclose(turn.abs(), torch.full_like(turn, size**-0.5), atol=1e-12)
    assert (size < 12) or not torch.equal(turn, rotation(size, seed=4))


def test_the_core_is_the_formula():
    turn, gain = rotation(8, seed=0), torch.rand(8) + 0.5
    x, reader, writer = torch.randn(5, 8), torch.randn(3, 8), torch.randn(8, 4)
    turned = write_turned(x, turn)
    torch.testing.assert_close(turned @ read_turned(reader, gain, turn).T, (x * gain) @ reader.T)
    y = torch.randn(5, 4)
    torch.testing.assert_close(y @ write_turned(writer.T, turn), write_turned(y @ writer.T, turn))


@pytest.mark.parametrize("dim", [32, 24], ids=["hadamard", "mixed"])
def test_the_float_network_stays_the_same_and_outliers_go(dim):
    torch.manual_seed(0)
    net = Stream(dim)
    prepared, batches = prepared_for(net)
    report = rotate(prepared, batches)
    assert report.outputs.kept
    assert [change.kept for change in report.changes] == [True]
    assert report.skipped == {}
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(batches[0]), net(batches[0]), rtol=1e-5, atol=1e-5)
    assert torch.equal(prepared.norm.weight, torch.ones(dim)), "gains are in the layers behind"
    before, after = (
        float(w.detach().abs().max() / w.detach().abs().mean())
        for w in (net.words.weight, prepared.words.parametrizations.weight.original)
    )
    assert after < before / 2


def test_fewer_bits_lose_less():
    torch.manual_seed(0)
    net = Stream()
    noise = {}
    for name, algorithms in (
        ("plain", []),
        ("rotated", [{"name": "rotate"}]),
        ("both", [{"name": "rotate"}, {"name": "gptq"}]),
    ):
        recipe = {
            "name": name,
            "weight": {"quantizer": "fixed", "bits": 4},
            "activation": {"quantizer": "fixed", "bits": 4},
        }
        prepared, batches = prepared_for(net, detent.recipes.Recipe.from_dict({**recipe, "algorithms": algorithms}))
        detent.calibrate(prepared, batches)
        with torch.no_grad():
            noise[name] = float((prepared.eval()(batches[3]) - net(batches[3])).square().mean())
    assert noise["rotated"] < noise["plain"] / 2
    assert noise["both"] < noise["plain"] / 2


class Watched(Stream):
    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)), x.mean()


class Twice(Stream):
    def forward(self, ids):
        x = self.blocks[0](self.blocks[0](self.words(ids)))
        return self.head(self.norm(x))


class Normed(Stream):
    def forward(self, ids):
        return self.norm(self.blocks[0](self.words(ids)))


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (lambda: Watched(), "reads it without a norm"),
        (lambda: Twice(), "called more than once"),
        (lambda: Normed(), "no linear layer"),
        (lambda: Stream(ties=True), "share a weight"),
    ],
    ids=["another-reader", "called-twice", "no-layer-behind", "tied"],
)
def test_what_cannot_be_turned_stays_as_it_is(net, reason):
    torch.manual_seed(0)
    net = net()
    prepared, batches = prepared_for(net)
    before = {name: value.clone() for name, value in prepared.named_parameters() if "scale" not in name}
    report = rotate(prepared, batches)
    assert report.changes == ()
    assert reason in next(iter(report.skipped.values()))
    assert all(torch.equal(before[name], value) for name, value in prepared.named_parameters() if name in before)


def test_an_algorithm_before_it_is_refused():
    torch.manual_seed(0)
    prepared, batches = prepared_for(Stream())
    detent.calibrate(prepared, batches)
    remember_float(prepared, prepared.head.parametrizations.weight.original)  # as algorithms do that write to it
    with pytest.raises(RecipeError, match="run rotate first"):
        rotate(prepared, batches)


class Attention(nn.Module):
    """Two heads of keys and values for four of queries."""

    def __init__(self, how="heads"):
        super().__init__()
        self.words, self.how = nn.Embedding(40, DIM), how
        self.q, self.k, self.v = nn.Linear(DIM, 32), nn.Linear(DIM, 16), nn.Linear(DIM, 16)
        self.o, self.head = nn.Linear(32, DIM), nn.Linear(DIM, 40)

    def forward(self, ids):
        x = self.words(ids)
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (2, 8)).transpose(1, 2)[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)
        v = self.v(x)
        v = v.unflatten(-1, (8, 2)).transpose(-1, -2) if self.how == "mixed" else v.unflatten(-1, (2, 8))
        v = v.transpose(1, 2)[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2)
        v = torch.relu(v) if self.how == "relu" else v
        y = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        return self.head(self.o(y.transpose(1, 2).flatten(2)))


def test_the_values_of_each_head_are_turned():
    torch.manual_seed(0)
    net = Attention()
    with torch.no_grad():
        net.v.weight[[3, 9]] *= 20  # one channel of each head is large
    prepared, batches = prepared_for(net)
    report = rotate(prepared, batches)
    assert [(change.place, change.kept) for change in report.changes] == [("the heads of o, 8 channels each", True)]
    assert report.skipped == {}
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(batches[0]), net(batches[0]), rtol=1e-4, atol=1e-5)
    turn = rotation(8, seed=0)
    x, words = torch.randn(5, DIM), slice(8, 16)
    torch.testing.assert_close(
        nn.functional.linear(x, prepared.v.parametrizations.weight.original, prepared.v.bias)[:, words],
        write_turned(net.v(x)[:, words], turn),
    )
    before, after = (float(one.detach().abs().amax(1).max() / one.detach().abs().amax(1).median()) for one in (
        net.v.weight, prepared.v.parametrizations.weight.original))  # fmt: skip
    assert after < before / 4


@pytest.mark.parametrize(("how", "reason"), [("mixed", "not laid out head by head"), ("relu", None)])
def test_other_values_stay_as_they_are(how, reason):
    torch.manual_seed(0)
    net = Attention(how)
    prepared, batches = prepared_for(net)
    report = rotate(prepared, batches)
    assert report.changes == ()
    assert report.skipped == ({} if reason is None else {"o": f"what it reads is {reason}"})
    assert torch.equal(prepared.v.parametrizations.weight.original, net.v.weight)
    assert torch.equal(prepared.o.parametrizations.weight.original, net.o.weight)
