"""Signing keys are made where they are used; the roster is assembled from public halves."""

from __future__ import annotations

import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import fedgradnorm as fgn
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._masking.roster import (
    Attempt,
    Phase,
    assemble_roster,
    fingerprint,
    from_text,
    make_key,
    read_key,
    read_signer,
    to_text,
)
from fedgradnorm._runs.layout import SIGNING


def test_a_key_signs_under_its_public_half_and_is_never_overwritten(tmp_path):
    keys = {name: make_key(tmp_path / name, SIGNING) for name in "abc"}
    roster = assemble_roster({name: key.text for name, key in keys.items()})
    signer = read_signer("a", tmp_path / "a" / "signing.key")
    attempt = Attempt.new("agreed", "run", 0, Phase.UPDATE)
    message = signer.sign(attempt, "survivors", {"survivors": "x"})
    assert roster.said(attempt, "survivors", message) == ("a", {"survivors": "x"})
    assert read_key(tmp_path / "a" / "signing.key") == keys["a"]
    assert keys["a"].fingerprint == fingerprint(from_text(keys["a"].text))
    with pytest.raises(fgn.ConfigError, match=r"never overwritten\. Its public key: " + "."):
        make_key(tmp_path / "a", SIGNING)


def test_a_private_file_has_mode_0600_from_its_first_byte(tmp_path, monkeypatch):
    seen, plain = [], os.fdopen

    def opened(handle, mode):
        seen.append((stat.S_IMODE(os.fstat(handle).st_mode), os.fstat(handle).st_size))
        return plain(handle, mode)

    monkeypatch.setattr(os, "fdopen", opened)
    before = os.umask(0)
    try:
        make_key(tmp_path, SIGNING)
    finally:
        os.umask(before)
    assert seen == [(0o600, 0)]


def test_equal_keys_are_refused(tmp_path):
    a, b = (make_key(tmp_path / name, SIGNING).text for name in "ab")
    with pytest.raises(fgn.ConfigError, match="'b' and 'c' have the same key"):
        assemble_roster({"a": a, "b": b, "c": b})
    with pytest.raises(fgn.ConfigError, match="at least 3 clients, not 2"):
        assemble_roster({"a": a, "b": b})


P = 2**255 - 19
SMALL = [0, 1, P - 1, P, P + 1]  # neutral element and points of order 2 and 4; or too large


@pytest.mark.parametrize(
    "key", ["", "AAAA", "?", 7, None, *(to_text(y.to_bytes(32, "little")) for y in SMALL)]
)
def test_what_is_no_public_key_is_refused(key, tmp_path):
    good = {name: make_key(tmp_path / name, SIGNING).text for name in "ab"}
    with pytest.raises(fgn.ConfigError, match="the key of client 'c' is not a public signing key"):
        assemble_roster({**good, "c": key})


def test_points_of_order_8_and_points_off_the_curve_are_refused(tmp_path):
    good = {name: make_key(tmp_path / name, SIGNING).text for name in "ab"}
    order8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
    off = (2).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(order8)  # the library takes it
    for raw in (order8, off):
        with pytest.raises(fgn.ConfigError, match="is not a public signing key"):
            assemble_roster({**good, "c": to_text(raw)})


def test_fingerprints_differ_with_one_bit(tmp_path):
    keys = {name: make_key(tmp_path / name, SIGNING).text for name in "abc"}
    one = PrivateTerms(keys)
    other = PrivateTerms({**keys, "c": make_key(tmp_path / "d", SIGNING).text})
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == PrivateTerms(dict(reversed(keys.items()))).fingerprint
