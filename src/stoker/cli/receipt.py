"""`stoker receipt`: show the receipt of a job; verify receipts; sign them, and make and certify the keys for that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.screens import busy, busy_between
from stoker.core.errors import LocalFile, NotFound, NotVerified, Usage
from stoker.core.text import counted, outside
from stoker.host.durable import translated, write_file
from stoker.views.text_tables import near_path

if TYPE_CHECKING:
    from stoker.api.job import StoredReceipt
    from stoker.crossval.receipt_check import ReceiptFinding, ReceiptRules
    from stoker.store.statements import Statement

_MOST_NAMED = 10
_SIGNED = ".signed.json"
_DAY_S = 86_400.0
_AUTHORITY = "authority"

GROUP_GRAMMAR = Grammar(
    "receipt",
    about=(
        "A receipt states what was made, from what and where, or what was checked against which limits, so that it can "
        "be verified years later without a network. Every finished job, download, comparison, gate and benchmark has "
        "one."
    ),
    examples=("stoker receipt show last", "stoker receipt verify receipt.json"),
)


def perform_group(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "receipt")
    return 0


# `stoker receipt show`: the receipt of a job, as text, as JSON or as a file.

SHOW_GRAMMAR = Grammar(
    "receipt show",
    about=(
        "Show the receipt of a finished job, here or on the fleet: results, inputs, code, configuration, environment, "
        "hardware and metrics, by digest. Failed and cancelled jobs have one that says so; a job whose process was "
        "killed has none. --json prints the receipt itself, --out writes its exact bytes."
    ),
    positionals=(
        Positional("NAME", help="a job (a name, `last`, an id), or one trial of a sweep (`last/3`)", completes="job"),
    ),
    options=(Option("-o", "--out", value="FILE", help="also write the receipt to a file"), AT),
    examples=(
        "stoker receipt show last",
        "stoker receipt show gbt/3 --json",
        "stoker receipt show resnet --out resnet.receipt.json",
    ),
    errors=(NotFound, NotVerified),
)


def perform_show(call: CommandContext, given: dict[str, Any]) -> int:
    """Show a receipt, or those of a fleet's sweep."""
    from stoker.store.statements import parse_statement, read_object

    found = call.lookup.job(given["name"] or "last", given["at"]).receipts()
    if given["out"] and len(found) > 1:
        raise Usage(f"{given['name']} has {len(found)} receipts", hint=f"name one: {found[0].name}")
    for number, one in enumerate(found):
        statement = parse_statement(one.data, one.name)
        if number:
            call.out.line()
        call.out.object(read_object(one.data))
        _show(call, one, statement)
    if given["out"]:
        target = call.path(given["out"])
        write_file(target, found[0].data)
        call.out.line(f"written: {near_path(target, call.parts.settings.folder)}")
    return 0


def _show(call: CommandContext, receipt: StoredReceipt, statement: Statement) -> None:
    out, predicate = call.out, statement.predicate
    build, run = _mapping(predicate.get("buildDefinition")), _mapping(predicate.get("runDetails"))
    metadata, error = _mapping(run.get("metadata")), _mapping(predicate.get("stoker_error"))
    out.line(out.paint(f"{receipt.name}: {predicate.get('stoker_state', '?')}", "bold"))
    if error:
        out.line(f"  error       {outside(str(error.get('message', '')))}")
    builder = _mapping(run.get("builder"))
    out.line(f"  recipe      {outside(str(_mapping(build.get('externalParameters')).get('recipe', '')))}")
    out.line(f"  ran         {metadata.get('startedOn', '?')} to {metadata.get('finishedOn', '?')}")
    hardware = _mapping(predicate.get("stoker_hardware"))
    facts = ", ".join(str(hardware[name]) for name in ("system", "machine") if name in hardware)
    out.line(f"  machine     {outside(str(builder.get('id', '?')))} ({facts})")
    versions = {name: text for name, text in _mapping(builder.get("version")).items() if isinstance(text, str)}
    out.line(f"  versions    {', '.join(f'{name} {text}' for name, text in list(versions.items())[:_MOST_NAMED])}")
    for metric, value in list(_mapping(predicate.get("stoker_metrics")).items())[:_MOST_NAMED]:
        out.line(f"  metric      {outside(str(metric))} {value}")
    made_from = build.get("resolvedDependencies")
    _list(call, "made from", made_from if isinstance(made_from, list) else [])
    _list(call, "made", [one.to_json() for one in statement.subject])
    if receipt.recorded_sha256:
        out.line(f"  recorded    the coordinator recorded its sha256 {receipt.recorded_sha256[:12]} with the result")


