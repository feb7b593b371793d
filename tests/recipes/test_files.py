"""Recipe files: three formats, plain data only, and every fault named with its file."""

from pathlib import Path

import pytest

from detent.errors import RecipeError
from detent.recipes import Recipe

ROOT = Path(__file__).resolve().parents[2]

MINE = Recipe.from_dict(
    {
        "name": "mine",
        "weight": {"quantizer": "dsq", "quantizer_options": {"alpha": 1e-05, "learn_alpha": False}, "bits": 4},
        "activation": {"granularity": {"per_group": 32}, "quantize": False},
        "rules": [{"match": {"name": "*.fc"}, "weight": {"bits": 8}}, {"match": {"kind": "conv"}, "quantize": False}],
        "exclude": ["head"],
    }
)

YAML = """\
name: mine
weight:
  quantizer: dsq
  quantizer_options: {alpha: 1e-5, learn_alpha: false}
  bits: 4
activation:
  granularity: {per_group: 32}
  quantize: no
bias:          # nothing said
rules:
  - match: {name: "*.fc"}
    weight: {bits: 8}
  - {match: {kind: conv}, quantize: false}
exclude: [head]
"""
JSON = """\
{"name": "mine",
 "weight": {"quantizer": "dsq", "quantizer_options": {"alpha": 1e-5, "learn_alpha": false}, "bits": 4},
 "activation": {"granularity": {"per_group": 32}, "quantize": false},
 "bias": null,
 "rules": [{"match": {"name": "*.fc"}, "weight": {"bits": 8}}, {"match": {"kind": "conv"}, "quantize": false}],
 "exclude": ["head"]}
"""
TOML = """\
name = "mine"
exclude = ["head"]
[weight]
quantizer = "dsq"
quantizer_options = {alpha = 1e-5, learn_alpha = false}
bits = 4
[activation]
granularity.per_group = 32
quantize = false
[[rules]]
match.name = "*.fc"
[rules.weight]
bits = 8
[[rules]]
match = {kind = "conv"}
quantize = false
"""

