"""Fetch the libraries of the web pages from their published npm packages, or check those in the repository.

python tools/vendor_web.py            writes src/stoker/web/static/vendor; a package whose digest differs is refused
python tools/vendor_web.py --check    changes nothing, needs no network; exits with 1 if a file is not what is recorded
python tools/vendor_web.py --record   takes the digests of what is fetched (after a new version in VENDORED.toml)
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

WEB = Path(__file__).parents[1] / "src" / "stoker" / "web"
RECORD = WEB / "vendor" / "VENDORED.toml"
TARGET = WEB / "static" / "vendor"
LICENCES = WEB / "vendor"

# An inline import map would be inline script, which the pages' content security policy refuses.
RELATIVE = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
HEAD = """\
# Libraries of the web pages, as published on npm. tools/vendor_web.py fetches and checks them.
# `published`: SHA-256 of the file in the package; `written`: of the file in static/vendor, with relative imports.
"""


def main(words: list[str]) -> int:
    recorded = tomllib.loads(RECORD.read_text())["library"]
    if words == ["--check"]:
        wrong = [one["file"] for one in recorded if digest((TARGET / one["file"]).read_bytes()) != one["written"]]
        print("\n".join(f"{name} is not the recorded file" for name in wrong) or "all files are as recorded")
        return 1 if wrong else 0
    is_recording = words == ["--record"]
    TARGET.mkdir(parents=True, exist_ok=True)
    packages: dict[str, dict[str, bytes]] = {}
    for one in recorded:
        name = f"{one['package']}@{one['version']}"
        files = packages.get(name) or packages.setdefault(name, fetch(name))
        published = files[one["path"]]
        if not is_recording and digest(published) != one["published"]:
            print(f"{name}: {one['path']} has the digest {digest(published)}, not {one['published']}", file=sys.stderr)
            return 1
        written = rewrite(published, one)
        (TARGET / one["file"]).write_bytes(written)
        licence = one["package"].replace("@", "").replace("/", "-") + ".LICENSE"
        (LICENCES / licence).write_bytes(files["LICENSE"])
        one["published"], one["written"] = digest(published), digest(written)
    if is_recording:
        RECORD.write_text(HEAD + "".join(entry(one) for one in recorded))
    return 0


def fetch(name: str) -> dict[str, bytes]:
    """Return the files of a package by their path."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as opened:
            return {
                member.name.partition("/")[2]: found.read()
                for member in opened
                if (found := opened.extractfile(member)) is not None
            }


def rewrite(published: bytes, one: dict[str, Any]) -> bytes:
    """Return a file as browsers load it: relative imports, a module, without the address of a source map."""
    text = published.decode()
    for bare, relative in RELATIVE.items():
        text = re.sub(rf'\b(from|import)\s*"{re.escape(bare)}"', rf'\1"{relative}"', text)
    text = re.sub(r"\n?//# sourceMappingURL=.*\s*$", "\n", text)
    if one.get("exports"):
        text += f"export default {one['exports']};\n"
    return text.encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(one: dict[str, Any]) -> str:
    return "\n[[library]]\n" + "".join(f'{key} = "{value}"\n' for key, value in one.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
