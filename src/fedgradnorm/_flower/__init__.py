"""A run between organisations: what was agreed, the server's rounds, a client's answers.

agreement     what both sides must have the same, and what leaves a client
files         federation.toml and client.toml
setup         ``federation init``
coordinator   the server's rounds
group_heads   the heads that clients share, as the server holds them
attendance    who is asked in them: suspended and shut out clients are not
serving       ``serve``: SuperLink, coordinator, run folder
slots         a client's own state on disk
keeping       ... and the state that does best on its validation rows
participant   a client's answers
join          ``join``
"""
