"""How a machine's name stands in its certificate.

It counts as a URI among the alternative names, `stoker:machine/NAME`. The common name repeats it for people, behind a
word and a space: some clients take a bare common name for a host's, and then a machine that called itself like the
coordinator's host could speak for it.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.x509.oid import NameOID

_LONGEST_COMMON_NAME = 64


def subject_of(machine: str) -> x509.Name:
    """Give the subject of a machine's certificate."""
    return subject_named(f"machine {machine}")


def subject_named(text: str) -> x509.Name:
    """Give a subject of one common name, as long as one may be."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_COMMON_NAME])])
