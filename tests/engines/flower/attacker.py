"""A registered client whose every answer names a part that it does not send.

``attacker.py ADDRESS HOME``
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from engines.flower.wire import Wire, packed, part_not_sent

# isort: split
import httpx
from flwr.app import Message, RecordDict
from flwr.supercore.run import RunNotRunningException


def connected(address: str, home: Path) -> Wire:
    """As soon as the server is there, and knows its key."""
    while True:
        try:
            return Wire(address, home)
        except httpx.HTTPError:
            time.sleep(0.5)


if __name__ == "__main__":
    wire = connected(sys.argv[1], Path(sys.argv[2]))
    while True:
        try:
            order = wire.order(1)
            if order is not None:
                wire.push(part_not_sent(packed(Message(RecordDict({}), reply_to=order))))
        except (httpx.HTTPError, RunNotRunningException):
            time.sleep(0.5)