def _list(call: CommandContext, label: str, items: list[Any]) -> None:
    for one in items[:_MOST_NAMED]:
        digest = next(iter(_mapping(_mapping(one).get("digest")).items()), ("", ""))
        version = _mapping(_mapping(one).get("annotations")).get("version", "")
        shown = f"{digest[0]} {str(digest[1])[:12]}" if digest[1] else str(_mapping(one).get("uri", "") or version)
        call.out.line(f"  {label:<11} {outside(str(_mapping(one).get('name', '')))}  {outside(shown)}")
    if len(items) > _MOST_NAMED:
        call.out.line(f"  {label:<11} and {len(items) - _MOST_NAMED:,} more: --json lists them")


# `stoker receipt verify`: any receipt, offline.

_KEY = Option(
    "--key",
    value="FILE",
    is_many=True,
    help="trust this public key (.pub) and no key of this home; an unsigned receipt is an error",
)
_CA = Option(
    "--ca",
    value="FILE",
    is_many=True,
    help="trust keys certified by this CA (default: the fleet's); an unsigned receipt is an error",
)

VERIFY_GRAMMAR = Grammar(
    "receipt verify",
    about=(
        "Verify receipts offline: their form and checksum, the digests of the files that they name and that are here, "
        "the limits of a comparison, a gate or a benchmark decided again from its rows, and the signature if there is "
        "one. Exit code 15 if anything differs. Trusted are the keys in state/signing and the CA of the fleet that "
        "this home serves or joined."
    ),
    positionals=(
        Positional("FILE", key="files", help="receipts of downloads, jobs, parity, gates, benchmarks", is_many=True),
    ),
    options=(
        Option("--dir", value="DIR", is_many=True, help="folder with the files that a receipt names"),
        _KEY,
        _CA,
        Option("--signed", help="an unsigned receipt is an error"),
        Option("--here", help="compare system, hardware and versions with this machine"),
        Option("--strict", help="files that are not here, and runs other than requested, are errors"),
    ),
    examples=(
        "stoker receipt verify receipt.json",
        "stoker receipt verify model.receipt.json --dir models --strict",
        "stoker receipt verify receipt.signed.json --signed --key alice.pub",
    ),
    errors=(NotVerified, LocalFile),
)


def perform_verify(call: CommandContext, given: dict[str, Any]) -> int:
    """Verify each receipt."""
    from stoker.crossval.receipt_check import check_receipt_file

    if not given["files"]:
        raise Usage("FILE is missing", hint="stoker receipt verify receipt.json")
    for folder in given["dir"] or ():
        if not os.path.isdir(call.path(folder)):
            raise Usage(f"--dir {outside(folder)}: no such folder", hint="the folder with the files of the receipt")
    rules = rules_here(call, given)
    typed = {call.path(name): name for name in given["files"]}
    out, bad = call.out, list[str]()
    findings = (check_receipt_file(path, rules) for path in typed)
    for one in busy_between(call, "verifying receipt {number}", findings):
        out.object(one.to_json())
        _show_finding(call, one, outside(typed.get(one.path, one.path)))
        bad += [f"{outside(typed.get(one.path, one.path))}: {outside(one.differs[0])}"] if one.differs else []
    if bad:
        message = bad[0] if len(bad) == 1 else f"{len(bad)} of {counted(len(typed), 'receipt')} are not valid"
        is_unsigned = all(one.endswith(": not signed") for one in bad)
        again = "get it again from where it was made: stoker receipt show NAME --out FILE"
        raise NotVerified(message, hint="stoker receipt sign FILE signs it" if is_unsigned else again, differ=bad)
    return 0


def rules_here(call: CommandContext, given: Mapping[str, Any]) -> ReceiptRules:
    """Return how receipts are verified with the given options; of `stoker check`, none are given."""
    from stoker.crossval.limits import known_limits
    from stoker.crossval.receipt_check import ReceiptRules

    def trusted() -> Any:
        from stoker.crossval.signing import trusted_keys

        keys = [call.path(name) for name in given.get("key") or ()]
        # A key that is named is the only one that is asked about.
        authorities = [call.path(name) for name in given.get("ca") or ()] or ([] if keys else _own_authorities(call))
        return trusted_keys(call.parts.settings.state, keys, authorities)

    return ReceiptRules(
        now_s=call.parts.clock.wall_s(),
        trusted=trusted,
        folders=tuple(call.path(name) for name in given.get("dir") or ()),
        needs_signature=any(given.get(name) for name in ("signed", "key", "ca")),
        is_strict=bool(given.get("strict")),
        here=_facts_here(call) if given.get("here") else None,
        tiers=known_limits(),
    )


