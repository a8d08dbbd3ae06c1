"""A server, alone or with colluding clients, that wants more than one sum: clients refuse."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import SEED, derived, fits
from fedgradnorm._masking.gathering import Gathering, TooFew
from fedgradnorm._masking.liars import proof, proved_liar
from fedgradnorm._masking.masks import add_mask, add_own, add_pair, mask_label
from fedgradnorm._masking.revealed import Revealed
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import (
    Attempt,
    Phase,
    Roster,
    Subject,
    Unsafe,
    digest,
    from_text,
    least_shown,
    names_digest,
    threshold,
    to_text,
)
from fedgradnorm._masking.session import NEXT, Session, Step
from masking.crowd import SUBJECT, UPDATE, Crowd, people

OTHER = Subject("another-network")


def test_no_two_lists_of_survivors_for_any_number_of_clients():
    """SA-1, S2: over all sizes, colluders and numbers of clients that showed keys.

    Each honest client shows shares for one list, each colluder for two: with h_1 + h_2 <= n - c
    honest ones, both lists need t <= h + c. That must be impossible, and a sum must hide. It holds
    also where the two halves were shown different keys, or are asked in different attempts.
    """
    n, c = np.meshgrid(np.arange(3, 401), np.arange(0, 399), indexing="ij")
    n, c = n[c <= n - 2], c[c <= n - 2]
    t = np.maximum(3, (n + c) // 2 + 1)
    least = np.maximum(-(-3 * n // 4), t)
    sizes = [(3, 0), (4, 1), (5, 1), (10, 3), (30, 10), (400, 133), (400, 398)]
    at = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(n, c, strict=True))}
    assert all(least_shown(a, b) == least[at[a, b]] for a, b in sizes)
    assert all(threshold(a, b) == t[at[a, b]] for a, b in sizes)
    assert (2 * t > n + c).all()  # no two lists
    assert (t - c >= 2).all()  # the sum is over two honest clients or more
    checked = 0
    for extra in range(401):
        m = least + extra
        some = m <= n
        m = m[some]
        assert (2 * t[some] > m + c[some]).all()
        assert (t[some] <= m).all()  # nobody lost: there is a sum
        assert (4 * m >= 3 * n[some]).all()
        checked += len(m)
    assert checked > 4_000_000


def shown_different_keys(crowd: Crowd) -> Words:
    """What a server learns of the last client by showing two halves different keys of one attempt.

    The second half, told that the victim is lost, shows shares of its key for masks. The first half
    believes that it participates, so the sum of all of them may be repeated: now with its part.
    """
    names, signed = crowd.names, {m["from"]: m for m in crowd.shown()}
    victim, half, other = names[-1], names[:7], names[7:14]
    one, two = crowd.gathering(), crowd.gathering()
    for at, some in ((one, [*half, victim, *other[:4]]), (two, [*other, victim, *half[:4]])):
        for name in some:
            at.add_keys(name, signed[name])
    for at, some in ((one, half), (two, [*other, victim])):
        for name in some:
            at.add_letters(name, crowd.members[name].letters("1", at.shown_keys()))
    one.givers, two.givers = half, sorted([*other, victim])
    dealt = {n: at.letters_to(n) for at, some in ((one, half), (two, other)) for n in some}
    one.givers = sorted([*half, victim])
    for at, some in ((one, half), (two, other)):
        for name in some:
            letters = dealt[name] if at is two else {**dealt[name], victim: ["", {}]}
            words = crowd.values[name]
            message, rest = crowd.members[name].mask("1", letters, SUBJECT, words[:2], words[2:])
            at.add_input(name, message, SUBJECT, rest, 2)
    for name in other:
        two.add_agreement(name, crowd.members[name].agree("1", other))
    shown = [crowd.members[n].reveal("1", other, list(two.agreements.values())) for n in other]
    shares = {n: from_text(m["body"]["masks"][victim]) for n, m in zip(other, shown, strict=True)}
    places = {n: i for i, n in enumerate(sorted(two.keys), start=1)}
    private = shamir.join({places[n]: share for n, share in shares.items()}, SEED)
    assert fits(private, one.public[victim]["masks"])
    total = one.total.copy()
    label = mask_label(
        one.attempt, digest(one.public), crowd.roster.digest, names_digest(one.givers),
        SUBJECT.facts(),
    )  # fmt: skip
    shown = [crowd.members[n].reveal("1", one.givers) for n in half]
    places = {n: i for i, n in enumerate(sorted(one.keys), start=1)}
    for name in half:
        shares = {places[m["from"]]: from_text(m["body"]["own"][name]) for m in shown}
        add_own(total, shamir.join(shares, SEED), label, -1)
        add_pair(total, private, one.public[name]["masks"], label, victim, name)
    crowd.names = [*half, victim, *other[:4]]
    whole = crowd.prepared("2")
    whole.givers = one.givers
    for name in one.givers:
        words = crowd.values[name]
        letters = whole.letters_to(name)
        message, rest = crowd.members[name].mask("2", letters, SUBJECT, words[:2], words[2:])
        whole.add_input(name, message, SUBJECT, rest, 2)
    for name in one.givers:
        whole.add_reveal(name, crowd.members[name].reveal("2", one.givers))
    return whole.sum() - total


def test_two_halves_that_are_shown_different_keys(monkeypatch):
    """With a threshold of those that showed keys, it gave a server alone one client's input."""
    crowd = Crowd(16, colluders=0)
    victim = crowd.names[-1]
    with pytest.raises(Unsafe, match="8 of 12 clients are too few to hide among"):
        shown_different_keys(crowd)
    weak = Crowd(16, colluders=0)
    for member in weak.members.values():
        member.least = 12 // 2 + 1
    monkeypatch.setattr(Gathering, "least", 12 // 2 + 1)
    assert np.array_equal(shown_different_keys(weak), weak.values[victim])


def test_two_attempts_whose_shares_other_clients_show():
    """With a threshold of those that showed keys, their difference was the parts of two clients."""
    crowd = Crowd(9, colluders=0)
    first, left = crowd.masked("1"), crowd.names
    for name in left[:5]:
        first.add_reveal(name, crowd.members[name].reveal("1", left))
    assert np.array_equal(first.sum(), crowd.plain(left))
    second = crowd.masked("2", lost={"keys": left[:2]})
    for name in left[5:]:
        second.add_reveal(name, crowd.members[name].reveal("2", left[2:]))
    for name in left[2:5]:
        with pytest.raises(Unsafe, match="difference of the two would show single clients"):
            crowd.members[name].reveal("2", left[2:])
    with pytest.raises(TooFew, match="4 clients showed shares, 5 are needed"):
        second.sum()


def test_every_step_follows_only_where_the_table_says_so():
    """S1: in each step every other message is refused, before anything is given."""
    crowd = Crowd(4)
    at, member = crowd.gathering(), crowd.members["c00"]

    def tried() -> dict[Step, str]:
        """Which steps are not out of turn now; nothing is changed by trying."""
        found = {}
        for step, call in {
            Step.LETTERS: lambda m: m.letters("1", []),
            Step.INPUT: lambda m: m.mask("1", {}, SUBJECT, np.zeros(0), np.zeros(0)),
            Step.AGREED: lambda m: m.agree("1", []),
            Step.REVEALED: lambda m: m.reveal("1", []),
        }.items():
            kept = json.loads(json.dumps(member.state))
            again = crowd.session("c00", state=kept, revealed=member.revealed)
            with pytest.raises(Unsafe) as error:
                call(again)
            found[step] = str(error.value)
        return {k: v for k, v in found.items() if "cannot follow" not in v and "known" not in v}

    assert not tried()
    shown = crowd.shown()
    for one, message in zip(crowd.names, shown, strict=True):
        at.add_keys(one, message)
    assert set(tried()) == NEXT[Step.KEYS]
    for one in crowd.names:
        at.add_letters(one, crowd.members[one].letters("1", at.shown_keys()))
    at.close_letters()
    assert set(tried()) == NEXT[Step.LETTERS]
    for one in crowd.names:
        message, rest = crowd.input(one, at)
        at.add_input(one, message, SUBJECT, rest, 2)
    assert set(tried()) == NEXT[Step.INPUT]
    member.agree("1", crowd.names)
    assert set(tried()) == NEXT[Step.AGREED]
    member.reveal("1", crowd.names)
    assert not tried()
    assert "secret" not in json.dumps(member.state)


def test_a_killed_client_goes_on_from_what_it_wrote_down():
    crowd = Crowd(3)
    at = crowd.masked()
    kept = json.loads(json.dumps(crowd.members["c00"].state))
    with pytest.raises(Unsafe, match="record of the sums it has let be seen was lost"):
        crowd.session("c00", state=kept)
    revealed = crowd.members["c00"].revealed
    crowd.members["c00"] = crowd.session("c00", state=kept, revealed=revealed)
    with pytest.raises(Unsafe, match="input cannot follow input"):
        crowd.input("c00", at)
    assert np.array_equal(crowd.revealed(at), crowd.plain(crowd.names))


def test_keys_that_were_invented_swapped_repeated_or_left_out():
    crowd = Crowd(4)
    shown, member = crowd.shown(), crowd.members["c00"]
    _, strangers = people(5)
    roster = Roster({**crowd.roster.keys, "c04": bytes(32)})
    given = {"colluders": 1}
    theirs = Session(strangers["c04"], roster, "agreed", "run", **given).keys("1", 0, UPDATE)
    swapped = copy.deepcopy(shown)
    swapped[1]["body"]["masks"] = shown[2]["body"]["masks"]
    weak = crowd.signers["c01"].sign(
        crowd.attempt(), "keys", {**shown[1]["body"], "masks": to_text(bytes(32))}
    )
    for keys, words in [
        ([*shown, theirs], "'c04' is not on the roster"),
        (swapped, "the signature is not that of 'c01'"),
        ([*shown, shown[1]], "two keys of 'c01'"),
        (shown[1:], "its own keys are not among them"),
        ([shown[0], weak, *shown[2:]], "a public key that cannot be used"),
        (shown[:2], "3 must, so that 1 colluders are too few"),
        ({"c00": shown[0]}, "not a list"),
    ]:
        with pytest.raises(Unsafe, match=words):
            member.letters("1", keys)
    with pytest.raises(Unsafe, match="attempt '1' is not new"):
        member.keys("1", 0, UPDATE)


def test_what_was_signed_for_another_round_phase_or_attempt_does_not_count():
    """Nor what was signed for another run or agreement."""
    crowd = Crowd(3)
    message = crowd.members["c00"].keys("1", 0, UPDATE)
    for other in (
        crowd.attempt("2"), crowd.attempt("1", 1), crowd.attempt("1", 0, Phase.SIGNALS),
        Attempt("agreed", "again", 0, UPDATE, "1"), Attempt("other", "run", 0, UPDATE, "1"),
    ):  # fmt: skip
        with pytest.raises(Unsafe, match="the signature is not that of 'c00'"):
            crowd.roster.said(other, "keys", message)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["c01", "c02", "c03", "c04"], "without this client"),
        (["c00", "c01", "c02"], "3 survivors: 4 are needed"),
        (["c00", "c01", "c02", "c09"], "clients that sent nothing"),
        (["c00", "c01", "c02", "c02"], "one twice"),
        ("c00", "no list of names"),
        (["c00", ["c01"]], "no list of names"),
    ],
)
def test_a_list_of_survivors_that_cannot_be(names, words):
    crowd = Crowd(5)
    crowd.masked()
    for step in (crowd.members["c00"].agree, crowd.members["c00"].reveal):
        with pytest.raises(Unsafe, match=words):
            step("1", names)


