"""The `stoker` command: joins the command line with the assembly. Nothing else may import both."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.assembly import Assembly


def main() -> int:
    """Run the command line of this process."""
    from stoker.faces.cli.main import run_command_line

    code = run_command_line(sys.argv[1:], build=_build)
    # The memory goes with the process: an interpreter that looks through it once more at its end takes 60 ms for that.
    gc.freeze()
    return code


def _build() -> Assembly:
    from stoker.assembly import Assembly

    return Assembly.here()


if __name__ == "__main__":
    sys.exit(main())
