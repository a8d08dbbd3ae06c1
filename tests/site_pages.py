"""Where the pages are."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
