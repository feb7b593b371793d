"""Checkpoints of compressed-tensors: what they hold, what that package unpacks, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from safetensors.torch import load as load_torch
from safetensors.torch import save as save_torch
from torch import nn

import detent
from detent.errors import ArtifactError, DeployError
from detent.targets.compressed_tensors.file import CONFIG, FILE, read_packed
from detent.verification.vendor_files import vendor_disagreements
from tests.targets.gguf.llama import TOKENS, Llama


@pytest.fixture(scope="module", params=["w4g32", "w8"])
def artifact(request, tmp_path_factory):
    torch.manual_seed(0)
    prepared = detent.prepare(Llama().eval(), (TOKENS,), backend="compressed_tensors", recipe=request.param)
    detent.calibrate(prepared, [TOKENS])
    return detent.deploy(prepared, tmp_path_factory.mktemp("made") / "out")


def test_the_checkpoint_holds_what_was_simulated(artifact):
    assert list(vendor_disagreements(artifact)) == []
    tensors, config = load((artifact.folder / FILE).read_bytes()), json.loads((artifact.folder / CONFIG).read_text())
    assert tensors["embed_tokens.weight"].shape == (40, 256)
    assert tensors["layers.0.mlp.down_proj.weight_scale"].shape == (256, 9)
    asked = config["quantization_config"]
    assert (asked["quant_method"], asked["format"], asked["ignore"]) == ("compressed-tensors", "pack-quantized", [])
    (group,) = asked["config_groups"].values()
    bits = group["weights"]["num_bits"]
    assert len(group["targets"]) == 8
    assert tensors["layers.0.mlp.down_proj.weight_packed"].shape == (256, 288 * bits // 32)
    assert config["model_type"] == "llama"


def test_weights_of_e4m3(tmp_path):
    torch.manual_seed(0)
    prepared = detent.prepare(Llama().eval(), (TOKENS,), backend="compressed_tensors", recipe="fp8")
    detent.calibrate(prepared, [TOKENS])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert list(vendor_disagreements(artifact)) == []
    content = (artifact.folder / FILE).read_bytes()
    tensors, asked = load_torch(content), json.loads((artifact.folder / CONFIG).read_text())["quantization_config"]
    assert asked["format"] == "float-quantized"
    assert tensors["lm_head.weight"].dtype == torch.float8_e4m3fn
    real = tensors["lm_head.weight"].float() * tensors["lm_head.weight_scale"]
    assert torch.equal(real, prepared.lm_head.weight)
    tensors["lm_head.weight"].view(torch.uint8)[0, 0] ^= 1
    (artifact.folder / FILE).write_bytes(save_torch(tensors, metadata={"detent.prefix": ""}))
    assert list(vendor_disagreements(artifact)) == [f"lm_head.weight: {FILE} has other numbers than model.onnx"]


class ByInputs(nn.Module):
    """As transformers' Conv1D."""

    def __init__(self):
        super().__init__()
        self.config = Llama().config
        self.weight = nn.Parameter(torch.randn(64, 32))

    def forward(self, x):
        return x @ self.weight


class Shifted(nn.Module):
    """As Gemma's norms: the network has the constant 1 + weight."""

    def __init__(self):
        super().__init__()
        self.config = Llama().config
        self.norm, self.head = nn.ParameterDict({"weight": torch.randn(32)}), nn.Linear(32, 64)
        self.token = nn.Parameter(torch.randn(1, 32))

    def forward(self, x):
        return self.head((x + self.token) * (1.0 + self.norm["weight"]))