def test_a_client_shows_both_shares_of_nobody():
    """SA-1: not for two lists, not without the others' names under one, not after it is over."""
    crowd = Crowd(5)
    crowd.masked(lost={"input": ["c04"]})
    one, other = crowd.names[:4], list(crowd.names)
    member = crowd.members["c00"]
    with pytest.raises(Unsafe, match="nobody was asked to agree"):
        member.reveal("1", one)
    mine = member.agree("1", one)
    for step in (member.agree, member.reveal):
        with pytest.raises(Unsafe, match=r"another list of survivors|cannot follow"):
            step("1", other)
    names = [crowd.members[n].agree("1", one) for n in ("c01", "c02")]
    forged = {**names[0], "from": "c03"}
    with pytest.raises(Unsafe, match="2 clients agree to this list of survivors, 4 must"):
        member.reveal("1", one, names)
    with pytest.raises(Unsafe, match="the signature is not that of 'c03'"):
        member.reveal("1", one, [*names, forged])
    names.append(crowd.members["c03"].agree("1", one))
    shown = member.reveal("1", one, [mine, *names])
    assert set(shown["body"]["own"]) == set(one)
    with pytest.raises(Unsafe, match="cannot follow revealed"):
        member.reveal("1", other)


def test_only_the_newest_input_can_be_unmasked():
    """SA-3: two attempts are opened before either is summed."""
    crowd = Crowd(5)
    first = crowd.masked("1")
    second = crowd.masked("2")
    with pytest.raises(Unsafe, match="attempt '1' is not known here, or was given up"):
        crowd.revealed(first)
    assert np.array_equal(crowd.revealed(second), crowd.plain(crowd.names))


