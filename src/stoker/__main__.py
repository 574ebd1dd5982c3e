"""The `stoker` command: joins the command line with the assembly. Nothing else may import both."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.assembly import Assembly


def main() -> int:
    """Run the command line of this process."""
    from stoker.faces.cli.main import run_command_line

    return run_command_line(sys.argv[1:], build=_build)


def _build() -> Assembly:
    from stoker.assembly import Assembly

    return Assembly.here()


if __name__ == "__main__":
    sys.exit(main())
