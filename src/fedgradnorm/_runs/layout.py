"""The names of all files of a run, each written once.

A run folder:

run.json                 settings, seed, clients, versions, command; whether there is a checkpoint
config.toml              the resolved config, where the run was started from one
metrics.csv              the history, append-only
spread.csv               quantiles over clients, where the history has not the rows of all
log.txt                  warnings and milestones with their time
dropped.txt              rows that the data source left out, where it did
checkpoint.safetensors   everything needed to continue, replaced atomically
previous.safetensors     the checkpoint before that, until the run has finished
network.safetensors      the trained shared network, once finished
heads.safetensors        each client's head and what else is its own, once finished
rows/NUMBER.safetensors  rows of many clients that changed between two checkpoints
tensorboard/             event files, where they are asked for
superlink.log            what Flower's server said, where there was one
.lock                    held by the process that writes here
"""

from __future__ import annotations

import os
from pathlib import Path

MANIFEST, CONFIG = "run.json", "config.toml"
METRICS, SPREAD = "metrics.csv", "spread.csv"
LOG, LINK_LOG, DROPPED = "log.txt", "superlink.log", "dropped.txt"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
NETWORK = "network.safetensors"
EVENTS = "tensorboard"
HEADS, ROWS = "heads.safetensors", "rows"
LOCK = ".lock"
FILES = (
    CONFIG, LOG, LINK_LOG, DROPPED, CHECKPOINT, PREVIOUS, METRICS, SPREAD, NETWORK, HEADS
)  # fmt: skip
"""The regular files of a run folder in addition to run.json."""

REPORT, TABLES, FIGURES = "report.html", "tables", "figures"
"""What a report of runs writes: its page, and the folders of its tables and figures."""

BENEFIT = "benefit.csv"
"""Next to the runs of a federation and of its clients alone: the benefit of each."""

FEDERATION, CLIENTS, LINK_DATABASE = "federation.toml", "clients", "superlink.db"
REGISTERED, REVOKED, STATUS = "registered", "revoked", "status.json"
"""In a federation's folder: its participants and their folders, Flower's database, the clients'
public keys, the revoked ones, and the status of the run."""

CLIENT, AGREED, JOIN_LOG = "client.toml", "run.toml", "join.log"
"""In a client's own folder: who it is, the run it agreed to, and what ``join`` said."""
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
"""In a federation's folder: what the server shows and keeps to itself."""
CA, KEY, STATE = "ca.pem", "client.key", "state"
"""Next to them: the certificate it trusts, its private key, and the folder of its state."""

ROSTER, SIGNING = "roster.toml", "signing.key"
"""In a private federation: the public keys of all clients, and a client's own to sign with."""

NODE, SLOTS = "node.txt", ("state-0.safetensors", "state-1.safetensors")
"""In the folder of a client's state: which node it was, and its last two rounds."""
LEDGER, LEDGER_SEEN = "privacy.jsonl", "privacy.witness"
"""Next to them, of a private client: what it has spent, and in a run's folder what that run saw."""
RESULT, OWN_HISTORY = "result", "history.jsonl"
"""Next to them: the run folder of its result, and what it measured in each round."""

MASKING, LEVELS, TRAINED = "masking.json", "levels", "trained.safetensors"
"""Next to them, in a private federation: keys of attempts, the client's level, and its update."""
REVEALED = "revealed.txt"
"""In the folder of a client's state: which sums it has let be seen in all runs.

Each file there has a dot in its name. No run has: the server names runs, and each is a folder.
"""

TEMPORARY = ".*.tmp"
"""The pattern of files that are being written, or that a kill has left."""


def temporary(path: Path) -> Path:
    """Where this process writes what will become ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
