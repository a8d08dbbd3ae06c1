"""A federation whose server sees only sums: what its clients and its server do in addition.

private_terms      the roster and what is agreed besides the run
network_check      how far the server's optimizer can have moved the network
verified_sums      sums with the signed messages that show that they are right
own_level          a client's own level: the weighting with one row
secure_sum_client  a client's answers
summing            one secure sum: two exchanges, three where somebody is lost
private_rounds     the server's rounds
"""
