"""Time and memory against the number of clients: one process per point, so that peaks are its own.

python benchmarks/scale.py [RESULT.json]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CLIENTS = [1, 10, 100, 300, 1000]


def point(clients: int) -> None:
    from work import Work, make_clients, make_ours, seconds

    work = Work(f"{clients} clients", clients, 16, size=64)
    data = make_clients(work)
    names = [client.name for client in data]
    ours = make_ours(work, data)
    each = seconds(
        lambda a, n: [ours.rounds(k, [names]) for k in range(a, a + n)], 1, repeats=3, warm=1
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({"clients": clients, "seconds": each, "peak_gb": peak}))


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--point":
        point(int(sys.argv[2]))
        return
    rows = []
    for clients in CLIENTS:
        command = [sys.executable, __file__, "--point", str(clients)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "scale.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
