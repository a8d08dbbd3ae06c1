"""A connection to the SuperLink that does not last unless it is used."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 10.0  # seconds until a connection must have said what it wants, from its start or its last
LINGER = 10.0  # seconds that a closing connection has to take what was sent to it


class Brief(H11Protocol):
    """uvicorn's HTTP, less its patience: who says nothing, or says it slowly, is cut off."""

    _cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to count."""
        super().connection_made(transport)
        self._count()

    def data_received(self, data: bytes) -> None:
        """Take what was sent, unless the answer is that it is not wanted."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to count."""
        self._stop()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is at rest, whether or not its peer has read all."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(LINGER, self.transport.abort)

    def _count(self) -> None:
        """While no request is at work there is a time by which the next must be here, whole."""
        if self._at_work():
            self._stop()
        elif self._cut is None:
            self._cut = self.loop.call_later(HEAD, self._give_up)

    def _at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _give_up(self) -> None:
        self._cut = None
        if not self._at_work():
            self.transport.abort()
