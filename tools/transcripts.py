"""Write what commands print into the transcripts of the pages (blocks marked `console run`), where it has changed.

python tools/transcripts.py [--anew] [PAGE …]     every page, or these; --anew also where nothing has changed
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.system.pages import PAGES, blocks_of, name_of  # noqa: E402 - it is found only now
from tests.system.pasting import live_through  # noqa: E402
from tests.system.transcripts import is_true, rewritten  # noqa: E402


def main() -> int:
    named = [Path(name).resolve() for name in sys.argv[1:] if name != "--anew"]
    bad = [page for page in named or PAGES if not _write(page, anew="--anew" in sys.argv)]
    return 1 if bad else 0


def _write(page: Path, *, anew: bool) -> bool:
    """Write a page anew if what it shows is no longer true. A command that does not end as it should is not shown."""
    blocks = [block for block in blocks_of(page) if block.is_run or block.file]
    run = [block for block in blocks if block.is_run]
    if not run:
        return True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ran = list(zip(run, live_through("bash", blocks, folder), strict=True))
        for block, steps in ran:
            if steps[-1].code != block.exit_code:
                print(f"{name_of(page)}: ended with {steps[-1].code}:\n{block.to_paste()}{steps[-1].printed}")
                return False
        told = [(block, steps) for block, steps in ran if block.language == "console"]
        if not anew and all(is_true(block, steps, folder) for block, steps in told):
            return True
        # All of a page is one story: the times in it belong together.
        text = page.read_text("utf-8")
        for block, steps in reversed(told):
            text = text[: block.start] + rewritten(block, steps, folder) + text[block.end :]
    page.write_text(text, "utf-8")
    print(f"wrote {name_of(page)}")
    return True


if __name__ == "__main__":
    sys.exit(main())