WRITTEN_TOML = """\
name = "mine"
exclude = ["head"]

[weight]
quantizer = "dsq"
quantizer_options = {alpha = 1e-05, learn_alpha = false}
bits = 4

[activation]
granularity = {per_group = 32}
quantize = false

[[rules]]
match = {name = "*.fc"}
weight = {bits = 8}

[[rules]]
match = {kind = "conv"}
quantize = false
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """`file("a.yaml", text)` writes it in the working directory and answers its name."""
    monkeypatch.chdir(tmp_path)

    def write(name, content):
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return write


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.json", JSON), ("a.toml", TOML), ("a.b.TOML", TOML)]
)
def test_each_format_says_the_same(name, text, file):
    assert Recipe.load(file(name, text)) == MINE
    assert (
        Recipe.load(Path(file(name, b"\xef\xbb\xbf" + text.encode()))) == MINE
    )  # a byte-order mark, as Windows writes


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "a.toml"])
def test_what_is_saved_is_loaded(name, tmp_path):
    MINE.save(tmp_path / name)
    assert Recipe.load(tmp_path / name) == MINE
    MINE.save(str(tmp_path / name))  # over the one that is there
    assert Recipe.load(str(tmp_path / name)) == MINE


def test_saved_toml_reads_well(tmp_path):
    MINE.save(tmp_path / "a.toml")
    assert (tmp_path / "a.toml").read_text() == WRITTEN_TOML


def test_text_that_looks_like_something_else_stays_text(tmp_path):
    words = ["1e5", ".5e3", "yes", "null", "~", "=", "<<", "0x1f", "12:30", "2020-01-01", "&a", "!tag", "*", "[", "#"]
    words += [" x ", "\x85", "\u2028a\n b", "\x7f", "\ufeff"]
    recipe = Recipe(name="1e-5", exclude=words)
    for suffix in ("yaml", "json", "toml"):
        recipe.save(tmp_path / f"a.{suffix}")
        assert Recipe.load(tmp_path / f"a.{suffix}") == recipe


# ---- files that are not recipes ----

WRITE_KEYS = "write keys and values, as in 'name: mine'"


@pytest.mark.parametrize(
    ("name", "content", "found", "to_do"),
    [
        pytest.param("a.yaml", b"", "the file is empty", "begin with a name, as in 'name: mine'", id="empty-yaml"),
        pytest.param("a.json", b" \n", "the file is empty", "begin with a name, as in 'name: mine'", id="empty-json"),
        pytest.param("a.toml", b"", "the file is empty", "begin with a name, as in 'name: mine'", id="empty-toml"),
        pytest.param("a.yaml", b"# later\n", "it holds a NoneType", WRITE_KEYS, id="only-a-comment"),
        pytest.param("a.yaml", b"- name: mine\n", "it holds a list", WRITE_KEYS, id="yaml-list"),
        pytest.param("a.yaml", b"lsq", "it holds a str", WRITE_KEYS, id="yaml-word"),
        pytest.param("a.json", b"[]", "it holds a list", WRITE_KEYS, id="json-list"),
        pytest.param("a.json", b"null", "it holds a NoneType", WRITE_KEYS, id="json-null"),
        pytest.param("a.yaml", b"name: \xff\xfe", "it is not UTF-8 text", "save it as UTF-8", id="not-utf8"),
        pytest.param(
            "a.yaml",
            b"name: mine\nweight: {bits: 4\nseed: 1\n",
            "expected ',' or '}', but got ':', line 3",
            "make it valid yaml",
            id="broken-yaml",
        ),
        pytest.param(
            "a.yaml",
            b"name: mine\n---\nname: other\n",
            "but found another document, line 2",
            "make it valid yaml",
            id="two-documents",
        ),
        pytest.param("a.yaml", b"name: 2020-13-45\n", "month must be in 1..12", "make it valid yaml", id="no-such-day"),
        pytest.param(
            "a.json",
            b'{"name": }',
            "Expecting value: line 1 column 10 (char 9)",
            "make it valid json",
            id="broken-json",
        ),
        pytest.param(
            "a.toml",
            b"name = \n",
            "Invalid value (at line 1, column 8)",
            "make it valid toml",
            id="broken-toml",
        ),
        pytest.param(
            "a.txt",
            b"name: mine",
            "the suffix '.txt' is not one of .yaml, .yml, .json, .toml",
            "name the file by its format",
            id="unknown-suffix",
        ),
        pytest.param(
            "a.yamll",
            b"name: mine",
            "the suffix '.yamll' is not one of .yaml, .yml, .json, .toml",
            "did you mean '.yaml'?",
            id="misspelt-suffix",
        ),
        pytest.param("a", b"", "the suffix '' is not one of .yaml, .yml, .json, .toml", "name the file by its format"),
        # ---- keys that are there twice ----
        pytest.param(
            "a.yaml",
            b"name: mine\nweight:\n  bits: 4\n  bits: 8\n",
            "the key 'bits' appears twice, again line 4",
            "keep one",
            id="yaml-twice",
        ),
        pytest.param(
            "a.json",
            b'{"name": "mine", "weight": {"bits": 4, "bits": 8}}',
            "the key 'bits' appears twice",
            "keep one",
            id="json-twice",
        ),
        pytest.param(
            "a.toml",
            b'name = "mine"\nname = "other"\n',
            "Cannot overwrite a value (at line 2, column 15)",
            "make it valid toml",
            id="toml-twice",
        ),
        # ---- more than plain data ----
        pytest.param(
            "a.yaml",
            b"name: !!python/object/apply:os.system ['touch broken']\n",
            "a tag, tag:yaml.org,2002:python/object/apply:os.system, line 1",
            "remove it; put text that begins with ! in quotes",
            id="python-object",
        ),
        pytest.param(
            "a.yaml",
            b"name: !secret x\n",
            "a tag, !secret, line 1",
            "remove it; put text that begins with ! in quotes",
            id="own-tag",
        ),
        pytest.param(
            "a.yaml",
            b"name: mine\nexclude: [*.head]\n",
            "expected alphabetic or numeric character, but found '.', line 2",
            "put text that begins with * in quotes",
            id="unquoted-glob",
        ),
        pytest.param(
            "a.yaml",
            b"name: mine\nexclude: [*head]\n",
            "an alias, *head, line 2",
            "write it out; put text that begins with * in quotes",
            id="unquoted-glob-that-is-an-alias",
        ),
        pytest.param(
            "a.yaml",
            b"name: mine\nweight: &w {bits: 4}\nactivation: *w\n",
            "an alias, *w, line 3",
            "write it out; put text that begins with * in quotes",
            id="alias",
        ),
        pytest.param(
            "a.yaml",
            b"name: mine\nweight: &w\n  quantizer: *w\n",
            "an alias, *w, line 3",
            "write it out; put text that begins with * in quotes",
            id="alias-of-itself",
        ),
        pytest.param("a.yaml", b"8: mine\n", "the key 8, line 1, is not text", "put it in quotes", id="number-key"),
        pytest.param(
            "a.yaml", b"? [a]\n: b\n", "the key ['a'], line 1, is not text", "put it in quotes", id="list-key"
        ),
        pytest.param("a.json", b'{"name": NaN}', "NaN, which is not JSON", "give a finite number", id="json-nan"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(name, content, found, to_do, file, refuses):
    with refuses(RecipeError, f"read the recipe {name}", found, to_do):
        Recipe.load(file(name, content))
    assert [path.name for path in Path().iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("a.yaml", "a: " + "[" * 100_000, id="yaml"),
        pytest.param("a.json", "[" * 200_000, id="json"),
        pytest.param("a.toml", "a = " + "[" * 100_000, id="toml"),
    ],
)
def test_a_file_nested_without_end_is_refused(name, content, file, refuses):
    with refuses(RecipeError, f"read the recipe {name}", "it is nested too deeply", "a recipe is a few levels deep"):
        Recipe.load(file(name, content))


def test_a_yaml_bomb_is_refused_before_it_grows(file):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(RecipeError, match="an alias"):
        Recipe.load(file("a.yaml", "\n".join(lines)))


def test_a_number_without_end_is_refused(file):
    for name, text in (("a.yaml", "seed: {}"), ("a.json", '{{"seed": {}}}'), ("a.toml", "seed = {}")):
        with pytest.raises(RecipeError, match="integer string conversion"):
            Recipe.load(file(name, text.format("9" * 5000)))


def test_a_mistake_inside_names_the_file(file, refuses):
    with refuses(RecipeError, "a.toml: weight.bits = '4'", "it is a str", "give an integer"):
        Recipe.load(file("a.toml", 'name = "mine"\n[weight]\nbits = "4"\n'))


def test_a_path_that_cannot_be_read_is_refused(tmp_path, monkeypatch, refuses):
    monkeypatch.chdir(tmp_path)
    Path("folder.yaml").mkdir()
    advice = "give the path of a recipe file"
    with refuses(RecipeError, "read the recipe no.yaml", "No such file or directory", advice):
        Recipe.load("no.yaml")
    with refuses(RecipeError, "read the recipe folder.yaml", "Is a directory", advice):
        Recipe.load("folder.yaml")
    with refuses(RecipeError, "read the recipe \0.yaml", "embedded null byte", advice):
        Recipe.load("\0.yaml")


def test_a_path_that_cannot_be_written_is_refused(tmp_path, monkeypatch, refuses):
    monkeypatch.chdir(tmp_path)
    with refuses(
        RecipeError, "write the recipe no/a.yaml", "No such file or directory", "choose a path that can be written"
    ):
        MINE.save("no/a.yaml")
    with refuses(
        RecipeError,
        "write the recipe a.ini",
        "the suffix '.ini' is not one of .yaml, .yml, .json, .toml",
        "name the file by its format",
    ):
        MINE.save("a.ini")
    assert not list(tmp_path.iterdir())


# ---- the ones in the repository ----


def test_every_example_is_a_recipe():
    files = sorted((ROOT / "examples" / "recipes").iterdir())
    assert {path.suffix for path in files} == {".yaml", ".json", ".toml"}
    for path in files:
        assert Recipe.load(path).name.replace("-", "_") == path.stem


def test_the_recipe_in_the_document_is_one(tmp_path):
    text = (ROOT / "docs" / "recipes.md").read_text()
    shown = text.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "shown.yaml").write_text(shown)
    assert Recipe.load(tmp_path / "shown.yaml").for_tensor("weight", "layer4.0.conv1", "conv").bits == 8
