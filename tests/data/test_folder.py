"""Data from files: what fits goes through, what does not is refused with the file named."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from detent.data import Folder, Preprocessing, called
from detent.errors import DataError

IMAGE = {"image": ("batch", 3, 4, 4)}


def test_a_npy_file_is_cut_into_batches(tmp_path):
    data = np.arange(5 * 48, dtype=np.float32).reshape(5, 3, 4, 4)
    np.save(tmp_path / "x.npy", data)
    batches = list(Folder(tmp_path / "x.npy", IMAGE, batch_size=2))
    assert [len(batch[0]) for batch in batches] == [2, 2, 1]
    assert np.array_equal(np.concatenate([batch[0] for batch in batches]), data)


def test_single_samples_are_put_together_in_the_order_of_their_names(tmp_path):
    for index in (2, 0, 1):
        np.save(tmp_path / f"{index}.npy", np.full((3, 4, 4), index, np.float32))
    folder = Folder(tmp_path, IMAGE, batch_size=32)
    for _ in range(2):  # it can be gone through again
        (batch,) = list(folder)
        assert batch[0][:, 0, 0, 0].tolist() == [0.0, 1.0, 2.0]


def test_a_npz_holds_inputs_by_name_and_labels(tmp_path):
    inputs = {"ids": ("batch", 7), "mask": ("batch", 7)}
    np.savez(tmp_path / "x.npz", mask=np.ones((3, 7), np.int64), ids=np.zeros((3, 7), np.int64), labels=[1, 2, 3])
    ((ids, mask, labels),) = list(Folder(tmp_path / "x.npz", inputs))
    assert (ids.sum(), mask.sum(), labels.tolist()) == (0, 21, [1, 2, 3])


def test_float64_becomes_what_networks_take(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 4)))
    ((x,),) = list(Folder(tmp_path, IMAGE))
    assert x.dtype == np.float32


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3, 5, 5), np.float32), r"shape \(2, 3, 5, 5\)"),
        (np.zeros((2, 2), np.float32), r"shape \(2, 2\)"),
    ],
)
def test_another_shape_is_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(DataError, match=message):
        list(Folder(tmp_path, IMAGE))


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a numpy file"):
        list(Folder(tmp_path, IMAGE))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_file_of_something_else_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 and no array")
    with pytest.raises(DataError, match=rf"{name}.*\n?.*not a numpy file"):
        list(Folder(tmp_path, IMAGE))


def test_a_large_file_is_not_read_at_once(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4096, 3, 4, 4)))  # 1.5 MB in float64
    tracemalloc.start()
    count = sum(len(batch[0]) for batch in Folder(tmp_path, IMAGE, batch_size=8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4096
    assert peak < 2**18  # a few batches of 1.5 kB, and what reading takes


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(np.uint8, "float32"), (np.float16, "float32"), (np.int32, "int64"), (np.int64, "int32"), (bool, "float32")],
)
def test_numbers_become_those_that_the_network_takes(tmp_path, given, wanted):
    np.save(tmp_path / "x.npy", np.ones((2, 7), given))
    ((x,),) = list(Folder(tmp_path, {"x": ("n", 7)}, types={"x": wanted}))
    assert x.dtype == wanted
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("array", "wanted", "words"),
    [
        (np.full((1, 7), 0.5, np.float32), "int64", "float32 numbers that int64 does not hold"),
        (np.full((1, 7), 2**40), "int32", "int64 numbers that int32 does not hold"),
        (np.full((1, 7), 1j), "float32", "complex128"),
        (np.full((1, 7), np.nan, np.float32), "float32", "NaN"),
    ],
    ids=["real-for-whole", "too-large", "complex", "nan"],
)
def test_numbers_that_the_network_does_not_take_are_refused_with_the_file(tmp_path, array, wanted, words):
    np.save(tmp_path / "broken.npy", array)
    with pytest.raises(DataError, match=rf"broken.npy for the input 'x'.*\n?.*{words}"):
        list(Folder(tmp_path, {"x": ("n", 7)}, types={"x": wanted}))


def test_files_of_other_free_sizes_are_batches_of_their_own(tmp_path):
    for index, length in enumerate([7, 7, 9]):
        np.save(tmp_path / f"{index}.npy", np.zeros((2, length), np.int64))
    batches = list(Folder(tmp_path, {"ids": ("n", "length")}))
    assert [batch[0].shape for batch in batches] == [(4, 7), (2, 9)]


def test_inputs_of_unequal_counts_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros((4, 2)), b=np.zeros((3, 2)))
    with pytest.raises(DataError, match="4 of a, 3 of b"):
        list(Folder(tmp_path, {"a": ("n", 2), "b": ("n", 2)}))


def test_an_input_that_is_missing_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", ids=np.zeros((1, 7)), other=np.zeros((1, 7)))
    with pytest.raises(DataError, match="not mask"):
        list(Folder(tmp_path, {"ids": ("batch", 7), "mask": ("batch", 7)}))


def test_a_path_that_does_not_exist_and_a_folder_without_data_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Folder(tmp_path / "nowhere", IMAGE)
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(DataError, match="contains no data"):
        Folder(tmp_path, IMAGE)


def test_images_need_a_stated_preprocessing(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")
    image.new("RGB", (8, 6), (255, 0, 0)).save(tmp_path / "red.png")
    with pytest.raises(DataError, match="no preprocessing"):
        Folder(tmp_path, IMAGE)
    how = Preprocessing(resize=4, crop=(4, 4), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    ((x,),) = list(Folder(tmp_path, IMAGE, preprocessing=how))
    assert x.shape == (1, 3, 4, 4)
    assert x[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
    blue_first = Preprocessing(resize=4, crop=(4, 4), mean=(0,) * 3, std=(1,) * 3, color="BGR", layout="NHWC")
    ((x,),) = list(Folder(tmp_path, {"image": ("batch", 4, 4, 3)}, preprocessing=blue_first))
    assert x[0, 0, 0].tolist() == [0.0, 0.0, 1.0]


def test_images_of_another_size_than_the_network_takes_are_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    assert next(iter(Folder(tmp_path, IMAGE, preprocessing=Preprocessing(resize=6, crop=(4, 4)))))[0].shape[1:] == (
        3,
        4,
        4,
    )
    with pytest.raises(DataError, match=r"a.png for the input 'image'.*\n?.*shape \(1, 3, 5, 5\)"):
        list(Folder(tmp_path, IMAGE, preprocessing=Preprocessing(resize=6, crop=(5, 5))))
    with pytest.raises(DataError, match="takes ids, mask"):
        list(Folder(tmp_path, {"ids": ("n", 7), "mask": ("n", 7)}, preprocessing=Preprocessing()))


@pytest.mark.parametrize("numbers", [{"mean": (0.5, 0.5)}, {"std": (0.5, 0.0, 0.5)}])
def test_a_mean_or_deviation_that_no_image_has_is_refused(numbers):
    with pytest.raises(DataError, match="for images of 3 channels"):
        Preprocessing(**numbers)


def test_a_crop_that_no_picture_has_is_refused():
    for sizes in ({"crop": (0, 4), "resize": None}, {"crop": (8, 8), "resize": 4}):
        with pytest.raises(DataError, match="does not fit into an image of that size"):
            Preprocessing(**sizes)


def test_pictures_of_other_modes_are_read_as_colors_and_those_of_16_bits_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    how = Preprocessing(resize=4, crop=(4, 4), mean=(0,), std=(1,))
    red = image.new("RGB", (4, 4), (255, 0, 0))
    for index, mode in enumerate(["RGB", "P", "RGBA"]):
        red.convert(mode).save(tmp_path / f"{index}.png")
    ((x,),) = list(Folder(tmp_path, IMAGE, preprocessing=how))
    assert (x[:, :, 0, 0] == [1.0, 0.0, 0.0]).all()
    image.fromarray(np.full((4, 4), 40000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep.png.*\n?.*mode I;16"):
        list(Folder(tmp_path, IMAGE, preprocessing=how))


# ---- functions ----


def test_batches_of_a_function_that_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("def batches():\n    yield 1\n    yield 2\n\ndef none():\n    return 3\n")
    assert list(called(f"{tmp_path}/mine.py:batches")) == [1, 2]
    assert called(str(tmp_path / "mine.py")) is None
    for name, words in (
        ("mine.py:nothing", "no function"),
        ("mine.py:none", "gave a int"),
        ("no.py:f", "No such file"),
    ):
        with pytest.raises(DataError, match=words):
            called(f"{tmp_path}/{name}")


def test_what_goes_wrong_in_a_function_names_its_line(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def at_once():\n    return [][0]\n\ndef later():\n    yield 1\n    raise ValueError('no more')\n")
    with pytest.raises(DataError, match=r"IndexError: list index out of range \(line 2 of .*mine\.py\)"):
        called(f"{mine}:at_once")
    batches = iter(called(f"{mine}:later"))
    assert next(batches) == 1
    with pytest.raises(DataError, match=r"ValueError: no more \(line 6 of .*mine\.py\)"):
        next(batches)


def test_a_refusal_inside_of_a_function_stays_what_it_is(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from detent.data import Folder\ndef batches():\n    return Folder('nowhere', {})\n")
    with pytest.raises(DataError) as refused:
        called(f"{mine}:batches")
    assert refused.value.asked == "read data from nowhere"


def test_a_file_that_only_has_the_name_of_one_is_not_called_a_pickle(tmp_path):
    (tmp_path / "x.npy").write_text("not numbers")
    with pytest.raises(DataError, match="it does not begin as one") as refused:
        list(Folder(tmp_path / "x.npy", IMAGE))
    assert "pickle" not in str(refused.value)


def test_fewer_samples_than_a_fixed_batch_are_said(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 4, 4), np.float32))
    with pytest.raises(DataError, match="3 samples, and the network takes 4 at a time"):
        list(Folder(tmp_path / "x.npy", {"x": (4, 3, 4, 4)}))


def test_a_batch_of_nothing_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 4, 4), np.float32))
    with pytest.raises(DataError, match="batches of 0 samples"):
        Folder(tmp_path / "x.npy", {"x": (0, 3, 4, 4)})


def test_a_state_goes_with_every_batch(tmp_path):
    """Its first size is no number of samples."""
    inputs = {"x": ("batch", 4), "state": (2, 1, 3)}
    for index in range(2):
        np.savez(tmp_path / f"{index}.npz", x=np.full((3, 4), index, np.float32), state=np.ones((2, 1, 3), np.float32))
    batches = list(Folder(tmp_path, inputs, batch_size=4))
    assert [[array.shape for array in batch] for batch in batches] == [[(4, 4), (2, 1, 3)], [(2, 4), (2, 1, 3)]]
    assert batches[0][0][:, 0].tolist() == [0.0, 0.0, 0.0, 1.0]
