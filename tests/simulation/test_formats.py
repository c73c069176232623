"""The readers of idx files and CIFAR-10 batches, on files of a few bytes."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedworth.errors import DataError
from fedworth.simulation.datasets import read_cifar, read_idx, read_idx_pair


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(path, array):
    path.write_bytes(gzip.compress(idx_bytes(np.asarray(array, np.uint8))))
    return path


@settings(deadline=None)
@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
def test_an_idx_file_gives_back_the_array_it_was_made_of(tmp_path_factory, array):
    path = write_idx(tmp_path_factory.getbasetemp() / "array.gz", array)
    assert np.array_equal(read_idx(path, array.ndim), array)


def test_images_and_labels_are_read_together_with_a_channel(tmp_path):
    images = write_idx(tmp_path / "images.gz", np.arange(12).reshape(3, 2, 2))
    labels = write_idx(tmp_path / "labels.gz", [7, 8, 9])
    pixels, classes = read_idx_pair(images, labels)
    assert pixels.shape == (3, 1, 2, 2)
    assert pixels[1, 0].tolist() == [[4, 5], [6, 7]]
    assert classes.tolist() == [7, 8, 9]


def test_images_and_labels_that_do_not_belong_together_are_refused(tmp_path):
    images = write_idx(tmp_path / "images.gz", np.zeros((3, 2, 2)))
    labels = write_idx(tmp_path / "labels.gz", [7, 8])
    with pytest.raises(DataError, match=r"holds 3 images, but .* holds 2 labels"):
        read_idx_pair(images, labels)


def test_labels_in_place_of_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="starts with '00000801', expected '00000803'"):
        read_idx(write_idx(tmp_path / "labels.gz", [7, 8]), 3)


@given(kept=st.integers(min_value=0, max_value=20))
@settings(deadline=None)
def test_an_idx_file_cut_short_inside_is_refused(tmp_path_factory, kept):
    path = tmp_path_factory.getbasetemp() / "short.gz"
    content = idx_bytes(np.zeros((3, 3), np.uint8))  # 12 bytes of header and 9 of content
    path.write_bytes(gzip.compress(content[:kept], mtime=0))
    with pytest.raises(DataError, match=r"short\.gz: (starts with|ends inside|its header says)"):
        read_idx(path, 2)


def test_an_idx_file_with_bytes_to_spare_is_refused(tmp_path):
    path = tmp_path / "long.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(3, np.uint8)) + b"x"))
    with pytest.raises(DataError, match="12 bytes, expected 11"):
        read_idx(path, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        gzip.compress(bytes(100), mtime=0)[:-9],
        gzip.compress(bytes(100), mtime=0)[:10] + b"\xff" * 20,
    ],
)
def test_a_file_that_is_no_whole_gzip_is_refused(tmp_path, content):
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.gz"):
        read_idx(path, 1)


def test_cifar_batches_are_read_one_after_another_plane_by_plane(tmp_path):
    batches = [tmp_path / "one.bin", tmp_path / "two.bin"]
    for label, batch in enumerate(batches):
        planes = [bytes([10 * label + plane]) * 1024 for plane in range(3)]
        batch.write_bytes(bytes([label]) + b"".join(planes))
    pixels, classes = read_cifar(*batches)
    assert pixels.shape == (2, 3, 32, 32)
    assert classes.tolist() == [0, 1]
    assert pixels[:, :, 31, 31].tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("n_bytes", [0, 3072, 3074])
def test_a_cifar_batch_that_is_no_whole_number_of_records_is_refused(tmp_path, n_bytes):
    batch = tmp_path / "batch.bin"
    batch.write_bytes(bytes(n_bytes))
    with pytest.raises(DataError, match=f"{n_bytes} bytes, expected a multiple of 3073"):
        read_cifar(batch)
