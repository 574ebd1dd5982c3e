"""Submits one job after the other to a fleet whose worker waits, and says how soon each one's program ran.

    python fleet_submit.py URL TOKEN_FILE FOLDER COUNT

The clock runs from the call of `Client.submit`, which reads a manifest of three lines and sends what is new of the
project's folder (the manifest itself), to the program's first line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from stoker import Client

STAMP = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time()))"


def main() -> None:
    url, token, folder, count = sys.argv[1], Path(sys.argv[2]).read_text().strip(), Path(sys.argv[3]), int(sys.argv[4])
    project = folder / "project"
    project.mkdir()
    with Client(url, token=token) as fleet:
        for number in range(count):
            name, mark = f"asked{number}", folder / f"asked{number}.mark"
            manifest = project / "manifest.toml"
            command = json.dumps([sys.executable, "-c", STAMP, str(mark)])
            manifest.write_text(f'[[jobs]]\nname = "{name}"\ncommand = {command}\n')
            started_s = time.time()
            fleet.submit(manifest)
            list(fleet.wait(name))
            print(float(mark.read_text()) - started_s, flush=True)
            # The worker makes its next warm process meanwhile, as between two jobs of a person's.
            time.sleep(1)


if __name__ == "__main__":
    main()
