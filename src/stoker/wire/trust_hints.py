"""What to do where a coordinator and a member of its fleet do not trust each other's certificates."""

from __future__ import annotations

from stoker.host.http.failures import Reason
from stoker.model.errors import NetworkFailed

_CLOCK_BEHIND = "the certificate is not valid yet: set this machine's clock (`timedatectl set-ntp true`)"
_EXPIRED = "check this machine's clock; a coordinator renews its certificate by itself while it runs"
_OTHER_CA = (
    "another CA than the fleet's has signed it: this is not the coordinator that was joined, or somebody stands in "
    "between; a fleet that is new, or not joined yet: stoker join CODE@HOST --again"
)
_OTHER_NAME = "ask it by a name that `stoker machines invite` printed, or `stoker serve --advertise NAME` there"
_REFUSED = "this machine's certificate no longer counts there: stoker join CODE@HOST --again"

# X509_V_ERR_… of OpenSSL.
_BY_CODE: dict[object, str] = {
    9: _CLOCK_BEHIND,
    10: _EXPIRED,
    62: _OTHER_NAME,
    64: _OTHER_NAME,
    **dict.fromkeys((2, 7, 18, 19, 20, 21, 30), _OTHER_CA),
}
_ALERTS = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


def trust_hint(error: NetworkFailed) -> str:
    """Give the hint for a failure to trust; empty where it failed for something else."""
    if error.data.get("reason") == Reason.CERTIFICATE:
        return _BY_CODE.get(error.data.get("verify_code"), "")
    return _REFUSED if error.data.get("tls") in _ALERTS else ""
