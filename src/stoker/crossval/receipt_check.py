"""Verify receipts offline: their form, checksum and signature, the files they name, the machine, and their verdict.

    finding = check_receipt_file(path, ReceiptRules(trusted=…, now_s=…))
    finding.differs         what is wrong; empty if nothing is

A receipt is of a download, a job, a comparison (parity), a gate, a benchmark or an inference; signed or not. Files that
it names are compared where they are found, and those that are not there are listed; `is_strict` makes that a
difference. Everything in a receipt is taken for untrusted: no path in it leads out of the folders that are searched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from stoker.core.digests import Tree
from stoker.core.errors import LocalFile, NotVerified, StokerError
from stoker.core.frozen import changed, fresh, frozen
from stoker.crossval.evidence import InferenceEvidence, faults_of_evidence, is_evidence, warnings_of_evidence
from stoker.crossval.measured_results import fallbacks_of, faults_of
from stoker.host.durable import read_regular, translated
from stoker.jobs.job_receipt import BUILD_TYPE
from stoker.store.results import SIDECAR, files_of_part
from stoker.store.statements import (
    DOWNLOAD,
    LARGEST_BYTES,
    MARK,
    PROVENANCE,
    TEST_RESULT,
    Envelope,
    Signature,
    Statement,
    Subject,
    is_envelope,
    parse_envelope,
    parse_statement,
    read_object,
)
from stoker.store.trees import hash_file, scan_tree
from stoker.transfer.download.receipts import FORMAT as DOWNLOAD_FORMAT
from stoker.transfer.download.receipts import Receipt, parse_receipt

_HEAD_BYTES = 4096
_STATES = ("completed", "failed", "cancelled")
_DIGESTS = ("sha256", "stokerTree", "stokerCode", "stokerJob", "stokerContent", "stokerRepository")
_MOST_NAMED = 20
_NOT_ON_DISK = ("/proc/", "/sys/")
# Facts of a machine that a receipt may be compared with. Its name is not one: receipts are verified elsewhere.
_COMPARED = ("system", "machine", "cpus", "memory_bytes", "stoker's python")


@frozen
class TrustedKeys:
    """Whose signatures count."""

    keys: Mapping[str, str] = fresh(factory=dict)
    """Id → public key, as PEM."""
    authorities: tuple[str, ...] = ()
    """Certificates of CAs, as PEM: keys that they certified count."""


@frozen
class ReceiptRules:
    """How receipts are verified."""

    now_s: float
    trusted: Callable[[], TrustedKeys] = TrustedKeys
    """Returns whose signatures count; called for signed receipts only."""
    folders: tuple[str, ...] = ()
    """Where the files of a receipt are looked for, before the folder that it names and its own."""
    needs_signature: bool = False
    is_strict: bool = False
    """Files that are not found, and runs that were not as requested, are differences."""
    here: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    """Returns those facts that a receipt states (machine, versions) as they are here; then they are compared."""
    tiers: Mapping[str, Mapping[str, Any]] | None = None
    """Known limits, by tier and measure."""


@frozen
class ReceiptFinding:
    """What became of one receipt."""

    path: str
    what: str = "receipt"
    """download, job, parity, gate, bench or inference; `receipt` if that is not known."""
    name: str = ""
    """What it is about."""
    result: str = ""
    """What it states: PASSED, WARNED or FAILED of tests, the state of a job. A valid receipt may state a failure."""
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    """Whose signatures were verified; empty if it is not signed."""
    verified_files: int = 0
    verified_folders: int = 0
    """Results of a job or of trials, each compared as a tree."""
    missing: tuple[str, ...] = ()
    """Files and results of trials that it names and that were not found."""

    @property
    def is_good(self) -> bool:
        return not self.differs

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "what": self.what,
            "name": self.name,
            "result": self.result,
            "is_good": self.is_good,
            "differs": list(self.differs),
            "notes": list(self.notes),
            "is_signed": bool(self.signers),
            "signers": list(self.signers),
            "verified_files": self.verified_files,
            "verified_folders": self.verified_folders,
            "missing": list(self.missing),
        }


def may_be_receipt(path: str) -> bool:
    """Return True if a file begins as a receipt of ours, signed or not."""
    if not os.path.isfile(path):
        return False
    with translated(path), open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return f'"{MARK}"'.encode() in head or is_envelope(head)


def check_receipt_file(path: str, rules: ReceiptRules) -> ReceiptFinding:
    """Verify a receipt in a file. Raises `LocalFile` only if it can't be read."""
    if not os.path.lexists(path):
        raise LocalFile(f"no such file: {path}", hint="of a job: stoker receipt show NAME --out FILE", path=path)
    try:
        data = read_regular(path, 2 * LARGEST_BYTES)
    except OSError as error:
        raise LocalFile(f"{path} can't be read: {error.strerror or error}", path=path) from None
    return check_receipt_bytes(data, path, rules)


