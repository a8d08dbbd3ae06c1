"""A pandas table that shows all of itself, however narrow the terminal is."""

from __future__ import annotations

from typing import Any

import pandas as pd

_ALL = ("display.max_rows", None, "display.max_columns", None)


def _text(frame: Any) -> str:
    """No row or column left out; wide tables go on below."""
    with pd.option_context(*_ALL):
        return str(pd.DataFrame.__repr__(frame))


# pandas says nothing of its types, and a class statement would need them.
WholeFrame: Any = type(
    "WholeFrame", (pd.DataFrame,), {"__repr__": _text, "__module__": __name__, "__doc__": __doc__}
)
