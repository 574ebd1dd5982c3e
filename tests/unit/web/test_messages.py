"""The pages read fields that exist: their type declarations name only fields of the messages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from stoker.protocol import (
    job_messages,
    operator_messages,
    screen_messages,
    sent_messages,
    telemetry_messages,
    view_messages,
)

STATIC = Path(__file__).parents[3] / "src" / "stoker" / "web" / "static"
VENDORED = STATIC.parent / "vendor" / "VENDORED.toml"
TYPESCRIPT = "7.0.2"
MESSAGES = (screen_messages, telemetry_messages, view_messages, operator_messages, sent_messages, job_messages)


def declared() -> dict[str, set[str]]:
    text = (STATIC / "js" / "messages.d.ts").read_text()
    found = re.findall(r"export interface (\w+) \{(.*?)\}\n(?=export|\Z)", text, re.DOTALL)
    return {name: set(re.findall(r"(\w+)\??:", re.sub(r"\{ \$float.*?\}", "", body))) for name, body in found}


def test_every_declared_field_exists():
    unknown = {}
    for name, fields in declared().items():
        message = next(getattr(one, name) for one in MESSAGES if hasattr(one, name))
        if left := fields - set(message.model_fields):
            unknown[name] = left
    assert unknown == {}
    assert len(declared()) > 20


def test_our_scripts_import_only_files_that_are_there():
    for path in (STATIC / "js").glob("*.js"):
        for named in re.findall(r"^import .*?'(\.[^']+)';", path.read_text(), re.MULTILINE):
            assert (path.parent / named).is_file(), f"{path.name} imports {named}"


@pytest.mark.slow
def test_the_types_of_our_scripts_agree(tmp_path: Path):
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    libraries = tomllib.loads(VENDORED.read_text())["library"]
    wanted = {f"{one['package']}@{one['version']}" for one in libraries} | {f"typescript@{TYPESCRIPT}"}
    (tmp_path / "package.json").write_text('{"private": true}')
    got = _run(tmp_path, "npm", "install", "--silent", *sorted(wanted))
    if got.returncode:
        pytest.skip(f"the packages can't be had: {got.stderr[-200:]}")
    shutil.copytree(STATIC / "js", tmp_path / "web" / "js")
    (tmp_path / "web" / "vendor").mkdir()
    names = {"preact": "preact", "hooks": "preact/hooks", "signals": "@preact/signals"}
    for file, package in names.items():
        (tmp_path / "web" / "vendor" / f"{file}.d.ts").write_text(f'export * from "{package}";\n')
    for file in ("htm", "uplot"):
        (tmp_path / "web" / "vendor" / f"{file}.d.ts").write_text(f'export {{ default }} from "{file}";\n')
    options = {
        "checkJs": True,
        "allowJs": True,
        "strict": True,
        "noEmit": True,
        "target": "ES2023",
        "module": "ESNext",
        "moduleResolution": "bundler",
        "lib": ["ES2023", "DOM", "DOM.Iterable"],
        "types": [],
        "allowImportingTsExtensions": True,
        "skipLibCheck": True,
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["web/js/*"]}))
    checked = _run(tmp_path, "npx", "tsc", "-p", ".")
    assert checked.returncode == 0, checked.stdout


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
