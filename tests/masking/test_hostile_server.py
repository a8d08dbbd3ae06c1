"""A server that wants more than the sum: each way is refused by the clients, and said."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.member import Member
from fedgradnorm._masking.roster import Attempt, Roster, Unsafe, to_text
from masking.crowd import Crowd, people


def test_a_client_that_was_invented_is_not_on_the_roster():
    crowd = Crowd(4)
    _, strangers = people(5)
    shown = [crowd.members[n].keys(1) for n in crowd.names]
    theirs = Member(strangers["c04"], Roster({**crowd.roster.keys, "c04": bytes(32)}), "run")
    with pytest.raises(Unsafe, match="'c04' is not on the roster"):
        crowd.members["c00"].letters(1, [*shown, theirs.keys(1)])


def test_a_key_that_was_swapped_is_not_signed_by_its_owner():
    crowd = Crowd(3)
    shown = [crowd.members[n].keys(1) for n in crowd.names]
    swapped = copy.deepcopy(shown)
    swapped[1]["body"]["masks"] = shown[2]["body"]["masks"]
    with pytest.raises(Unsafe, match="the signature is not that of 'c01'"):
        crowd.members["c00"].letters(1, swapped)
    old = copy.deepcopy(shown[1])
    crowd.members["c01"].keys(2)
    fresh = crowd.members["c00"].keys(2)
    with pytest.raises(Unsafe, match="the signature is not that of 'c01'"):
        crowd.members["c00"].letters(2, [fresh, old, crowd.members["c02"].keys(2)])


def test_its_own_key_must_be_there_as_it_was():
    crowd = Crowd(4)
    shown = [crowd.members[n].keys(1) for n in crowd.names]
    with pytest.raises(Unsafe, match="its own keys are not among them"):
        crowd.members["c00"].letters(1, shown[1:])


def test_a_roster_of_two_and_a_sum_of_two_are_refused():
    roster, signers = people(2)
    with pytest.raises(Unsafe, match="a roster of 2"):
        Member(signers["c00"], roster, "run")
    crowd = Crowd(3)
    shown = [crowd.members[n].keys(1) for n in crowd.names]
    with pytest.raises(Unsafe, match="2 clients: a sum of so few"):
        crowd.members["c00"].letters(1, shown[:2])


def test_too_few_to_hide_among_are_refused():
    crowd = Crowd(7)
    at = crowd.prepared()
    letters = dict(list(at.letters_to("c00").items())[:3])
    words = crowd.values["c00"]
    with pytest.raises(Unsafe, match="4 of 7 clients are too few"):
        crowd.members["c00"].mask(1, letters, (0, "a"), "what", words[:2], words[2:])


def test_a_letter_for_another_or_of_another_attempt_cannot_be_opened():
    crowd = Crowd(3)
    at = crowd.prepared()
    letters = {**at.letters_to("c00"), "c01": at.letters["c01"]["c02"]}
    words = crowd.values["c00"]
    with pytest.raises(Unsafe, match="the shares of 'c01' cannot be opened"):
        crowd.members["c00"].mask(1, letters, (0, "a"), "what", words[:2], words[2:])


def test_two_lists_of_survivors_are_refused():
    crowd = Crowd(5)
    at = crowd.masked(lost={"input": ["c04"]})
    one, other = ["c00", "c01", "c02", "c03"], ["c00", "c01", "c02", "c03", "c04"]
    member = crowd.members["c00"]
    member.agree(1, one)
    with pytest.raises(Unsafe, match="another list of survivors"):
        member.agree(1, other)
    with pytest.raises(Unsafe, match="another list of survivors"):
        member.reveal(1, other)
    names = [crowd.members[n].agree(1, one) for n in ("c01", "c02")]
    with pytest.raises(Unsafe, match="2 clients agree to this list of survivors, 4 must"):
        member.reveal(1, one, names)
    forged = {**names[0], "from": "c03"}
    with pytest.raises(Unsafe, match="the signature is not that of 'c03'"):
        member.reveal(1, one, [*names, forged])
    assert at.survivors() == one


def test_a_list_with_somebody_missing_needs_agreement_before_shares_of_keys():
    crowd = Crowd(5)
    crowd.masked()
    with pytest.raises(Unsafe, match="nobody was asked to agree"):
        crowd.members["c00"].reveal(1, ["c00", "c01", "c02", "c03"])


def test_both_shares_of_one_client_are_never_shown():
    crowd = Crowd(5)
    at = crowd.masked()
    everybody, without = list(crowd.names), crowd.names[:4]
    shown = crowd.members["c00"].reveal(1, everybody)
    at.add_reveal(shown)
    assert "c04" in shown["body"]["own"]
    assert not shown["body"]["masks"]
    for again in (everybody, without):
        with pytest.raises(Unsafe, match="asked again, or out of turn, after 'over'"):
            crowd.members["c00"].reveal(1, again)
    with pytest.raises(Unsafe, match="after 'over'"):
        crowd.members["c00"].agree(1, without)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["c01", "c02", "c03", "c04"], "without this client"),
        (["c00", "c01", "c02"], "3 survivors: 4 are needed"),
        (["c00", "c01", "c02", "c09"], "clients that sent nothing"),
        (["c00", "c01", "c02", "c02"], "one twice"),
    ],
)
def test_a_list_of_survivors_that_cannot_be(names, words):
    crowd = Crowd(5)
    crowd.masked()
    for step in (crowd.members["c00"].agree, crowd.members["c00"].reveal):
        with pytest.raises(Unsafe, match=words):
            step(1, names)


def test_an_attempt_that_is_replayed_is_refused_at_every_step():
    crowd = Crowd(3)
    at = crowd.masked()
    member, shown = crowd.members["c00"], at.shown_keys()
    with pytest.raises(Unsafe, match="attempt 1 is not new"):
        member.keys(1)
    with pytest.raises(Unsafe, match="out of turn"):
        member.letters(1, shown)
    with pytest.raises(Unsafe, match="out of turn"):
        crowd.input("c00", at, "something else")
    member.reveal(1, crowd.names)
    with pytest.raises(Unsafe, match="out of turn"):
        crowd.input("c00", at)
    with pytest.raises(Unsafe, match="attempt 7 is not known"):
        member.reveal(7, crowd.names)


def test_a_round_is_summed_over_one_set_of_clients_only():
    """The difference of two sums would be the one client that is in the first alone."""
    crowd = Crowd(5)
    crowd.summed(1)
    crowd.masked(2, lost={"input": ["c04"]})
    with pytest.raises(Unsafe, match="the difference of the sums would show single clients"):
        crowd.members["c00"].agree(2, crowd.names[:4])
    assert np.array_equal(crowd.summed(3), crowd.plain(crowd.names))


def test_a_killed_client_remembers_what_it_said():
    crowd = Crowd(3)
    signer, roster = crowd.signers["c00"], crowd.roster
    at = crowd.masked()
    kept = json.loads(json.dumps(crowd.members["c00"].state))
    crowd.members["c00"] = Member(signer, roster, "run", kept)
    with pytest.raises(Unsafe, match="out of turn"):
        crowd.input("c00", at, "something else")
    for name in crowd.names:
        at.add_reveal(crowd.members[name].reveal(1, crowd.names))
    assert np.array_equal(at.sum(), crowd.plain(crowd.names))
    assert "secret" not in crowd.members["c00"].state["attempts"]["1"]


def test_a_client_that_lies_about_a_share_is_noticed_by_the_server():
    crowd = Crowd(3)
    at = crowd.masked()
    for name in crowd.names:
        member = crowd.members[name]
        if name == "c01":
            shares = member.state["attempts"]["1"]["shares"]["c02"]
            shares["own"] = to_text(bytes(66))
        at.add_reveal(member.reveal(1, crowd.names))
    with pytest.raises(Unsafe, match="the shares of 'c02' do not fit together"):
        at.sum()


def test_a_client_can_see_that_the_sum_it_is_told_is_the_sum():
    """From signed messages alone: numbers that the server made up do not come out of them."""
    crowd = Crowd(4)
    at = crowd.masked()
    for name in crowd.names:
        at.add_reveal(crowd.members[name].reveal(1, crowd.names))
    again = Gathering(Attempt("run", 1), crowd.roster)
    for message in at.keys.values():
        again.add_keys(message)
    again.givers = list(at.givers)
    for message in at.inputs.values():
        again.add_input(message, "what", None)
    for message in at.reveals.values():
        again.add_reveal(message)
    assert np.array_equal(again.sum(), at.sum()[:2])
    other = copy.deepcopy(dict(next(iter(at.inputs.values()))))
    other["body"] = {**other["body"], "numbers": to_text(bytes(16))}
    again.inputs.pop(other["from"])
    with pytest.raises(Unsafe, match="the signature is not that of"):
        again.add_input(other, "what", None)
