"""The documentation site, built where Sphinx is installed (`make docs`): complete, linked, and without other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.system.pages import PAGES, ROOT

pytestmark = [
    # A build takes 20 s of processor time; `make test` checks the links in the sources instead (test_docs.py).
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sphinx") is None, reason="Sphinx is not installed; `make site` installs it"),
]
LIMIT_S = 300


class Page(HTMLParser):
    """The anchors, links and resources of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("action", "data", "href", "poster", "src", "srcset") and value:
                (self.links if tag == "a" else self.resources).append(value)
            elif name == "style" and value:
                self.resources += resources_of_style(value)


def resources_of_style(text: str) -> list[str]:
    return re.findall(r"""(?:@import|url\()\s*['"]?([^'")]+)""", text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--jobs", "auto"]
    command += ["-c", "docs", "-d", str(folder / "doctrees"), ".", str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_repository_is_on_the_site(site: Path, pages: dict[Path, Page]) -> None:
    expected = {site / page.relative_to(ROOT).with_suffix(".html") for page in PAGES}
    assert expected <= pages.keys()
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()


def test_links_of_the_site_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                lost.append((str(path.relative_to(site)), link))
    assert lost == []


def test_the_site_requests_nothing_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    resources = {(path.name, resource) for path, page in pages.items() for resource in page.resources}
    for style in site.rglob("*.css"):
        resources |= {(style.name, resource) for resource in resources_of_style(style.read_text("utf-8"))}
    assert len(resources) > len(pages), "each page has a style"
    assert [one for one in sorted(resources) if re.match(r"(https?:)?//", one[1].strip())] == []


def test_the_search_finds_words_of_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    assert '"docs/guides/sweeps"' in index
    assert '"rendezv' in index