def test_one_sum_for_each_network_over_one_set(tmp_path):
    """SA-4, SA-5, S1: another round, phase name, attempt or run is no way to a second sum."""
    crowd = Crowd(5)
    revealed = {n: Revealed(tmp_path / n) for n in crowd.names}
    for name in crowd.names:
        crowd.members[name] = crowd.session(name, revealed=revealed[name])
    crowd.summed("1")
    assert np.array_equal(crowd.summed("2"), crowd.plain(crowd.names))  # the same sum again
    at = crowd.masked("3", lost={"input": ["c04"]})
    with pytest.raises(Unsafe, match="difference of the two would show single clients"):
        crowd.revealed(at)
    with pytest.raises(Unsafe, match="round 1 has the network of round 0"):
        crowd.masked("4", number=1)
    with pytest.raises(Unsafe, match="round 0 was begun with another network"):
        crowd.masked("5", subject=OTHER)
    with pytest.raises(Unsafe, match="over other clients or of something else"):
        crowd.revealed(crowd.masked("6", subject=Subject("network", ahead=True)))
    crowd.revealed(crowd.masked("7", number=1, subject=OTHER))
    with pytest.raises(Unsafe, match="round 0 is over"):
        crowd.members["c00"].keys("8", 0, UPDATE)
    again = Revealed(tmp_path / "c00")
    assert again.facts == revealed["c00"].facts
    fresh = crowd.session("c00", revealed=again)  # its folder of this run is lost
    fresh.run = "another run"
    with pytest.raises(Unsafe, match="it participated in another run of this agreement"):
        fresh.keys("9", 2, UPDATE)
    with pytest.raises(ValueError, match="phase"):
        Phase("any text is a phase")


