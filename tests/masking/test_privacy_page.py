"""docs/privacy.md claims what holds: its numbers are computed, and each line has a hostile test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fedgradnorm._masking.ring import FRACTION
from fedgradnorm._masking.roster import least_shown, threshold

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
HOSTILE, ATTACKS = "masking/test_hostile_server.py", "engines/flower/test_attacks_on_sums.py"
STATES, KEYS = "masking/test_one_sum_per_state.py", "masking/test_keys.py"
OPERATIONS, ASKED = "engines/flower/test_operations.py", "engines/flower/test_attendance.py"

TESTS = {
    "an order of a plain": [
        (ATTACKS, "test_an_order_of_a_plain_federation_gets_no_answer"),
    ],
    "two lists of survivors": [
        (ATTACKS, "test_sa1_two_lists_of_survivors"),
        (HOSTILE, "test_a_client_shows_both_shares_of_nobody"),
        (HOSTILE, "test_no_two_lists_of_survivors_for_any_number_of_clients"),
        (HOSTILE, "test_two_halves_that_are_shown_different_keys"),
        (HOSTILE, "test_two_attempts_whose_shares_other_clients_show"),
        (ATTACKS, "test_sa2_a_cohort_that_the_server_made_up"),
    ],
    "two runs, or two": [
        (ATTACKS, "test_sa3_two_runs_opened_before_either_is_summed"),
        (ATTACKS, "test_sa3_two_attempts_opened_before_either_is_summed"),
        (ATTACKS, "test_sa4_another_agreement_from_the_same_network"),
    ],
    "the same network": [
        (ATTACKS, "test_sa4_the_same_network_under_the_next_rounds_number"),
        (ATTACKS, "test_sa4_a_network_that_hardly_moved_from_the_state_before_it"),
        (
            ATTACKS,
            "test_sa4_a_network_that_hardly_moved_after_a_sum_for_which_a_client_showed_no_shares",
        ),
    ],
    "the same round": [
        (ATTACKS, "test_sa5_the_same_round_over_other_clients"),
        (ATTACKS, "test_sa5_an_input_of_another_sum_than_its_attempts"),
        (STATES, "test_the_machine_can_reach_a_sum"),
    ],
    "sums with a key": [
        (ATTACKS, "test_sa6_sums_that_are_told_with_one_key_more"),
        (ATTACKS, "test_sa6_clients_that_were_told_different_sums_make_no_usable_one"),
        (ATTACKS, "test_s4_sums_that_no_honest_clients_have_are_not_used"),
    ],
    "a crafted network": [
        (ATTACKS, "test_sa7_a_crafted_network"),
        (ATTACKS, "test_s5_no_gradients_move_a_coordinate_farther_than_the_bound"),
        (ATTACKS, "test_s5_no_round_is_skipped"),
    ],
    "a network that makes": [
        (ATTACKS, "test_sa11_a_client_that_cannot_train_is_not_told_from_others"),
        (ATTACKS, "test_sa11_a_client_whose_result_fails_is_not_told_from_others"),
    ],
    "an invented client": [
        (HOSTILE, "test_a_public_key_that_was_copied_cancels_no_mask"),
        (HOSTILE, "test_keys_that_were_invented_swapped_repeated_or_left_out"),
        (ATTACKS, "test_sa8_a_key_is_only_where_it_was_made"),
    ],
    "a roster that trusts": [
        (OPERATIONS, "test_the_fingerprint_of_a_roster_covers_what_is_agreed_beside_the_keys"),
    ],
    "an attempt, a step": [
        (HOSTILE, "test_every_step_follows_only_where_the_table_says_so"),
        (HOSTILE, "test_what_was_signed_for_another_round_phase_or_attempt_does_not_count"),
        (HOSTILE, "test_a_record_of_sums_that_was_put_back_is_noticed"),
    ],
    "malformed": [
        (ATTACKS, "test_sa9_malformed_input_is_named_and_ends_nothing"),
        (ATTACKS, "test_sa9_an_entry_that_cannot_be_written_again_ends_nothing"),
        (ATTACKS, "test_sa9_nothing_but_what_was_agreed_is_forwarded"),
        (HOSTILE, "test_shares_that_are_no_texts_are_refused_also_where_their_writer_pinned_them"),
        (ATTACKS, "test_sa9_a_masked_vector_of_the_wrong_length_gets_nobody_else_refused"),
    ],
    "a share that is not": [
        (HOSTILE, "test_a_share_that_was_changed_names_who_shows_it"),
        (ATTACKS, "test_a_client_that_deals_wrong_shares_is_named_and_the_round_goes_on"),
    ],
    "letters that nobody": [
        (HOSTILE, "test_letters_that_cannot_be_read_cost_a_share_and_name_their_writer"),
        (HOSTILE, "test_one_liar_counts_as_one_complaint"),
    ],
    "silence between": [
        (ASKED, "test_refusals_shut_out_and_only_a_usable_answer_forgives"),
    ],
    "one key under two": [
        (KEYS, "test_equal_keys_are_refused"),
    ],
    "a coefficient that": [
        (ATTACKS, "test_a_coefficient_that_is_a_lie_ends_nothing"),
    ],
    "a sum of gradient norms": [
        (ATTACKS, "test_no_lie_in_a_sum_freezes_another_clients_weight"),
    ],
}


def rows(title: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    found = re.search(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    assert found
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines()]


def test_every_line_about_an_attack_has_a_test_that_tries_it() -> None:
    lines = [row[0] for title in ("a server tries", "a client tries") for row in rows(title)]
    found = {line: [k for k in TESTS if line.startswith(k)] for line in lines}
    assert all(len(keys) == 1 for keys in found.values()), found
    assert len(lines) == len(TESTS)
    for tests in TESTS.values():
        for file, name in tests:
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert name in [one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]


def test_the_numbers_of_the_threat_model_are_those_of_the_program() -> None:
    for row in rows("clients n"):
        n, c = int(row[0]), int(row[1])
        m, t = least_shown(n, c), threshold(n, c)
        expected = [m, t, n - t, t - c]
        assert row[2:] == list(map(str, expected)), expected
    assert f"rounded to a grid of 2^-{FRACTION}," in PAGE