def _own_authorities(call: CommandContext) -> list[str]:
    """Return the certificates of the CAs of the fleets that this home serves or joined."""
    from stoker.coordinator.auth import CERTIFICATE_NAME
    from stoker.protocol.discovery import MembershipKind, read_joined

    state = call.parts.settings.state
    joined = (read_joined(state, side) for side in MembershipKind)
    found = [os.path.join(state, _AUTHORITY, CERTIFICATE_NAME), *(one.ca_file for one in joined if one is not None)]
    return [path for path in dict.fromkeys(found) if os.path.isfile(path)]


def _facts_here(call: CommandContext) -> Callable[[Mapping[str, Any]], Mapping[str, str]]:
    """Return what tells the facts of a receipt as they are here: the machine, and the libraries of its interpreter."""
    from stoker.host.identity import surroundings
    from stoker.host.install import packages_digest, packages_in
    from stoker.host.interpreter import is_python
    from stoker.host.resources import memory_total_bytes

    machine = {**surroundings(), "memory_bytes": str(memory_total_bytes()), "stoker": call.parts.version}

    def facts_of(stated: Mapping[str, Any]) -> dict[str, str]:
        program = str(stated.get("program", ""))
        if program and not is_python(program):
            return {name: machine[name] for name in stated if name in machine}
        packages = packages_in(os.path.dirname(os.path.dirname(program or sys.executable)))
        # Without packages of its own the interpreter is not here, or takes them from elsewhere.
        found = {**packages, "packages": packages_digest(packages)} if packages else {}
        known = {**found, **machine}
        names = {name: name.replace("_", "-").lower() if name not in known else name for name in stated}
        return {name: known[other] for name, other in names.items() if other in known}

    return facts_of


def _show_finding(call: CommandContext, one: ReceiptFinding, shown: str) -> None:
    out, signs = call.out, call.out.signs
    for difference in one.differs:
        out.line(f"{out.paint(signs.failed, 'red')} {shown}  {outside(difference)}")
    if one.is_good and not out.is_quiet:
        signed = f"signed by {', '.join(one.signers)}" if one.signers else "not signed"
        compared = ((one.verified_files, "file"), (one.verified_folders, "folder"))
        files = "".join(f", {counted(number, what)} verified" for number, what in compared if number)
        name = f" of {outside(one.name)}" if one.name else ""
        result = f"{outside(one.result)}, " if one.result else ""
        out.line(f"{out.paint(signs.ran, 'green')} {shown}  {one.what}{name}: {result}{signed}{files}")
    for note in one.notes:
        out.note(f"note: {outside(note)}")
    if one.missing and not one.differs:
        names = ", ".join(map(outside, one.missing[:_MOST_NAMED]))
        more = f" and {len(one.missing) - _MOST_NAMED} more" if len(one.missing) > _MOST_NAMED else ""
        out.note(f"note: not here, so not compared: {names}{more}; --dir DIR names their folder")


# `stoker receipt sign`, `receipt key`, `receipt certify`.

SIGN_GRAMMAR = Grammar(
    "receipt sign",
    about=(
        "Sign a receipt with an ed25519 key, as a DSSE envelope around the receipt's own bytes. It is verified "
        "first. A signed receipt gets one more signature. The certificate beside the key (.crt) is added, so that all "
        "who trust the fleet's CA can verify it."
    ),
    positionals=(Positional("FILE", help="a receipt, or a signed receipt"),),
    options=(
        Option("--key", value="FILE", help="private key (default: state/signing/key.pem in STOKER_HOME)"),
        Option("--certificate", value="FILE", help="certificate of the key (default: KEY.crt, if there is one)"),
        Option("-o", "--out", value="FILE", help=f"the signed receipt (default: FILE with {_SIGNED})"),
    ),
    examples=("stoker receipt sign receipt.json", "stoker receipt sign receipt.json --key ci.pem --out signed.json"),
    errors=(NotVerified, LocalFile),
)


