import numpy as np
import pytest
from PIL import Image

from fedgradnorm._report.figures.face_sheet import face_sheet
from fedgradnorm.data import faces


@pytest.mark.parametrize("count", [1, 8, 11])
def test_a_sheet_of_any_length(tmp_path, count):
    drawn = faces.generate(count)
    labels = {
        name: [faces.CLASSES[name][v] for v in getattr(drawn, name)] for name in faces.CLASSES
    }
    path = face_sheet(drawn.images, drawn.landmarks, labels, tmp_path / "new" / "a.png", "faces")
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width >= 200 * min(count, 8)


def test_landmarks_and_labels_are_drawn(tmp_path):
    """Colour appears only with landmarks; one outside is drawn at the edge all the same."""
    images = np.full((2, 1, 40, 40), 128, np.uint8)
    points = np.array(
        [[10, 30, 20, 12, 28, 12, 12, 20, 30, 30], [-50, 90, 20, 12, 28, 12, 12, 20, 30, 30]]
    )

    def coloured(landmarks, name):
        path = face_sheet(images, landmarks, {}, tmp_path / name, "t")
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
        return int((np.ptp(pixels, axis=2) > 40).sum())

    assert coloured(None, "plain.png") == 0
    assert coloured(points, "points.png") > 100