def test_a_record_of_sums_that_was_put_back_is_noticed(tmp_path):
    """It would allow a second sum over other clients with the last network."""
    crowd, path = Crowd(5), tmp_path / "seen"
    crowd.members["c00"] = crowd.session("c00", revealed=Revealed(path))
    crowd.masked("1")
    copied = path.read_bytes()
    crowd.summed("2")
    state = json.loads(json.dumps(crowd.members["c00"].state))
    assert crowd.session("c00", state=state, revealed=Revealed(path))
    path.write_bytes(copied)
    with pytest.raises(Unsafe, match="was lost or put back"):
        crowd.session("c00", state=state, revealed=Revealed(path))


def test_a_line_that_a_power_cut_left_half_written_is_not_read(tmp_path):
    revealed = Revealed(tmp_path / "file")
    revealed.add("n" * 64, UPDATE, True, "s" * 64)
    text = (tmp_path / "file").read_text()
    for cut in range(len(text)):
        (tmp_path / "file").write_text(text[:cut])
        assert set(Revealed(tmp_path / "file").facts) <= set(revealed.facts)
        again = Revealed(tmp_path / "file")
        again.add("n" * 64, UPDATE, True, "s" * 64)
        assert Revealed(tmp_path / "file").facts == revealed.facts


def lying(crowd: Crowd, liar: str) -> None:
    """This client deals shares of an own mask that is not the one it pinned down."""
    from fedgradnorm._masking import shamir
    from fedgradnorm._masking.attempt_keys import share_digests

    member = crowd.members[liar]
    plain = member.letters

    def letters(name, keys):
        message = plain(name, keys)
        one, _ = member._at(name, Step.INPUT)
        public, secret = one["public"], Session.__init__.__globals__["_secret"](one)
        names, least = sorted(public), member.least
        wrong = shamir.split(bytes(32), least, len(names))
        masks = shamir.split(secret.masks, least, len(names))
        sealed, pinned = {}, {}
        for reader, a, b in zip(names, masks, wrong, strict=True):
            shares = {"masks": to_text(a), "own": to_text(b)}
            pinned[reader] = share_digests(shares)
            if reader != liar:
                about = Session.__init__.__globals__["_ends"]
                ends = about(crowd.attempt(name), liar, reader, public)
                sealed[reader] = secret.seal(public[reader], ends, shares)
            else:
                one["shares"][liar] = shares
        body = {**message["body"], "sealed": sealed, "shares": pinned}
        return member.signer.sign(crowd.attempt(name), "letters", body)

    member.letters = letters


