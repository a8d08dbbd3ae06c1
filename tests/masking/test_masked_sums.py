"""A masked sum is exactly the plain one, whoever is lost and when; below the threshold it ends."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import derived
from fedgradnorm._masking.gathering import TooFew
from fedgradnorm._masking.masks import CHUNK, add_mask, mask_label
from fedgradnorm._masking.ring import (
    FRACTION,
    LARGEST,
    LIMBS,
    Unfit,
    fraction_bits,
    pack_numbers,
    pack_vector,
    unpack_numbers,
    unpack_vector,
)
from fedgradnorm._masking.roster import (
    Subject,
    digest,
    from_text,
    least_shown,
    names_digest,
    threshold,
)
from masking.crowd import STEPS, Crowd


@given(data=st.data(), count=st.sampled_from([3, 4, 5, 7, 10, 30]))
@settings(max_examples=12)
def test_the_sum_is_the_plain_one_to_the_bit_whoever_is_lost(data, count):
    """At every step somebody may be lost, as long as enough are left."""
    crowd, lost, gone = Crowd(count, seed=count), dict[str, list[str]](), set[str]()
    for step in STEPS:
        left = [n for n in crowd.names if n not in gone]
        c = crowd.colluders
        least = least_shown(count, c) if step == "keys" else threshold(count, c)
        most = min(len(left) - least, 2)
        drawn = data.draw(st.integers(0, max(0, most)))
        lost[step] = data.draw(st.permutations(left))[:drawn]
        gone |= set(lost[step])
    before = set().union(*(lost[step] for step in STEPS[:3]))
    expected = crowd.plain([n for n in crowd.names if n not in before])
    assert np.array_equal(crowd.summed(lost=lost), expected)


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_an_attempt_ends_and_shows_nothing(step):
    crowd = Crowd(7)
    left = least_shown(7, 2) - 1 if step == "keys" else threshold(7, 2) - 1
    with pytest.raises(TooFew):
        crowd.summed(lost={step: crowd.names[left:]})
    assert np.array_equal(crowd.summed("2"), crowd.plain(crowd.names))


def test_what_the_server_holds_is_uniform():
    """Bytes of masked inputs of equal, plain values: no value of a byte is more frequent."""
    crowd = Crowd(4, size=20_000)
    for name in crowd.names:
        crowd.values[name] = np.full(20_002, 7, dtype=np.uint64)
    at = crowd.prepared()
    for name in crowd.names:
        _, rest = crowd.input(name, at)
        counts = np.bincount(np.frombuffer(rest.tobytes(), np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-6
        bits = np.unpackbits(rest.view(np.uint8)).reshape(-1, 64).mean(0)
        assert np.abs(bits - 0.5).max() < 6 * 0.5 / math.sqrt(len(rest))


def test_one_mask_is_another_for_another_attempt_or_thing():
    crowd = Crowd(3)
    inputs = {}
    for number, about in ((1, "a"), (2, "a"), (3, "b")):
        crowd.members = {name: crowd.session(name) for name in crowd.names}
        at = crowd.prepared(str(number))
        inputs[number] = crowd.input("c00", at, Subject(about))[1]
    assert not (inputs[1] == inputs[2]).any()
    assert not (inputs[2] == inputs[3]).any()


def test_clients_that_are_told_different_things_add_up_to_chance():
    """S3: a hostile server adds them up all the same, and has everybody's own mask."""
    crowd = Crowd(4, size=1000)
    at, total = crowd.prepared(), np.zeros(1002, dtype=np.uint64)
    about = (digest(at.public), at.roster.digest, names_digest(at.givers))
    for name in crowd.names:
        own = from_text(crowd.members[name].state["attempts"]["1"]["secret"]["own"])
        subject = Subject("one" if name < "c02" else "other")
        message, rest = crowd.input(name, at, subject)
        front = np.frombuffer(from_text(message["body"]["numbers"]), dtype="<u8")
        words = np.concatenate([front, rest])
        label = mask_label(at.attempt, *about, subject.facts())
        add_mask(words, derived(own, "own", label), -1)
        total = total + words
    assert not (total == crowd.plain(crowd.names)).any()
    assert chisquare(np.bincount(total.view(np.uint8), minlength=256)).pvalue > 1e-6


@given(
    secret=st.binary(min_size=32, max_size=32),
    other=st.binary(min_size=32, max_size=32),
    count=st.integers(3, 30),
    data=st.data(),
)
def test_fewer_shares_than_needed_fit_every_secret(secret, other, count, data):
    least = threshold(count, count // 3)
    shares = dict(enumerate(shamir.split(secret, least, count), start=1))
    chosen = data.draw(st.permutations(sorted(shares)))
    assert shamir.join({x: shares[x] for x in chosen[:least]}, 32) == secret
    fewer = {x: int.from_bytes(shares[x], "big") for x in chosen[: least - 1]}
    free = chosen[least - 1]  # one more point makes any other secret of them
    fitting = shamir.value_at(free, {**fewer, 0: int.from_bytes(other, "big")})
    points = {**{x: shares[x] for x in fewer}, free: fitting.to_bytes(shamir.SIZE, "big")}
    assert shamir.join(points, 32) == other


@given(st.lists(st.tuples(*[st.floats(-1e15, 1e15)] * 2), min_size=1, max_size=30))
def test_numbers_are_rounded_to_one_grid_and_then_added_exactly(rows):
    total = np.zeros(2 * LIMBS, dtype=np.uint64)
    for row in rows:
        total = total + pack_numbers(row)
    found = unpack_numbers(total)
    for k in range(2):
        on_grid = [round(Fraction(row[k]) * 2**FRACTION) for row in rows]
        assert found[k] == float(Fraction(sum(on_grid), 2**FRACTION))


def test_a_sum_does_not_show_a_small_summand_beside_a_large_one():
    """S9: of two numbers below the grid nothing is left; on it every summand has the last bit."""
    large, small = 1000.0 + 1 / 3, 2.0 ** -(FRACTION + 5) * 1.75
    words = pack_numbers([large]) + pack_numbers([small])
    assert np.array_equal(words, pack_numbers([large]) + pack_numbers([0.0]))
    assert round(Fraction(large) * 2**FRACTION) != Fraction(1000) * 2**FRACTION


@given(st.integers(3, 30), st.floats(1e-3, 1e6), st.integers(0, 2**32))
def test_a_vector_is_rounded_once_and_then_added_exactly(count, largest, seed):
    rng, bits = np.random.default_rng(seed), fraction_bits(count, largest)
    rows = [rng.uniform(-largest, largest, 50) for _ in range(count)]
    total = np.zeros(50, dtype=np.uint64)
    for row in rows:
        total = total + pack_vector(row, bits)
    error = np.abs(unpack_vector(total, bits) - np.sum(rows, axis=0)).max()
    assert error <= count * 2.0 ** -(bits + 1) + 1e-13 * count * largest


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2 * LARGEST])
def test_what_cannot_be_added_is_said_before_it_is_masked(bad):
    with pytest.raises(Unfit):
        pack_numbers([1.0, bad])
    with pytest.raises(Unfit):
        pack_vector(np.array([0.0, bad]), 30)


def test_a_long_mask_is_made_in_pieces_of_one_stream():
    long, short = np.zeros(CHUNK + 5, np.uint64), np.zeros(10, np.uint64)
    for words in (long, short):
        add_mask(words, bytes(range(32)), +1)
    assert np.array_equal(long[:10], short)
    assert not np.array_equal(long[:5], long[CHUNK:])
    add_mask(long, bytes(range(32)), -1)
    assert not long.any()
