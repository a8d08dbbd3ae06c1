"""Why a client is not connected to its server, in words, with the way out."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime

import httpx

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError
from fedgradnorm._flower.wire.transport import Lost

AHEAD, BEHIND = 4.0, 300.0  # seconds that a signature may be from the future, or old
WRONG_TIME = (9, 10)  # what OpenSSL calls a certificate that is not valid yet, or any more
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


def why(address: str, error: Exception) -> Lost | ConfigError:
    """What an exception of httpx means: Lost, or a ConfigError where waiting does not help."""
    if isinstance(error, httpx.HTTPStatusError):
        return _not_let_in(address, error.response)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        if cause.verify_code in WRONG_TIME:
            return Lost(
                f"{address}: {cause.verify_message}: this machine's clock is wrong, or the "
                "federation's certificates are too old; nothing was sent"
            )
        return ConfigError(
            f"{address}: its certificate is not for this host or not by this federation's "
            f"authority ({cause.verify_message}); nothing was sent"
        )
    reason = getattr(cause, "reason", None)
    if reason in NOT_TLS:
        return ConfigError(f"{address} does not speak TLS ({reason}); nothing was sent")
    return Lost(f"{address} does not answer ({error or type(error).__name__})")


def _not_let_in(address: str, response: httpx.Response) -> Lost:
    """The server has refused the signature of a request."""
    code, said = response.status_code, shortened(response.text)
    if code not in (401, 403, 404, 412):
        return Lost(f"{address} answers {code} ({said})")
    with suppress(KeyError, ValueError):  # no date, or one that nobody can read
        ahead = time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
        if not -BEHIND < ahead < AHEAD:
            where = "ahead of" if ahead > 0 else "behind"
            return Lost(
                f"this machine's clock is {abs(ahead):.0f} s {where} the clock of {address}, which "
                "refuses its signatures: set the wrong one of the two (NTP does)"
            )
    return Lost(
        f"{address} does not let this client in ({said}): its key must be registered there "
        "(fedgradnorm federation roster), not revoked or replaced, and used by nobody else"
    )