def test_whoever_deals_shares_that_join_to_nothing_is_named_and_left_out():
    """S8, SA-9: shares were shown already; with the proof they are shown again without the liar."""
    crowd = Crowd(5)
    lying(crowd, "c03")
    at = crowd.masked()
    with pytest.raises(Exception, match="c03 lied"):
        crowd.revealed(at)
    shown = proof(at, "c03")
    assert proved_liar(shown, crowd.attempt("2"), crowd.roster, crowd.colluders) == "c03"
    crowd.names.remove("c03")
    honest, again = crowd.names, crowd.gathering("2")
    for step in ("keys", "letters"):
        for name in honest:
            member = crowd.members[name]
            if step == "keys":
                again.add_keys(name, member.keys("2", 0, UPDATE))
            else:
                again.add_letters(name, member.letters("2", again.shown_keys()))
    again.close_letters()
    for name in honest:
        message, rest = crowd.input(name, again)
        again.add_input(name, message, SUBJECT, rest, 2)
    with pytest.raises(Unsafe, match="difference of the two"):
        crowd.members["c00"].reveal("2", honest)
    for name in honest:
        again.add_reveal(name, crowd.members[name].reveal("2", honest, (), [shown]))
    assert np.array_equal(again.sum(), crowd.plain(honest))


def test_an_honest_client_is_not_proved_to_be_a_liar():
    """By a server and colluders: with shares of their own making, or of another attempt."""
    crowd = Crowd(5)
    at = crowd.masked()
    crowd.revealed(at)
    true = proof(at, "c02")
    for change in (
        lambda p: p["reveals"].reverse(),
        lambda p: p["reveals"].pop(),
        lambda p: p["reveals"].clear(),
        lambda p: p["letters"]["body"].update(own="0" * 64),
        lambda p: p.update(attempt="2"),
        lambda p: p.update(liar="c01"),
        lambda p: p.update(reveals=7),
    ):
        given = copy.deepcopy(true)
        change(given)
        with pytest.raises(Unsafe):
            proved_liar(given, crowd.attempt("9"), crowd.roster, crowd.colluders)


def test_a_share_that_was_changed_names_who_shows_it():
    """S8: the others' shares are enough."""
    crowd = Crowd(5)
    at = crowd.masked()
    for name in crowd.names:
        if name == "c01":
            crowd.members[name].state["attempts"]["1"]["shares"]["c02"]["own"] = to_text(bytes(66))
        message = crowd.members[name].reveal("1", crowd.names)
        if name == "c01":
            with pytest.raises(Unsafe, match="'c01' shows another share of 'c02'"):
                at.add_reveal(name, message)
        else:
            at.add_reveal(name, message)
    assert np.array_equal(at.sum(), crowd.plain(crowd.names))


def test_letters_that_cannot_be_read_cost_a_share_and_name_their_writer():
    crowd = Crowd(7)  # two may lie
    at = crowd.prepared()
    for reader in crowd.names[1:4]:
        at.letters["c00"]["sealed"][reader] = at.letters["c00"]["sealed"]["c06"]
    for name in crowd.names:
        message, rest = crowd.input(name, at)
        at.add_input(name, message, SUBJECT, rest, 2)
    assert at.complaints() == {"c00": "3 clients cannot read it"}
    assert at.unreadable() == ["c00"]  # 4 of 7 have a share of it, 5 are needed
    at.letters["c00"]["sealed"]["c01"] = "?"


