"""The SuperLink process: ``python -m fedgradnorm._flower.wire.link FLOWER'S ARGUMENTS``.

Flower serves three interfaces on one port: for nodes, which must sign with a registered key; for
operators, who may register keys and submit programs; and for those programs. The last two ask
nobody who they are. Here they open only to who knows the secret that ``serve`` made for this
process, so that reaching the port does not make anybody an operator (``door``).
"""

from __future__ import annotations

import os
from importlib import import_module

SECRET = "FEDGRADNORM_OPERATOR"  # the environment variable that carries it, to this process alone
PARENT = "FEDGRADNORM_PARENT"
VECTOR = "FEDGRADNORM_VECTOR"  # bytes of the shared vector
HEAD = "FEDGRADNORM_HEAD"  # bytes of the largest head that is shared


def main() -> None:
    """Serve until killed, or until the process that started this one is gone."""
    secret, parent = os.environ.pop(SECRET), int(os.environ.pop(PARENT))
    vector, head = (int(os.environ.pop(name)) for name in (VECTOR, HEAD))
    import uvicorn
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink.main import create_app

    from fedgradnorm._flower.wire.connections import Brief
    from fedgradnorm._flower.wire.door import Guard
    from fedgradnorm._flower.wire.limits import Limits

    # The package has a function of the module's name, so the module is asked for by name.
    flower_superlink = import_module("flwr.superlink.cli.flower_superlink")
    start_parent_process_monitor(parent)
    config = flower_superlink._parse_superlink_lifespan_config()
    app = create_app(config, flower_superlink.SuperLinkLifespan)
    app.add_middleware(
        Guard,
        secret=secret,
        limits=Limits(vector, head),
        nodes=lambda key: app.state.linkstate_factory.state().get_node_id_by_public_key(key),
        runs=lambda: [run.run_id for run in app.state.linkstate_factory.state().get_run_info()],
    )
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        http=Brief,
        ws="none",
        log_level="warning",
        access_log=False,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


if __name__ == "__main__":
    main()
