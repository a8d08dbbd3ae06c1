"""The SuperLink process: ``python -m fedgradnorm.engines.flower.link FLOWER'S ARGUMENTS``.

Flower serves three interfaces on one port: for nodes, which must sign with a registered key; for
operators, who may register keys and submit programs; and for those programs. The last two ask
nobody who they are. Here they open only to who knows the secret that ``serve`` made for this
process, so that reaching the port does not make anybody an operator.
"""

from __future__ import annotations

import hmac
import os
from importlib import import_module
from typing import Any

HEADER = "x-fedgradnorm-operator"
SECRET = "FEDGRADNORM_OPERATOR"  # the environment variable that carries it, to this process alone
PARENT = "FEDGRADNORM_PARENT"
NODES = "/v1/fleet/"
LARGEST = 256 << 20  # bytes of one request; Flower cuts arrays into far smaller pieces


class Guard:
    """Lets nodes pass to their own interface, and the operator everywhere."""

    def __init__(self, app: Any, secret: str) -> None:
        self.app, self.secret = app, secret.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, or answer 403 or 413 without reading it."""
        if scope["type"] == "http":
            status = self.refusal(scope["path"], dict(scope["headers"]))
            if status is not None:
                start = {"type": "http.response.start", "status": status, "headers": []}
                await send(start)
                await send({"type": "http.response.body", "body": b""})
                return
        await self.app(scope, receive, send)

    def refusal(self, path: str, headers: dict[bytes, bytes]) -> int | None:
        """The HTTP status to refuse with, or None."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LARGEST:
            return 413
        given = headers.get(HEADER.encode(), b"")
        if path.startswith(NODES) or hmac.compare_digest(given, self.secret):
            return None
        return 403


def main() -> None:
    """Serve until killed, or until the process that started this one is gone."""
    secret, parent = os.environ.pop(SECRET), int(os.environ.pop(PARENT))
    import uvicorn
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink.main import create_app

    # The package has a function of the module's name, so the module is asked for by name.
    flower_superlink = import_module("flwr.superlink.cli.flower_superlink")
    start_parent_process_monitor(parent)
    config = flower_superlink._parse_superlink_lifespan_config()
    app = create_app(config, flower_superlink.SuperLinkLifespan)
    app.add_middleware(Guard, secret=secret)
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        log_level="warning",
        access_log=False,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


if __name__ == "__main__":
    main()
