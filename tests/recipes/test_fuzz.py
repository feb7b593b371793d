"""Whatever is given, the answer is a recipe or an error of Detent's own."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DetentError
from detent.recipes import Match, Recipe, Rule, TensorRequest
from detent.recipes.files import FORMATS

FIELDS = [name for section in (Recipe, Rule, Match, TensorRequest) for name in section.model_fields]
KEYS = st.sampled_from([*FIELDS, "per_group", "percentile", "bins"]) | st.text(max_size=3) | st.integers()
WORDS = st.sampled_from(["lsq", "tqt", "percentile", "kl", "auto", "log", "apot", "per_channel", "floor", "float"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=3) | st.binary(max_size=3)
DATA = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(list(Recipe.model_fields)), DATA))
def test_any_data(data):
    with suppress(DetentError):
        assert Recipe.from_dict(data).to_dict().keys() <= data.keys()


@given(st.dictionaries(st.sampled_from(list(TensorRequest.model_fields)), LEAVES))
def test_any_request(data):
    with suppress(DetentError):
        assert TensorRequest(**data).to_dict().items() <= data.items()


@given(st.sampled_from(sorted(FORMATS)), st.text("abn:{}[]\"'=,-*&!<>?|#%@1e.\\ \n\t\r\x00\x85\ufeff", max_size=40))
def test_any_text(suffix, text):
    with suppress(ValueError):  # what `read` turns into a RecipeError, with the file's name
        FORMATS[suffix].loads(text)
