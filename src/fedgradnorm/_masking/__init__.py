"""Sums over clients of which the server sees nothing but the sums (Bonawitz et al. 2017).

Knows no transport. Messages are plain tables of texts and numbers, vectors are words of 64 bits.

ring          numbers and vectors as words that can be added and masked
shamir        a secret in shares, of which some are enough and fewer say nothing
roster        who participates, what a sum is of, and messages signed by clients
attempt_keys  the keys of one attempt, and shares sealed for one reader
masks         words that nobody can tell from chance, made for all that an input depends on
revealed      which sums a client has let be seen
session       a client: one state machine per attempt, and what it refuses
gathering     the server: what it collects, and the sum

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning"
(2017), with the keys of a public register and the signed list of survivors (their figure 4).
"""