def test_parameters_that_no_operation_reads_as_they_are_are_kept(tmp_path):
    x = torch.randn(3, 32)
    model = Shifted()
    prepared = detent.prepare(model, (x,), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    tensors = load_torch((artifact.folder / FILE).read_bytes())
    packed = {f"head.weight_{part}" for part in ("packed", "scale", "shape")}
    assert tensors.keys() == {"norm.weight", "token", "head.bias"} | packed
    assert torch.equal(tensors["norm.weight"], model.norm["weight"])
    assert torch.equal(tensors["token"], model.token)


class Tied(nn.Module):
    """As Gemma 2: the head shares its weight with the table, which is folded into a product."""

    def __init__(self):
        super().__init__()
        self.config = Llama().config
        self.table, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head((self.table.weight * 32**0.5)[tokens])


def test_a_table_that_is_a_quantized_head_too_is_kept(tmp_path):
    tokens, model = torch.arange(6).reshape(2, 3), Tied()
    wanted = model.table.weight.detach().clone()
    prepared = detent.prepare(model, (tokens,), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, [tokens])
    artifact = detent.deploy(prepared, tmp_path / "out")
    tensors = load_torch((artifact.folder / FILE).read_bytes())
    assert tensors.keys() == {"table.weight", *(f"head.weight_{part}" for part in ("packed", "scale", "shape"))}
    assert torch.equal(tensors["table.weight"], wanted)


def test_a_weight_with_a_row_for_each_input_is_refused(tmp_path):
    x = torch.randn(3, 64)
    prepared = detent.prepare(ByInputs(), (x,), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, [x])
    with pytest.raises(DeployError, match="its weight has a row for each input"):
        detent.deploy(prepared, tmp_path / "out")


def test_the_tokenizer_of_the_folder_is_copied(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    model = Llama().eval()
    model.name_or_path = str(tmp_path)
    prepared = detent.prepare(model, (TOKENS,), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, [TOKENS])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert (artifact.folder / "tokenizer.json").read_text() == '{"version": "1.0"}'


def test_its_own_package_unpacks_the_same_codes(artifact):
    helpers = pytest.importorskip(
        "compressed_tensors.compressors.pack_quantized.helpers", reason="pip install compressed-tensors"
    )
    content = (artifact.folder / FILE).read_bytes()
    tensors = load(content)
    for blocks in read_packed(content, (artifact.folder / CONFIG).read_bytes()):
        packed, shape = (torch.from_numpy(tensors[f"{blocks.tensor}_{part}"]) for part in ("packed", "shape"))
        codes = helpers.unpack_from_int32(packed, blocks.bits, shape)
        assert np.array_equal(codes.numpy(), blocks.codes - (1 << (blocks.bits - 1)))


def test_a_changed_code_is_found_and_a_damaged_file_refused(artifact):
    content, config = (artifact.folder / FILE).read_bytes(), (artifact.folder / CONFIG).read_bytes()
    tensors = {name: array.copy() for name, array in load(content).items()}
    tensors["lm_head.weight_packed"][0, 0] ^= 1
    changed = save(tensors, metadata={"detent.prefix": ""})
    before, after = ({blocks.tensor: blocks.codes for blocks in read_packed(one, config)} for one in (content, changed))
    assert [name for name in before if not np.array_equal(before[name], after[name])] == ["lm_head.weight"]
    del tensors["lm_head.weight_scale"]
    with pytest.raises(ArtifactError, match=r"lm_head\.weight_packed"):
        read_packed(save(tensors, metadata={"detent.prefix": ""}), config)
    with pytest.raises(ArtifactError):
        read_packed(content[:100], config)


def test_a_model_without_a_config_is_refused(tmp_path):
    prepared = detent.prepare(nn.Linear(32, 4), (torch.zeros(1, 32),), backend="compressed_tensors", recipe="w8")
    detent.calibrate(prepared, [torch.ones(1, 32)])
    with pytest.raises(DeployError, match="the model has no config"):
        detent.deploy(prepared, tmp_path / "out")


def test_the_same_model_gives_the_same_bytes(tmp_path):
    """The metadata of safetensors come in a random order, unless they are sorted."""
    prepared = detent.prepare(Llama().eval(), (TOKENS,), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, [TOKENS])
    found = {(detent.deploy(prepared, tmp_path / str(run)).folder / FILE).read_bytes() for run in range(6)}
    assert len(found) == 1
