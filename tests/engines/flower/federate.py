"""A federation's clients and server until the run is over: ``federate.py CONFIG FEDERATION``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from fedgradnorm._flower.join import joined

if __name__ == "__main__":
    config, federation = map(Path, sys.argv[1:])
    words = ["serve", str(config), "--federation", str(federation)]
    began = time.monotonic()
    with joined(sorted((federation / "clients").iterdir())):
        served = subprocess.run([sys.executable, "-m", "fedgradnorm", *words], check=False)
    print(f"{time.monotonic() - began:.1f} s from the first process to the last")
    sys.exit(served.returncode)
