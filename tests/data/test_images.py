import io

import numpy as np
import pytest
from PIL import Image

from fedgradnorm.data._files.images import crop_resize, decode_grey, to_crop
from mtfl_archive import jpeg


def test_a_crop_shows_what_its_box_frames():
    columns = np.repeat(np.arange(0, 200, 4, dtype=np.uint8)[None], 50, axis=0)
    picture = Image.fromarray(columns)
    inside = crop_resize(picture, (5.0, 5.0, 45.0, 45.0), 40)
    np.testing.assert_array_equal(inside, columns[5:45, 5:45])
    beyond = crop_resize(picture, (-10.0, 0.0, 30.0, 40.0), 40)
    np.testing.assert_array_equal(beyond[:, 10:], columns[:40, :30])
    assert (beyond[:, :10] == columns[0, 0]).all()
    with pytest.raises(ValueError, match="mostly outside"):
        crop_resize(picture, (1e9, 0.0, 2e9, 40.0), 40)
    with pytest.raises(ValueError, match="mostly outside"):
        crop_resize(picture, (-1e9, -1e9, 1e9, 1e9), 40)
    moved = to_crop(np.array([5.0, 45.0, 5.0, 25.0]), (5.0, 5.0, 45.0, 45.0), 40)
    np.testing.assert_allclose(moved, [0, 40, 0, 20])


def test_grey_is_the_luma_of_the_picture():
    content = jpeg(3)
    plain = np.asarray(Image.open(io.BytesIO(content)).convert("L")).astype(int)
    assert np.abs(np.asarray(decode_grey(content)).astype(int) - plain).max() <= 4


def test_a_cut_picture_never_passes_for_a_whole_one():
    content = jpeg(5)
    for length in range(0, len(content) - 8, 23):
        with pytest.raises(ValueError, match="picture cannot be decoded"):
            decode_grey(content[:length])
