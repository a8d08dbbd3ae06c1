"""A run between organizations: what was agreed, the server's rounds, a client's answers.

agreement        what both sides must have the same, and what leaves a client
federation_file  federation.toml and client.toml
setup            ``federation init``, keys, the roster
approval, audit  which runs are approved; what happened, append-only
serving          ``serve``: SuperLink, coordinator, run folder; ``status`` writes what it knows
coordinator      the server's rounds
group_heads      the heads that clients share, as the server holds them
attendance       who is asked in them: suspended and shut out clients are not
join             ``join``
client_session   a client's answers
slots            its state on disk
own_history      ... and what it measured
ledger           ... and what its privacy has cost
"""
