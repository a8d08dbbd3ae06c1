"""A station's hours, parsed once and kept in the cache: text takes half a second a station."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._cache import cached
from fedgradnorm.data.beijing._hours import NUMBERS, Hours, parse
from fedgradnorm.data.beijing._station_files import StationFile

_VERSION = 1  # raise it when the same file and options give other arrays


def station_hours(file: StationFile, on_bad: OnBad, folder: Path | None) -> tuple[Hours, list[str]]:
    """The hours of one file, and what was wrong with those that were left out of it."""

    def build() -> tuple[dict[str, NDArray[Any]], dict[str, object]]:
        bad = BadRows[str](on_bad)
        hours = parse(file, bad)
        numbers = np.stack([hours.columns[name] for name in NUMBERS])
        return {"time": hours.time, "numbers": numbers, "wind": hours.wind}, {"bad": bad.messages}

    period = f"{file.first}-{file.last}"
    key = {"version": _VERSION, "file": file.fingerprint(), "period": period, "on_bad": on_bad}
    kept = cached("beijing", key, build, folder=folder)
    columns = dict(zip(NUMBERS, kept.arrays["numbers"], strict=True))
    return Hours(kept.arrays["time"], columns, kept.arrays["wind"]), list(kept.info["bad"])
