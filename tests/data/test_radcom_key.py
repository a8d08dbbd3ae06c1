"""What the name of a row in RadComDynamic's file says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedgradnorm._errors import DataError
from fedgradnorm.data.radcom import _signal_set
from fedgradnorm.data.radcom._file import Key, parse_key


def check_one_line(error):
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("('pulsed', 'Ground mapping', -20, 0)", Key(0, 3, -20, 0)),
        ("(u'PULSED', u'ground-mapping', '-20', '699')", Key(0, 3, -20, 699)),
        ("(b'AM-DSB', b'AM radio', 18.0, 5)", Key(3, 6, 18, 5)),
        ("('am_ssb', 'AM Radio', np.int64(-4), np.int64(12))", Key(4, 6, -4, 12)),
        ("(np.str_('ask'), np.str_('Short Range'), numpy.float32(2.0), 7)", Key(5, 7, 2, 7)),
        ("('fmcw', 'Radar Altimeter', '-2 dB', 3)", Key(1, 4, -2, 3)),
        ('["BPSK", "SATCOM", +8, 1]', Key(2, 5, 8, 1)),
        ("pulsed, Air-Ground MTI, 10, 4", Key(0, 2, 10, 4)),
        ("('pulsed', 'Airborne-range', -20, 0,)", Key(0, 1, -20, 0)),
        ("('BPSK', 'Raw', -20, 0)", Key(2, 5, -20, 0)),
        ("('GFSK', 'Bluetooth', -2, 9)", Key(6, 8, -2, 9)),
        ("('DSSS-OQPSK', 'IEEE802.15.4', 0, 1)", Key(7, 9, 0, 1)),
        ("('dsss_cck', 'IEEE802.11bg', 18, 1)", Key(8, 10, 18, 1)),
    ],
)
def test_spellings(text, meaning):
    assert parse_key(text) == meaning


@pytest.mark.parametrize(("modulation", "signal"), _signal_set.WAVEFORMS)
def test_names_of_the_original(modulation, signal):
    key = parse_key(str((modulation, signal, -6, 41)))
    assert (_signal_set.MODULATIONS[key.modulation], _signal_set.SIGNALS[key.signal]) == (
        modulation,
        signal,
    )
    assert key[2:] == (-6, 41)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not parse"),
        ("readme", "does not parse"),
        ("('bpsk', 'Satcom', -20)", "does not parse"),
        ("('bpsk', 'Satcom', -20, 0, 1)", "does not parse"),
        ("('bpsk', 'Satcom', -20, 0", "does not parse"),
        ("('bpsk', 'Satcom', __import__('os'), 0)", "does not parse"),
        ("('bpsk', 'Satcom', (1, 2), 0)", "does not parse"),
        ("('qpsk', 'Satcom', -20, 0)", "unknown modulation 'qpsk'"),
        ("('bpsk', 'Radio 4', -20, 0)", "unknown signal 'Radio 4'"),
        ("('bpsk', 'Satcom', 'loud', 0)", "SNR 'loud'"),
        ("('bpsk', 'Satcom', nan, 0)", "SNR 'nan'"),
        ("('bpsk', 'Satcom', 1e9, 0)", "SNR '1e9'"),
        ("('bpsk', 'Satcom', -20, -1)", "index '-1'"),
        ("('bpsk', 'Satcom', -20, 1.5)", "index '1.5'"),
        ("(" * 100_000, "does not parse"),
    ],
)
def test_keys_that_do_not_parse(text, message):
    with pytest.raises(DataError, match=message):
        parse_key(text)


pieces = st.sampled_from(
    [
        *"()[],'\"\\ .{\n\x00é²",
        "b'",
        "np.int64(",
        "np.",
        "bpsk",
        "'Satcom'",
        "-20",
        "1e5",
        "dB",
        "nan",
    ]
)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.text(), st.lists(pieces, max_size=14).map("".join)))
@example("('bpsk', 'Satcom', ²0, 0)")
def test_any_text_parses_or_is_refused(text):
    try:
        key = parse_key(text)
    except DataError as error:
        check_one_line(error)
    else:
        assert 0 <= key.modulation < 9
        assert 0 <= key.signal < 11
        assert np.isfinite(key.snr)
