import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgradnorm import ConfigError, DataError
from fedgradnorm.data import mtfl
from mtfl_archive import POINTS, box_csv, jpeg, mtfl_files, row, text, write_zip

BOX = (10.0, 12.0, 50.0, 60.0)


@pytest.fixture
def files():
    return mtfl_files()


def prepare(path, tmp_path, **options):
    options = {"crop": "whole", **options}
    return mtfl.prepare(path, cache=tmp_path / "cache", **options)


def archive(tmp_path, files, name="MTFL.zip", **options):
    return write_zip(tmp_path / name, files, **options)


def test_the_archive_may_have_a_folder_and_is_found_in_one(tmp_path, files):
    one = prepare(archive(tmp_path, files), tmp_path)
    bare = prepare(archive(tmp_path, files, "bare.zip", folder=""), tmp_path)
    again = prepare(tmp_path, tmp_path)
    assert one.fresh
    assert not again.fresh
    for other in (bare, again):
        for split in ("train", "test"):
            mine, theirs = getattr(one, split), getattr(other, split)
            np.testing.assert_array_equal(mine.images, theirs.images)
            for task in mtfl.TASKS:
                np.testing.assert_array_equal(mine.target(task), theirs.target(task))


def test_shapes_types_and_labels(tmp_path, files):
    data = prepare(archive(tmp_path, files), tmp_path)
    assert data.train.images.shape == (6, 1, 40, 40)
    assert data.train.images.dtype == np.uint8
    assert data.train.landmarks.dtype == np.float32
    assert data.train.labels["pose"].tolist() == [0, 1, 2, 3, 4, 0]
    assert data.train.labels["pose"].dtype == np.int64
    assert data.train.paths.tolist() == [f"lfw_5590/a{i}.jpg" for i in range(6)]
    assert data.test.rows.tolist() == [1, 2, 3]
    assert data.info["rows"]["test"] == {"read": 3, "used": 3}


def test_landmarks_in_pixels_and_in_the_unit_square(tmp_path, files):
    path = archive(tmp_path, files)
    pixels = prepare(path, tmp_path).train.landmarks
    unit = prepare(path, tmp_path, landmarks="unit").train.landmarks
    scale = np.array([40 / 64] * 5 + [40 / 72] * 5)
    np.testing.assert_allclose(pixels[0], np.array(POINTS) * scale, rtol=1e-6)
    np.testing.assert_allclose(unit * 40, pixels, rtol=1e-6)


def test_boxes_crop_drop_and_count(tmp_path, files):
    boxes = {f"lfw_5590/a{i}.jpg": BOX for i in range(5)}
    boxes["lfw_5590/a1.jpg"] = (30.0, 12.0, 60.0, 60.0)  # the left eye is outside
    boxes |= {f"AFLW/b{i}.jpg": (-6.0, -9.5, 60.0, 70.0) for i in range(3)}
    (tmp_path / "mtfl_boxes.csv").write_bytes(box_csv(boxes))
    path = archive(tmp_path, files)
    data = prepare(path, tmp_path, crop="boxes")
    assert data.train.rows.tolist() == [1, 2, 3, 4, 5]
    assert data.info["rows"]["train"] == {"read": 6, "used": 5, "without a box": 1}
    np.testing.assert_allclose(data.train.landmarks[0, 0], (POINTS[0] - 10) * 40 / 40, rtol=1e-5)
    np.testing.assert_allclose(data.train.landmarks[0, 5], (POINTS[5] - 12) * 40 / 48, rtol=1e-5)
    assert data.train.landmarks[1, 0] < 0
    inside = prepare(path, tmp_path, crop="boxes", drop_outside=True)
    assert inside.train.rows.tolist() == [1, 3, 4, 5]
    assert inside.info["rows"]["train"]["landmark outside the box"] == 1


def test_cache_is_keyed_by_content_and_options(tmp_path, files):
    path = archive(tmp_path, files)
    assert prepare(path, tmp_path).fresh
    assert not prepare(path, tmp_path, landmarks="unit").fresh
    assert not prepare(path, tmp_path, drop_outside=True).fresh  # means nothing without boxes
    files["lfw_5590/a0.jpg"] = jpeg(77)
    assert prepare(archive(tmp_path, files), tmp_path).fresh


