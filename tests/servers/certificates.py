"""Certificates of our own, made once per test folder: good ones, an expired one, and one that nobody signed."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Somebody who signs; `path` is what to trust."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.path = folder / "authority.pem"
        self._key = folder / "authority.key"
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.path, "-days", "2", "-subj", "/CN=Ours")

    def server(self, names: str = "IP:127.0.0.1,DNS:localhost", *, is_expired: bool = False) -> ssl.SSLContext:
        """Return what a server needs that goes by these names."""
        stem = self._folder / f"server-{len(list(self._folder.iterdir()))}"
        key, request, certificate = stem.with_suffix(".key"), stem.with_suffix(".csr"), stem.with_suffix(".pem")
        stem.with_suffix(".ext").write_text(f"subjectAltName={names}\n")
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", "/CN=server")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.path, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", "-1" if is_expired else "2", "-extfile", stem.with_suffix(".ext"), "-out", certificate),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