@pytest.mark.parametrize("changed", [0x00, 0x80])
def test_a_public_key_that_was_copied_cancels_no_mask(changed):
    """S2, by a server and one colluder of three: c02 shows the public key of c00 as its own.

    If a mask depended on keys alone, c01 would add its mask with c00 and subtract the same one for
    c02. Only its own mask would be left, for which all show shares. X25519 ignores the top bit of a
    public key, so comparing keys would not be enough.
    """
    crowd = Crowd(3, colluders=1)
    at, keys = crowd.gathering(), {n: crowd.members[n].keys("1", 0, UPDATE) for n in crowd.names}
    copied = bytearray(from_text(keys["c00"]["body"]["masks"]))
    copied[31] ^= changed
    body = {**keys["c02"]["body"], "masks": to_text(bytes(copied))}
    keys["c02"] = crowd.signers["c02"].sign(crowd.attempt(), "keys", body)
    crowd.members["c02"].state["attempts"]["1"]["said"] = keys["c02"]
    for name in crowd.names:
        at.add_keys(name, keys[name])
    for name in crowd.names:
        at.add_letters(name, crowd.members[name].letters("1", at.shown_keys()))
    at.close_letters()
    message, rest = {name: crowd.input(name, at) for name in crowd.names}["c01"]
    shown = [crowd.members[name].reveal("1", crowd.names)["body"]["own"] for name in crowd.names]
    shares = {place: from_text(own["c01"]) for place, own in enumerate(shown, start=1)}
    about = (digest(at.public), at.roster.digest, names_digest(at.givers), SUBJECT.facts())
    own = derived(shamir.join(shares, SEED), "own", mask_label(at.attempt, *about))
    front = np.frombuffer(from_text(message["body"]["numbers"]), dtype="<u8")
    found = np.concatenate([front, rest])
    add_mask(found, own, -1)
    assert not (found == crowd.values["c01"]).any()


@pytest.mark.parametrize(
    ("unreadable", "words"),
    [
        (["c00", "c00", "c00"], "complains about a client twice"),
        (["c06"], "that wrote nothing"),
        ([7], "that wrote nothing"),
        ([["c00"]], "that wrote nothing"),
        ("c00", "that wrote nothing"),
    ],
)
def test_one_liar_counts_as_one_complaint(unreadable, words):
    """S8: it used to count as three, and an honest client was refused for it."""
    crowd = Crowd(7)  # two may lie
    at = crowd.prepared()
    for name in crowd.names[:6]:
        message, rest = crowd.input(name, at)
        at.add_input(name, message, SUBJECT, rest, 2)
    message, rest = crowd.input("c06", at)
    body = {**message["body"], "unreadable": unreadable}
    lie = crowd.signers["c06"].sign(crowd.attempt(), "input", body)
    with pytest.raises(Unsafe, match=words):
        at.add_input("c06", lie, SUBJECT, rest, 2)
    assert not at.complaints()
    assert not at.unreadable()


def test_shares_that_are_no_texts_are_refused_also_where_their_writer_pinned_them():
    """Two that lie together could make the server forward anything."""
    crowd = Crowd(5)
    at = crowd.masked()
    message = crowd.members["c00"].reveal("1", crowd.names)
    nested = {"any": ["thing"]}
    at.letters["c01"]["shares"]["c00"]["own"] = digest(nested)
    own = {**message["body"]["own"], "c01": nested}
    lie = crowd.signers["c00"].sign(crowd.attempt(), "reveal", {**message["body"], "own": own})
    with pytest.raises(Unsafe, match="shares that cannot be read"):
        at.add_reveal("c00", lie)


MALFORMED = [
    None, [], "text", 7, {}, {"from": "c00"}, {"from": ["c00"], "body": {}},
    {"from": "c00", "body": [], "signature": ""}, {"from": "c00", "body": {}, "signature": 3},
]  # fmt: skip