def check_receipt_bytes(data: bytes, path: str, rules: ReceiptRules) -> ReceiptFinding:
    """Verify the bytes of a receipt; `path` says where it lies."""
    finding = ReceiptFinding(path=path)
    try:
        if b'"payloadType"' in data and f'"{MARK}"'.encode() not in data:
            envelope = parse_envelope(data, path)
            signers, notes = _signers(envelope, path, rules)
            finding = changed(finding, signers=signers, notes=notes)
            found = _check_payload(envelope.payload, envelope.payload_type, path, rules)
        else:
            found = _check_payload(data, "", path, rules)
    except NotVerified as error:
        return changed(finding, differs=(error.message,))
    unsigned = ("not signed",) if rules.needs_signature and not finding.signers else ()
    return changed(
        found, signers=finding.signers, notes=(*finding.notes, *found.notes), differs=(*unsigned, *found.differs)
    )


# Signatures.


def _signers(envelope: Envelope, path: str, rules: ReceiptRules) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return whose signatures are verified, and notes about others. Raises `NotVerified` if none is."""
    found: list[str] = []
    reasons: list[str] = []
    trusted = rules.trusted()
    for one in envelope.signatures:
        try:
            found.append(_signer(one, envelope.signed_bytes, trusted, now_s=rules.now_s))
        except NotVerified as error:
            reasons.append(error.message)
    if not found:
        hint = "to trust a key: --key FILE.pub; a fleet's CA: --ca FILE"
        raise NotVerified(f"the signature of {path} is not accepted: {'; '.join(reasons)}", hint=hint, path=path)
    return tuple(found), tuple(f"another signature is not accepted: {reason}" for reason in reasons)


def _signer(signature: Signature, signed: bytes, trusted: TrustedKeys, *, now_s: float) -> str:
    """Return who made a signature. Raises `NotVerified` with the reason."""
    # Importing cryptography takes a tenth of a second, and most receipts are not signed.
    from stoker.host.certificates import (
        has_signed,
        key_id,
        read_signing_certificate,
    )

    owner, public_pem = "", ""
    why = f"key {signature.keyid[:16] or '?'} is not trusted"
    for ca_pem in trusted.authorities if signature.certificate else ():
        try:
            certified = read_signing_certificate(signature.certificate, ca_pem, now_s=now_s)
        except NotVerified as error:
            why = error.message
        else:
            owner, public_pem = f"{certified.name}, certified by the fleet", certified.public_pem
            break
    if not public_pem:
        public_pem = trusted.keys.get(signature.keyid, "")
        owner = f"key {signature.keyid[:16]}"
    if not public_pem:
        raise NotVerified(why)
    if key_id(public_pem) != signature.keyid:
        raise NotVerified("its key id is that of another key")
    if not has_signed(public_pem, signature.sig, signed):
        raise NotVerified("it does not match the contents: they were changed, or another key signed them")
    return owner


# Contents.


def _check_payload(data: bytes, kind: str, path: str, rules: ReceiptRules) -> ReceiptFinding:
    try:
        body = read_object(data)
    except ValueError as error:
        raise NotVerified(f"{path} {error}", path=path) from None
    if kind == DOWNLOAD or (not kind and body.get(MARK) == DOWNLOAD_FORMAT):
        return _check_download(parse_receipt(data, path), path, rules)
    if not kind and is_evidence(body):
        return _check_inference(body, path)
    if not kind and "_type" not in body:
        raise NotVerified(f"{path} is not a receipt", hint="receipts are JSON files that Stoker wrote", path=path)
    statement = parse_statement(data, path)
    if statement.predicate_type == PROVENANCE:
        return _check_job(statement, path, rules)
    if statement.predicate_type == TEST_RESULT:
        return _check_result(statement, path, rules)
    raise NotVerified(f"{path} is about something else: {statement.predicate_type[:80]!r}", path=path)


def _check_download(receipt: Receipt, path: str, rules: ReceiptRules) -> ReceiptFinding:
    name = os.path.basename(receipt.path)
    places = [os.path.join(folder, name) for folder in rules.folders] or [receipt.path]
    place = next((one for one in places if _is_file(one)), None)
    if place is None:
        return _with_files(ReceiptFinding(path=path, what="download", name=receipt.label), [], [receipt.path], 0, rules)
    differs = _file_differs(place, receipt.sha256, {})
    return ReceiptFinding(path=path, what="download", name=receipt.label, differs=differs, verified_files=1)


def _check_inference(body: Mapping[str, Any], path: str) -> ReceiptFinding:
    try:
        evidence = InferenceEvidence.from_json(body)
    except ValueError as error:
        raise NotVerified(f"{path} {error}", path=path) from None
    return ReceiptFinding(
        path=path,
        what="inference",
        name=str(evidence.model.get("name", "")),
        differs=tuple(faults_of_evidence(evidence)),
        notes=tuple(warnings_of_evidence(evidence)),
    )


def _check_job(statement: Statement, path: str, rules: ReceiptRules) -> ReceiptFinding:
    predicate = statement.predicate
    build, run = _mapping(predicate.get("buildDefinition")), _mapping(predicate.get("runDetails"))
    name = str(_mapping(build.get("externalParameters")).get("name", ""))
    finding = ReceiptFinding(path=path, what="job", name=name, result=str(predicate.get("stoker_state", ""))[:20])
    finding = changed(finding, differs=tuple(_faults_of_job(statement, build, run)))
    folder = predicate.get("stoker_out")
    folders = [*rules.folders, *([folder] if isinstance(folder, str) and os.path.isabs(folder) else [])]
    omitted = _mapping(predicate.get("stoker_omitted"))
    trees = _trees_to_compare(statement.subject, is_cut=bool(omitted.get("subject")))
    folders = [*folders, os.path.dirname(os.path.abspath(path))]
    finding = _compare_files(finding, statement.subject, folders, rules, trees)
    if rules.here is not None:
        facts = _mapping(predicate.get("stoker_hardware"))
        versions = _mapping(_mapping(run.get("builder")).get("version"))
        facts = {**{name: facts[name] for name in _COMPARED if name in facts}, **versions}
        finding = changed(finding, differs=(*finding.differs, *_against_here(facts, rules.here)))
    notes = tuple(f"{count} more of {what} are not listed in it" for what, count in omitted.items())
    return changed(finding, notes=(*finding.notes, *notes))


def _faults_of_job(statement: Statement, build: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    state = statement.predicate.get("stoker_state")
    if build.get("buildType") != BUILD_TYPE:
        yield f"is of an unknown kind of build: {str(build.get('buildType'))[:80]!r}"
    if state not in _STATES:
        yield f"states no end of the job: {str(state)[:40]!r}"
    for one in statement.subject:
        odd = [kind for kind in one.digest if kind not in _DIGESTS]
        if odd or not all(_is_hex(value) for value in one.digest.values()):
            yield f"has an odd digest of {one.name[:80]!r}"
    has_result = any("stokerJob" not in one.digest for one in statement.subject)
    if state != "completed" and has_result and not _is_sweep(run):
        yield f"has results of a job that is {state}"
    times = _mapping(run.get("metadata"))
    try:
        began, ended = (datetime.fromisoformat(str(times.get(name))) for name in ("startedOn", "finishedOn"))
        is_ordered = began <= ended
    except (ValueError, TypeError):
        is_ordered = False
    if not is_ordered:
        yield "has no valid times of start and end"


def _is_sweep(run: Mapping[str, Any]) -> bool:
    """Return True if a job's receipt names receipts of its trials, some of which may have results."""
    return bool(run.get("byproducts"))