def perform_sign(call: CommandContext, given: dict[str, Any]) -> int:
    """Sign a receipt."""
    from stoker.crossval.signing import CERTIFICATE, beside_key, default_key, sign_receipt

    if not given["file"]:
        raise Usage("FILE is missing", hint="stoker receipt sign receipt.json")
    path = call.path(given["file"])
    key_file = call.path(given["key"]) if given["key"] else default_key(call.parts.settings.state)
    usual = beside_key(key_file, CERTIFICATE)
    certificate = call.path(given["certificate"]) if given["certificate"] else usual if os.path.isfile(usual) else ""
    with busy(call, "signing"):
        envelope = sign_receipt(path, key_file=key_file, certificate_file=certificate)
    stem = path.removesuffix(_SIGNED).removesuffix(".json")
    target = call.path(given["out"]) if given["out"] else f"{stem}{_SIGNED}"
    write_file(target, envelope.to_bytes())
    ids = [one.keyid for one in envelope.signatures]
    call.out.object({"file": target, "keys": ids, "has_certificate": bool(certificate)})
    call.out.line(f"signed: {near_path(target, call.parts.settings.folder)}  key {ids[-1][:16]}")
    return 0


KEY_GRAMMAR = Grammar(
    "receipt key",
    about=(
        "Make an ed25519 key that signs receipts: a private key, readable by you only, and its public half (.pub) for "
        "those who verify. An existing key is never replaced."
    ),
    positionals=(
        Positional("FILE", help="the private key (default: state/signing/key.pem in STOKER_HOME)", is_required=False),
    ),
    examples=("stoker receipt key", "stoker receipt key ci.pem"),
    errors=(LocalFile,),
)


def perform_key(call: CommandContext, given: dict[str, Any]) -> int:
    """Make a key."""
    from stoker.crossval.signing import create_key, default_key

    call.parts.make_state()
    made = create_key(call.path(given["file"]) if given["file"] else default_key(call.parts.settings.state))
    call.out.object({"key": made.key_file, "public_key": made.public_file, "key_id": made.key_id})
    folder = call.parts.settings.folder
    call.out.line(f"private key: {near_path(made.key_file, folder)}")
    call.out.line(f"public key:  {near_path(made.public_file, folder)}  id {made.key_id[:16]}")
    return 0


CERTIFY_GRAMMAR = Grammar(
    "receipt certify",
    about=(
        "Certify a public key with the CA of the fleet, on the coordinator's machine: receipts signed with the key are "
        "then accepted by every member of the fleet. The CA signs the key, and no receipt. Put the certificate beside "
        "the private key, as KEY.crt."
    ),
    positionals=(Positional("FILE", help="a public key (.pub)"),),
    options=(
        Option("--name", value="NAME", help="owner of the key, as verification shows it"),
        Option("--days", value="N", read=whole(1), help="how long it is valid (default: as long as the CA)"),
        Option("-o", "--out", value="FILE", help="the certificate (default: FILE with .crt)"),
    ),
    examples=("stoker receipt certify alice.pub --name alice",),
    errors=(LocalFile, NotFound),
)


def perform_certify(call: CommandContext, given: dict[str, Any]) -> int:
    """Certify a key."""
    from stoker.coordinator.auth import KEY_NAME, open_ca
    from stoker.host.certificates import CA_LIFE_S
    from stoker.host.durable import read_regular

    if not given["file"] or not given["name"]:
        raise Usage("FILE and --name are needed", hint="stoker receipt certify alice.pub --name alice")
    parts, path = call.parts, call.path(given["file"])
    folder = os.path.join(parts.settings.state, _AUTHORITY)
    if not os.path.isfile(os.path.join(folder, KEY_NAME)):
        raise NotFound("this home has no CA", hint="run it on the machine of the coordinator, as its user")
    with translated(path):
        public_pem = read_regular(path, 64 * 1024).decode("ascii", "replace")
    now_s = parts.clock.wall_s()
    life_s = CA_LIFE_S if given["days"] is None else given["days"] * _DAY_S
    signer = open_ca(folder, fleet="", now_s=now_s).signer
    made = signer.receipts(public_pem, given["name"], now_s=now_s, life_s=life_s)
    target = call.path(given["out"]) if given["out"] else f"{path.removesuffix('.pub')}.crt"
    write_file(target, made.certificate_pem.encode())
    call.out.object(
        {"certificate": target, "name": given["name"], "serial": made.serial, "expires_s": made.not_after_s}
    )
    call.out.line(f"certificate: {near_path(target, parts.settings.folder)}  of {given['name']}")
    return 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