def cut_jpeg(files):
    content = files["lfw_5590/a2.jpg"]
    files["lfw_5590/a2.jpg"] = content[: len(content) * 3 // 4]


def no_jpeg(files):
    files["lfw_5590/a2.jpg"] = b"GIF89a not a picture"


def missing(files):
    del files["lfw_5590/a2.jpg"]


def beside(points, labels=(1, 1, 1, 1)):
    def change(files):
        rows = [row(f"lfw_5590/a{i}.jpg") for i in range(6)]
        rows[2] = row("lfw_5590/a2.jpg", points, labels)
        files["training.txt"] = text(rows)

    return change


BAD = [
    (cut_jpeg, r"\(lfw_5590/a2.jpg\): picture cannot be decoded \(image file is truncated"),
    (no_jpeg, r"\(lfw_5590/a2.jpg\): picture cannot be decoded \(not a JPEG"),
    (missing, r"lfw_5590/a2.jpg"),
    (beside((70.0, *POINTS[1:])), r"a landmark lies outside the 64x72 picture"),
    (beside((*POINTS[:9], -1.0)), r"a landmark lies outside the 64x72 picture"),
    (beside(POINTS, (1, 1, 9, 1)), r"glasses is '9'; it must be 1 .. 2"),
]


@pytest.mark.parametrize(("damage", "what"), BAD)
def test_a_bad_row_is_named(tmp_path, files, damage, what):
    damage(files)
    path = archive(tmp_path, files)
    with pytest.raises(DataError, match=rf"^training\.txt, row 3.*{what}.*again$") as error:
        prepare(path, tmp_path)
    assert "\n" not in str(error.value)


def test_a_box_far_from_its_picture_is_a_bad_row(tmp_path, files):
    boxes = {f"lfw_5590/a{i}.jpg": BOX for i in range(6)} | {"AFLW/b0.jpg": (900, 0, 950, 50)}
    (tmp_path / "b.csv").write_bytes(box_csv(boxes))
    path = archive(tmp_path, files)
    with pytest.raises(DataError, match=r"^testing\.txt, row 1 .*mostly outside the 64x72 picture"):
        prepare(path, tmp_path, crop="boxes", boxes=tmp_path / "b.csv")


@pytest.mark.parametrize("name", ["../evil.jpg", "/etc/evil.jpg", "a/../../evil.jpg", "C:/evil"])
def test_an_archive_entry_that_points_outside_is_refused(tmp_path, files, name):
    path = archive(tmp_path, files)
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr(name, b"x")
    with pytest.raises(DataError, match=r"MTFL\.zip: entry refused.*outside the data folder"):
        prepare(path, tmp_path)


def test_missing_and_damaged_sources(tmp_path, files):
    with pytest.raises(DataError, match=r"nowhere\.zip: no such file"):
        prepare(tmp_path / "nowhere.zip", tmp_path)
    path = archive(tmp_path, files)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"cut\.zip: not a complete zip archive.*download it again"):
        prepare(cut, tmp_path)
    with pytest.raises(DataError, match=r"other\.zip: no training\.txt"):
        prepare(archive(tmp_path, {"a.txt": b""}, "other.zip"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no MTFL\.zip in it"):
        prepare(tmp_path / "empty", tmp_path)
    del files["testing.txt"]
    with pytest.raises(DataError, match=r"^testing\.txt: testing\.txt is not in the archive"):
        prepare(archive(tmp_path, files, "half.zip"), tmp_path)


def test_a_damaged_entry_is_caught_by_its_checksum(tmp_path, files):
    path = archive(tmp_path, files)
    content = bytearray(path.read_bytes())
    place = content.find(files["lfw_5590/a2.jpg"]) + 500
    content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"row 3 .*cannot be read from the archive .*CRC"):
        prepare(path, tmp_path)


def test_without_a_file_of_boxes_those_of_the_package_are_taken(tmp_path):
    """The package has a box for the official pictures, by their names, and for no others."""
    files, known = mtfl_files(), ("lfw_5590/Aaron_Eckhart_0001.jpg", "AFLW/0001-image20056.jpg")
    for path, name, size in zip(known, ("training.txt", "testing.txt"), (250, 150), strict=True):
        files[path] = jpeg(size=(size, size))
        files[name] += row(path).encode()
    found = prepare(archive(tmp_path, files), tmp_path, crop="boxes")
    assert (found.train.paths.tolist(), found.test.paths.tolist()) == ([known[0]], [known[1]])


def test_the_boxes_of_the_package_are_those_that_the_page_describes():
    page = (Path(__file__).parents[2] / "docs" / "data-mtfl.md").read_text(encoding="utf-8")
    with zipfile.ZipFile(mtfl.OWN_BOXES.parent) as file:
        content = file.read(mtfl.OWN_BOXES.name)
    assert hashlib.sha256(content).hexdigest() in page
    training = sum(not line.startswith(b"AFLW/") for line in content.splitlines()[1:])
    assert f"{training:,} training" in page


def test_boxes_that_are_named_must_be_there(tmp_path, files):
    with pytest.raises(DataError, match=r"no row is left .*crop='whole'"):
        prepare(archive(tmp_path, files), tmp_path, crop="boxes")
    with pytest.raises(DataError, match=r"gone\.csv: cannot be read"):
        prepare(tmp_path / "MTFL.zip", tmp_path, crop="boxes", boxes=tmp_path / "gone.csv")


@pytest.mark.parametrize("option", ["crop", "landmarks"])
def test_options_are_checked(tmp_path, option):
    with pytest.raises(ConfigError, match=f"unknown {option} 'bozes'"):
        prepare(tmp_path, tmp_path, **{option: "bozes"})


def test_the_source_is_found_in_the_data_folder(tmp_path, monkeypatch, files):
    def crop(**options):
        return mtfl.prepare(crop="whole", cache=tmp_path / "cache", **options)

    monkeypatch.delenv("FEDGRADNORM_DATA", raising=False)
    with pytest.raises(DataError, match="FEDGRADNORM_DATA is not set"):
        crop()
    monkeypatch.setenv("FEDGRADNORM_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"MTFL\.zip is not there"):
        crop()
    archive(tmp_path, files)
    assert len(crop().train) == 6


def test_progress_counts_every_row(tmp_path, files):
    seen = []
    path = archive(tmp_path, files)
    prepare(path, tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 9), (9, 9)]