def _check_result(statement: Statement, path: str, rules: ReceiptRules) -> ReceiptFinding:
    predicate = statement.predicate
    differs = faults_of(predicate, tiers=rules.tiers)
    if rules.is_strict and not predicate.get("stoker_strict"):
        differs += fallbacks_of(predicate)
    notes: list[str] = []
    if raw := predicate.get("stoker_evidence"):
        try:
            evidence = InferenceEvidence.from_json(_mapping(raw))
        except ValueError as error:
            differs.append(str(error))
        else:
            differs += faults_of_evidence(evidence)
            notes += warnings_of_evidence(evidence)
    kind = str(predicate.get("stoker_kind", "receipt"))
    names = ", ".join(one.name for one in statement.subject[:3])
    finding = ReceiptFinding(path=path, what=kind, name=names, differs=tuple(differs), notes=tuple(notes))
    finding = changed(finding, result=str(predicate.get("result", ""))[:20])
    finding = _compare_files(
        finding, statement.subject, [*rules.folders, os.path.dirname(os.path.abspath(path))], rules
    )
    if rules.here is not None:
        there = _against_here(_mapping(predicate.get("stoker_environment")), rules.here)
        finding = changed(finding, differs=(*finding.differs, *there))
    return finding


# Files and machine.


def _trees_to_compare(subjects: Sequence[Subject], *, is_cut: bool) -> dict[str, str]:
    """Return the digests of those results of a job, by name, whose files its receipt does not list one by one.

    `is_cut` says that it lists a part of the files. A result without files needs no proof.
    """
    trees = {one.name: one.digest["stokerTree"] for one in subjects if "stokerTree" in one.digest}
    listed: set[str] = set()
    for one in subjects if not is_cut else ():
        if "sha256" in one.digest:
            above = one.name
            while above and above not in trees:
                above = above.rpartition("/")[0]
            listed.add(above or ".")
    return {name: digest for name, digest in trees.items() if name not in listed and digest != Tree(()).digest()}


