"""`stoker download-model`: one model file, with its tokenizer, in a folder of plain files."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fetch.options import EXIT_CODES, SHARED_OPTIONS, sha256
from stoker.faces.cli.fetch.outcome import Haul, fetch_with
from stoker.faces.cli.fetch.repository import folder_name
from stoker.faces.cli.fetch.session import Session
from stoker.faces.cli.grammar import Grammar, Option
from stoker.host.names import name_fault
from stoker.model.errors import NotOnServer, Usage
from stoker.store.download.outcome import Outcome
from stoker.store.hub.address import MAIN, Repo, check_revision, read_repo
from stoker.store.hub.hub import label_of
from stoker.store.hub.model_file import ModelFolder

DEFAULT_ID = "microsoft/bitnet-b1.58-2B-4T-gguf"
DEFAULT_FILE = "ggml-model-i2_s.gguf"
DEFAULT_OUT = "models"

GRAMMAR = Grammar(
    "download-model",
    about=(
        "Fetch one model file into OUT/org-repo/FILE, and then its tokenizer if the repository has one. FILE.etag and "
        "FILE.lastmod stay beside it, FILE.part and FILE.lock only while it comes. The same checks and resume as "
        "`stoker fetch`. "
        f"{EXIT_CODES}"
    ),
    options=(
        Option("--id", value="ORG/REPO", help=f"{DEFAULT_ID} unless told"),
        Option("--file", value="PATH", help=f"{DEFAULT_FILE} unless told; its last part names the file here"),
        Option("--out", value="DIR", help=f"{DEFAULT_OUT} unless told"),
        Option("--rev", value="REF", help="branch, tag or commit; main unless told"),
        Option("--sha256", value="HEX", read=sha256, help="what the file must be, else exit code 13"),
        Option("--base-url", value="URL", help="another hub, or a mirror of it (also HF_ENDPOINT)"),
        *SHARED_OPTIONS,
    ),
    examples=(
        "stoker download-model",
        "stoker download-model --id org/repo --file model.gguf --out models",
        "stoker download-model --json | jq -r 'select(.phase==\"progress\") | [.downloaded,.total] | @tsv'",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Fetch a model and what belongs to it."""
    repo = read_repo(given["id"] or DEFAULT_ID)
    revision = check_revision(given["rev"] or MAIN)
    path = given["file"] or DEFAULT_FILE
    fault = name_fault(path)
    if fault:
        raise Usage(f"--file {path!r} names no file: {fault}", hint="give a file's path in the repository")
    folder = os.path.join(call.path(given["out"] or DEFAULT_OUT), folder_name(repo))
    label = label_of(repo, path)

    def work(one: Session) -> Haul:
        model = ModelFolder(one.hub, repo, revision, folder, force=one.force)
        one.expect([label], None, within=str(repo))
        try:
            fetched = model.fetch(path, sha256=given["sha256"])
        except NotOnServer as error:
            if error.data.get("reason") == "EntryNotFound":
                error.hint = _hint(repo, given)
            raise
        model.fetch_tokenizer()
        return Haul(files=(Outcome(label=label, fetched=fetched),))

    return fetch_with(call, given, label, work)


def _hint(repo: Repo, given: dict[str, Any]) -> str:
    revision = f" --rev {given['rev']}" if given["rev"] else ""
    why = "" if given["file"] else f"{DEFAULT_FILE} is meant unless --file names another; "
    return f"{why}`stoker fetch {repo}{revision} --dry-run` lists what there is"
