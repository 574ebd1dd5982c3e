"""The `stoker` command: run the command line with the objects that `app` builds."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.app import App


def main() -> int:
    """Run the command line of this process."""
    from stoker.cli.main import run_command_line

    code = run_command_line(sys.argv[1:], build=_build)
    # The memory goes with the process: an interpreter that looks through it once more at its end takes 60 ms for that.
    gc.freeze()
    return code


def _build() -> App:
    from stoker.app import App

    return App.here()


if __name__ == "__main__":
    sys.exit(main())
