"""Settings of the documentation site, which `make site` builds with Sphinx from the Markdown files."""

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "Stoker"
html_title = "Stoker"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "examples/**", "benchmarks/*.md"]
# Folders without pages, which the search for pages would otherwise walk.
exclude_patterns = [".*", "build", "dist", "src", "stoker-out", "tests", "tools"]
myst_heading_anchors = 6
# Python examples contain "…".
suppress_warnings = ["misc.highlighting_failure"]

# It loads no font, script or style from another host.
html_theme = "furo"
html_copy_source = False
html_show_copyright = False

SECTIONS = [
    *("docs/tutorial", "docs/guides/README", "examples/README", "docs/reference/README", "docs/glossary"),
    *("docs/hydra-differences", "docs/decisions/README", "benchmarks/README"),
    *("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"),
]
"""The navigation of the start page. That of a folder's `README.md` has the pages of the folder to which it links."""

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def setup(app: Sphinx) -> None:
    """Connect the steps that make a site of pages which are also read as files of the repository."""
    app.connect("source-read", _prepare)
    app.connect("build-finished", _add_start_page)


def _prepare(_app: Sphinx, name: str, content: list[str]) -> None:
    """Make links to folders lead to their pages, and add the navigation."""
    folder = (ROOT / name).parent
    text = _LINK.sub(lambda link: _page_of(folder, link[0]), content[0])
    below: list[str] = []
    if name == root_doc:
        below = SECTIONS
    elif Path(name).name == "README":
        below = _linked(folder, text)
    if below:
        lines = "\n".join(f"/{page}" for page in below)
        text += f"\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"
    content[0] = text


def _page_of(folder: Path, target: str) -> str:
    return f"{target.rstrip('/')}/README.md" if (folder / target / "README.md").is_file() else target


def _linked(folder: Path, text: str) -> list[str]:
    """Return the pages in this folder or one below it to which the text links, each once."""
    pages = [(folder / target).resolve() for target in _LINK.findall(text) if target.endswith(".md")]
    inside = [page for page in pages if page.is_relative_to(folder) and page.is_file()]
    return list(dict.fromkeys(str(page.relative_to(ROOT).with_suffix("")) for page in inside))


def _add_start_page(app: Sphinx, error: Exception | None) -> None:
    """Write `index.html`, where servers and readers look for the first page."""
    if error is None:
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")