def _compare_files(
    finding: ReceiptFinding,
    subjects: Sequence[Subject],
    folders: Iterable[str],
    rules: ReceiptRules,
    trees: Mapping[str, str] | None = None,
) -> ReceiptFinding:
    searched = list(dict.fromkeys(folders))
    differs: list[str] = []
    missing: list[str] = []
    verified = 0
    # A receipt may name one large file very often.
    found: dict[str, str] = {}
    folders_compared = 0
    for name, digest in (trees or {}).items():
        if _leads_elsewhere(name):
            differs.append(f"names a folder that leads elsewhere: {name[:80]!r}")
        elif (part := next(_parts_at(searched, name), None)) is None:
            missing.append(name)
        else:
            folders_compared += 1
            differs += _tree_differs(*part, digest, others=[one.name for one in subjects if "stokerTree" in one.digest])
    for one in subjects:
        if "sha256" not in one.digest:
            continue
        if _leads_elsewhere(one.name):
            differs.append(f"names a file that leads elsewhere: {one.name[:80]!r}")
            continue
        places = [os.path.normpath(os.path.join(folder, one.name)) for folder in searched]
        place = next(filter(_is_file, places), None)
        if place is None:
            missing.append(one.name)
        else:
            verified += 1
            differs += _file_differs(place, one.digest["sha256"], found)
    return _with_files(changed(finding, verified_folders=folders_compared), differs, missing, verified, rules)


def _with_files(
    finding: ReceiptFinding, differs: Sequence[str], missing: Sequence[str], verified: int, rules: ReceiptRules
) -> ReceiptFinding:
    lost = [f"file not found: {name}" for name in missing[:_MOST_NAMED]] if rules.is_strict else []
    return changed(
        finding, differs=(*finding.differs, *differs, *lost), missing=tuple(missing), verified_files=verified
    )


def _leads_elsewhere(name: str) -> bool:
    return os.path.isabs(name) or ".." in name.split("/") or "\0" in name


def _is_file(place: str) -> bool:
    """Return True if there is a file on a disk. Files of the kernel have no end, or block whoever reads them."""
    return os.path.isfile(place) and not os.path.realpath(place).startswith(_NOT_ON_DISK)


def _parts_at(folders: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Return where a result lies: a folder that Stoker wrote, and its part there. No receipt has other folders read."""
    for folder in folders:
        own = os.path.normpath(os.path.join(folder, name))
        if _is_file(os.path.join(own, SIDECAR)):
            yield own, "."
        elif _is_file(os.path.join(folder, SIDECAR)) and files_of_part(folder, name):
            yield folder, name


def _tree_differs(folder: str, part: str, digest: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return how a result differs. `others` are the names of other results, some of which may be below it."""
    place = os.path.normpath(os.path.join(folder, part))
    below = tuple(f"{name}/" for name in others if name != ".") if part == "." else ()
    try:
        entries, own = scan_tree(place).entries, files_of_part(folder, part)
    except StokerError as error:
        return (f"{place} can't be read: {error.message}",)
    # Which files are compared does not matter for the proof: only those that were made have this digest.
    found = Tree(tuple(one for one in entries if one.path in own and not one.path.startswith(below))).digest()
    return () if found == digest else (f"{place}: the digest of its files is {found}, the receipt says {digest}",)


def _file_differs(place: str, sha256: str, known: dict[str, str]) -> tuple[str, ...]:
    try:
        found = known[place] = known.get(place) or hash_file(place)[0]
    except StokerError as error:
        return (f"{place} can't be read: {error.message}",)
    return () if found == sha256 else (f"{place}: its sha256 is {found}, the receipt says {sha256}",)


def _against_here(facts: Mapping[str, Any], here: Callable[[Mapping[str, Any]], Mapping[str, str]]) -> Iterator[str]:
    for name, found in here(facts).items():
        if str(facts.get(name)) != found:
            yield f"{name} is {found} here, {facts.get(name)} in the receipt"


def _is_hex(text: str) -> bool:
    return bool(text) and all(char in "0123456789abcdef" for char in text)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
