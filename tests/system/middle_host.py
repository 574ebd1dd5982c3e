"""A man in the middle as a process: ADDRESS PORT REAL FOLDER [replace]. His CA is his own; he says what he hears."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.host.certificates import Signer, make_ca, make_key
from stoker.host.tls_contexts import server_context
from tests.servers.tls_middle import Middle


def main() -> None:
    address, port, real, folder, *more = sys.argv[1:]
    now_s, key = SystemClock().wall_s(), make_key()
    own = make_ca("stoker fleet", now_s=now_s)
    pem = Path(folder, "middle.pem")
    pem.write_text(Signer(own).server(key, [address], now_s=now_s).certificate_pem + key)
    context = server_context(certificate_file=str(pem), key_file=str(pem), ca_pem=own.certificate_pem)
    replace = (Path(more[0]).read_text(), own.certificate_pem) if more else None
    with Middle(real, context, replace=replace, at=(address, int(port))) as middle:
        print('{"kind": "stands"}', flush=True)
        told = 0
        while not threading.Event().wait(0.05):
            for line in middle.heard[told:]:
                print(json.dumps({"kind": "heard", "line": line}), flush=True)
                told += 1


if __name__ == "__main__":
    main()