@pytest.mark.parametrize("message", MALFORMED)
def test_a_malformed_message_is_refused_at_every_step(message):
    """SA-9: with a reason, so that its sender can be named; nothing else is raised."""
    crowd = Crowd(4)
    at = crowd.prepared()
    for add in (
        at.add_keys,
        at.add_letters,
        lambda n, m: at.add_input(n, m, SUBJECT, None, 2),
        at.add_agreement,
        at.add_reveal,
    ):
        with pytest.raises(Unsafe):
            add("c00", message)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"sealed": []}, "are not to those who showed keys"),
        ({"sealed": {}}, "are not to those who showed keys"),
        ({"shares": {}}, "are not to those who showed keys"),
        ({"sealed": dict.fromkeys(["c01", "c02", "c03"], 7)}, "cannot be read"),
        ({"shares": {f"c0{k}": [] for k in range(4)}}, "cannot be read"),
        ({"own": ""}, "for other keys"),
    ],
)
def test_letters_of_the_wrong_form_are_refused(body, words):
    crowd = Crowd(4)
    at = crowd.gathering()
    for name, message in zip(crowd.names, crowd.shown(), strict=True):
        at.add_keys(name, message)
    good = crowd.members["c00"].letters("1", at.shown_keys())["body"]
    message = crowd.signers["c00"].sign(crowd.attempt(), "letters", {**good, **body})
    with pytest.raises(Unsafe, match=words):
        at.add_letters("c00", message)
    with pytest.raises(Unsafe, match="'c01' sent a message of 'c00'"):
        at.add_letters("c01", message)


def test_an_input_of_the_wrong_length_gets_nobody_else_refused():
    """SA-9: the first input used to decide how long the others must be."""
    crowd = Crowd(4)
    at = crowd.prepared()
    words = crowd.values["c00"]
    crowd.values["c00"] = words[:1]
    short, rest = crowd.input("c00", at)
    with pytest.raises(Unsafe, match="sent 8 bytes of numbers instead of 16"):
        at.add_input("c00", short, SUBJECT, rest, 2)
    for name in crowd.names[1:]:
        message, rest = crowd.input(name, at)
        at.add_input(name, message, SUBJECT, rest, 2)
    assert len(at.survivors()) == 3


def test_sums_that_are_told_with_one_key_more_are_not_those_that_were_signed():
    """SA-6, S3: every input is signed over all keys, the roster, who was asked, and the subject."""
    crowd = Crowd(4)
    at = crowd.masked()
    crowd.revealed(at)

    def told(change=lambda _: None) -> Gathering:
        again = crowd.gathering()
        for name, message in at.keys.items():
            again.add_keys(name, message)
        again.givers = list(at.givers)
        change(again)
        for message in at.inputs.values():
            again.add_numbers(message, SUBJECT, 2)
        for name, message in at.reveals.items():
            again.add_reveal(name, message)
        return again

    assert np.array_equal(told().sum(), at.sum()[:2])
    more = crowd.signers["c03"].sign(
        crowd.attempt(), "keys", {**at.keys["c03"]["body"], "own": "ab" * 32}
    )
    larger = Roster({**crowd.roster.keys, "c04": bytes(32)})
    for change, words in [
        (lambda a: a.add_keys("c03", more), "keys differ"),
        (lambda a: a.givers.pop(), "givers differ"),
        (lambda a: setattr(a, "roster", larger), "roster differ"),
    ]:
        with pytest.raises(Unsafe, match=words):
            told(change)
    again = crowd.gathering()
    again.keys, again.public, again.givers = at.keys, at.public, at.givers
    with pytest.raises(Unsafe, match="subject differ"):
        again.add_numbers(at.inputs["c00"], OTHER, 2)


def test_masks_of_clients_that_were_told_different_things_differ():
    """S3: by attempt, keys, roster, givers, or subject; such masks do not cancel."""
    attempt = Attempt("agreed", "run", 0, UPDATE, "1")
    given = {
        "attempt": attempt,
        "keys": "k",
        "roster": "r",
        "givers": "g",
        "subject": SUBJECT.facts(),
    }
    other = {
        "attempt": replace(attempt, name="2"),
        "subject": OTHER.facts(),
        **dict.fromkeys(("keys", "roster", "givers"), "other"),
    }
    labels = [mask_label(**given), *(mask_label(**{**given, key: other[key]}) for key in given)]
    assert len(set(labels)) == 6
