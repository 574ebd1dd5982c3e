"""Receipts of all kinds, signed and not, verified without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.core import jsontext
from stoker.core.digests import Tree, digest_bytes
from stoker.core.errors import BadInput, LocalFile, NotVerified
from stoker.core.frozen import changed
from stoker.crossval.measured_results import MeasuredValues, ResultFacts, result_of, statement_of
from stoker.crossval.receipt_check import (
    ReceiptFinding,
    ReceiptRules,
    TrustedKeys,
    check_receipt_bytes,
    check_receipt_file,
    may_be_receipt,
)
from stoker.crossval.signing import create_key, sign_receipt, trusted_keys
from stoker.host.certificates import (
    DAY_S,
    KeyPair,
    Signer,
    key_id,
    make_ca,
    make_signing_key,
    public_pem_of,
    sign_bytes,
)
from stoker.store.statements import (
    DOWNLOAD,
    IN_TOTO,
    Envelope,
    Signature,
    Statement,
    Subject,
)
from stoker.store.trees import scan_tree
from stoker.transfer.download.receipts import receipt_of
from stoker.transfer.download.types import FetchedFile, Status
from tests.unit.crossval.test_evidence import BODY as EVIDENCE

NOW_S = 1_800_000_000.0
WEIGHTS = b"weights"
KEY = make_signing_key()
PUBLIC = public_pem_of(KEY)
CA = make_ca("stoker fleet of desk", now_s=NOW_S)
TRUSTS_KEY = ReceiptRules(now_s=NOW_S, trusted=lambda: TrustedKeys(keys={key_id(PUBLIC): PUBLIC}))
TRUSTS_CA = ReceiptRules(now_s=NOW_S, trusted=lambda: TrustedKeys(authorities=(CA.certificate_pem,)))


def of_job(**change: Any) -> Statement:
    predicate: dict[str, Any] = {
        "buildDefinition": {"buildType": "urn:stoker:job:v1", "externalParameters": {"name": "train"}},
        "runDetails": {
            "builder": {"id": "desk", "version": {"stoker": "1.2.3", "interpreter": {"version": "3.11"}}},
            "metadata": {
                "startedOn": "2026-11-18T10:00:00.000+00:00",
                "finishedOn": "2026-11-18T10:00:05.000+00:00",
            },
        },
        "stoker_state": "completed",
        "stoker_hardware": {"host": "desk", "system": "Linux 6.1", "cpus": "2"},
        **change,
    }
    subject = (Subject(name="sub/model.bin", digest={"sha256": digest_bytes(WEIGHTS)}),)
    return Statement(subject=subject, predicate_type="https://slsa.dev/provenance/v1", predicate=predicate)


def of_parity(values: tuple[float, ...] = (1e-12,), **facts: Any) -> Statement:
    measure = MeasuredValues(test="logits", name="nmse", values=values, most=1e-9)
    predicate = result_of("parity", {"logits": "passed"}, [measure], ResultFacts(**facts))
    return statement_of([Subject(name="m.gguf", digest={"sha256": "ab" * 32})], predicate)


def of_download(path: str) -> bytes:
    fetched = FetchedFile(
        path=path,
        status=Status.DOWNLOADED,
        size_bytes=len(WEIGHTS),
        sha256=digest_bytes(WEIGHTS),
        bytes_from_network=7,
        bytes_resumed=0,
        seconds=1.0,
        url="https://hub.example/m.gguf",
        commit="",
        etag="",
        last_modified="",
    )
    return receipt_of(fetched, label="m.gguf", ended_s=NOW_S, version="1.2.3").to_bytes()


def signed(data: bytes, *, kind: str = IN_TOTO, certificate: str = "", keyid: str = "") -> Envelope:
    bare = Envelope(payload_type=kind, payload=data, signatures=())
    made = Signature(sig=sign_bytes(KEY, bare.signed_bytes), keyid=keyid or key_id(PUBLIC), certificate=certificate)
    return changed(bare, signatures=(made,))


def check(
    data: bytes | Statement | Envelope, rules: ReceiptRules = TRUSTS_KEY, path: str = "/r.json"
) -> ReceiptFinding:
    return check_receipt_bytes(data if isinstance(data, bytes) else data.to_bytes(), path, rules)


def certified(ca: KeyPair = CA, *, now_s: float = NOW_S, life_s: float = DAY_S) -> str:
    return Signer(ca).receipts(PUBLIC, "ann", now_s=now_s, life_s=life_s).certificate_pem


def test_the_receipt_of_a_job_is_compared_with_the_files_that_are_there(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(WEIGHTS)
    path = str(tmp_path / "receipt.json")
    found = check(of_job(), path=path)
    assert (found.what, found.name, found.differs, found.verified_files) == ("job", "train", (), 1)
    (tmp_path / "sub" / "model.bin").write_bytes(b"weightz")
    (difference,) = check(of_job(), path=path).differs
    assert "its sha256 is" in difference
    assert digest_bytes(WEIGHTS) in difference


def test_files_are_looked_for_in_the_folder_it_names_and_in_those_given(tmp_path: Path):
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub" / "model.bin").write_bytes(WEIGHTS)
    assert check(of_job(stoker_out=str(tmp_path / "out"))).verified_files == 1
    rules = changed(TRUSTS_KEY, folders=(str(tmp_path / "out"),))
    assert check(of_job(), rules).verified_files == 1


def test_the_receipt_of_a_sweep_is_compared_with_the_results_of_its_trials(tmp_path: Path):
    trial = tmp_path / "lr=1"
    trial.mkdir()
    (trial / "model.bin").write_bytes(WEIGHTS)
    digest = str(scan_tree(str(trial)).digest())
    sweep = changed(of_job(), subject=(Subject(name="lr=1", digest={"stokerTree": digest}),))
    path = str(tmp_path / "receipt.json")
    strict = changed(TRUSTS_KEY, is_strict=True)
    # A folder that is no result of Stoker's is not read.
    assert check(sweep, path=path).missing == ("lr=1",)
    assert check(sweep, strict, path=path).differs == ("file not found: lr=1",)
    # Beside its own files: those of another stage, which are laid out below it, and one of the user.
    (trial / "number").mkdir()
    for name in ("number/value.json", "notes.txt"):
        (trial / name).write_text("7")
    wrote = {name: [["0", 1, 1, 1]] for name in ("model.bin", "number/value.json")}
    sidecar = {"v": 1, "artifacts": [{"folder": "."}, {"folder": "number"}], "files": wrote}
    (trial / ".stoker.json").write_text(jsontext.dumps(sidecar))
    found = check(sweep, strict, path=path)
    assert (found.differs, found.verified_folders, found.missing) == ((), 1, ())
    (trial / "model.bin").write_bytes(b"weightz")
    (difference,) = check(sweep, path=path).differs
    assert f"the receipt says {digest}" in difference
    outside = changed(sweep, subject=(Subject(name="../lr=1", digest={"stokerTree": digest}),))
    assert "leads elsewhere" in check(outside, path=path).differs[0]


def laid_out(folder: Path, files: Mapping[str, bytes], parts: tuple[str, ...]) -> None:
    """Write results as `stoker get` does, with the sidecar that names them."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    wrote = {name: [[digest_bytes(data), 1, 1, 1]] for name, data in files.items()}
    sidecar = {"v": 1, "artifacts": [{"folder": part} for part in parts], "files": wrote}
    (folder / ".stoker.json").write_text(jsontext.dumps(sidecar))


@pytest.mark.parametrize("cut", [True, False])
def test_results_whose_files_are_not_listed_are_compared_as_trees(tmp_path: Path, *, cut: bool):
    out = tmp_path / "out"
    laid_out(out, {"a.bin": WEIGHTS, "b.bin": WEIGHTS, "plot/p.svg": b"<svg>"}, (".", "plot"))
    whole = scan_tree(str(out)).entries
    digests = {
        ".": str(Tree(tuple(one for one in whole if one.path in ("a.bin", "b.bin"))).digest()),
        "plot": str(scan_tree(str(out / "plot")).digest()),
    }
    trees = tuple(Subject(name=name, digest={"stokerTree": digest}) for name, digest in digests.items())
    # One of three files is listed, or none.
    files = (Subject(name="a.bin", digest={"sha256": digest_bytes(WEIGHTS)}),) if cut else ()
    omitted = {"stoker_omitted": {"subject": 2}} if cut else {}
    job = changed(of_job(stoker_out=str(out), **omitted), subject=(*trees, *files))
    strict = changed(TRUSTS_KEY, is_strict=True)
    found = check(job, strict)
    assert (found.differs, found.verified_folders, found.verified_files) == ((), 2, len(files))
    (out / "notes.txt").write_text("of the user")
    # A fetched folder may be one result, in which the others are folders.
    laid_out(out, {"a.bin": WEIGHTS, "b.bin": WEIGHTS, "plot/p.svg": b"<svg>"}, (".",))
    assert check(job, strict).differs == ()
    for name in ("b.bin", "plot/p.svg"):
        before = (out / name).read_bytes()
        (out / name).write_bytes(b"changed")
        (difference,) = check(job).differs
        assert f"the receipt says {digests['plot' if '/' in name else '.']}" in difference
        (out / name).write_bytes(before)
    (out / ".stoker.json").unlink()
    assert check(job).missing == (".", "plot")
    assert check(job, strict).differs == ("file not found: .", "file not found: plot")


def test_results_whose_files_are_all_listed_or_that_have_none_need_no_folder(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(WEIGHTS)
    trees = tuple(
        Subject(name=name, digest={"stokerTree": str(digest)})
        for name, digest in ((".", scan_tree(str(tmp_path)).digest()), ("empty", Tree(()).digest()))
    )
    job = changed(of_job(), subject=(*trees, *of_job().subject))
    found = check(job, changed(TRUSTS_KEY, is_strict=True), path=str(tmp_path / "receipt.json"))
    assert (found.differs, found.missing, found.verified_files) == ((), (), 1)


def test_a_file_that_is_not_here_is_a_difference_only_if_asked():
    found = check(of_job())
    assert (found.differs, found.missing) == ((), ("sub/model.bin",))
    assert check(of_job(), changed(TRUSTS_KEY, is_strict=True)).differs == ("file not found: sub/model.bin",)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../b", "a\0b"])
def test_no_name_leads_out_of_the_folders(name: str):
    statement = changed(of_job(), subject=(Subject(name=name, digest={"sha256": "ab" * 32}),))
    (difference,) = check(statement).differs
    assert "leads elsewhere" in difference


def test_a_receipt_has_no_file_of_the_kernel_read_and_no_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    endless = (Subject(name="self/status", digest={"sha256": "ab" * 32}),)
    assert check(changed(of_job(stoker_out="/proc"), subject=endless)).missing == ("self/status",)
    assert check(of_download("/proc/self/status")).missing == ("/proc/self/status",)
    (tmp_path / "link").symlink_to("/proc/self/status")
    linked = (Subject(name="link", digest={"sha256": "ab" * 32}),)
    assert check(changed(of_job(), subject=linked), path=str(tmp_path / "r.json")).missing == ("link",)
    read: list[str] = []

    def hash_once(place: str) -> tuple[str, int]:
        read.append(place)
        return "cd" * 32, 1

    monkeypatch.setattr("stoker.crossval.receipt_check.hash_file", hash_once)
    (tmp_path / "a").write_bytes(WEIGHTS)
    names = ("a", "./a", "a", "./././a")
    many = tuple(Subject(name=name, digest={"sha256": "ab" * 32}) for name in names)
    assert len(check(changed(of_job(), subject=many), path=str(tmp_path / "r.json")).differs) == 4
    assert read == [str(tmp_path / "a")]


@pytest.mark.parametrize(
    "change",
    [
        {"stoker_state": "running"},
        {"stoker_state": "failed"},
        {"buildDefinition": {"buildType": "urn:other"}},
        {"buildDefinition": None},
        {"runDetails": {"metadata": {"startedOn": "2026", "finishedOn": "x"}}},
        {
            "runDetails": {
                "metadata": {"startedOn": "2026-11-18T10:00:01+00:00", "finishedOn": "2026-11-18T10:00:00+00:00"}
            }
        },
        {"runDetails": []},
    ],
)
def test_a_job_of_another_form_is_a_difference(change: dict[str, Any]):
    assert check(of_job(**change)).differs


def test_a_machine_is_compared_if_asked():
    here = {"system": "Linux 6.1", "cpus": "2", "stoker": "1.2.3", "host": "other"}

    def known(stated: Mapping[str, Any]) -> dict[str, str]:
        return {name: here[name] for name in stated if name in here}

    assert check(of_job(), changed(TRUSTS_KEY, here=known)).differs == ()
    here |= {"system": "Linux 5.4", "stoker": "1.3.0"}
    assert check(of_job(), changed(TRUSTS_KEY, here=known)).differs == (
        "system is Linux 5.4 here, Linux 6.1 in the receipt",
        "stoker is 1.3.0 here, 1.2.3 in the receipt",
    )


def test_a_comparison_is_decided_again_from_its_rows():
    good = check(of_parity())
    assert (good.what, good.name, good.differs) == ("parity", "m.gguf", ())
    assert good.result == "PASSED"
    (difference,) = check(of_parity((1e-12, 5e-9))).differs
    assert difference == "logits: nmse 5e-09 is not within at most 1e-09, yet the test passed"


def test_a_fallback_is_a_difference_in_strict_verification():
    fell = of_parity(requested={"candidate": {"device": "cuda"}}, ran={"candidate": {"device": "cpu"}})
    assert check(fell).differs == ()
    assert "'cuda' was requested" in check(fell, changed(TRUSTS_KEY, is_strict=True)).differs[0]


def test_evidence_in_a_benchmark_is_held_to_its_rules():
    assert check(of_parity(evidence=EVIDENCE)).differs == ()
    (difference,) = check(of_parity(evidence={**EVIDENCE, "backend": "cuda"})).differs
    assert difference == "backend cuda, but no kernel of a GPU"
    assert "has schema" in check(of_parity(evidence={**EVIDENCE, "schema_version": "9"})).differs[0]


def test_the_receipt_of_an_inference_of_system_c_is_read():
    assert check(json.dumps(EVIDENCE).encode()).differs == ()
    assert check(json.dumps({**EVIDENCE, "compute_path": "mock"}).encode()).differs
    assert check(json.dumps({**EVIDENCE, "kernels": 3}).encode()).differs
    twice = json.dumps(EVIDENCE).replace('"backend"', '"compute_path": "real", "backend"').encode()
    assert "given twice" in check(twice).differs[0]


def test_the_receipt_of_a_download_is_compared_with_its_file(tmp_path: Path):
    path = tmp_path / "m.gguf"
    assert check(of_download(str(path))).missing == (str(path),)
    path.write_bytes(WEIGHTS)
    assert check(of_download(str(path))).verified_files == 1
    path.write_bytes(b"weightz")
    assert check(of_download(str(path))).differs


def test_a_signature_of_a_trusted_key_is_named():
    found = check(signed(of_job().to_bytes()))
    assert (found.differs, found.signers, found.what) == ((), (f"key {key_id(PUBLIC)[:16]}",), "job")
    found = check(signed(of_download("/nowhere/m.gguf"), kind=DOWNLOAD))
    assert (found.differs, found.what, bool(found.signers)) == ((), "download", True)


def test_a_key_that_the_fleets_ca_certified_is_trusted():
    found = check(signed(of_job().to_bytes(), certificate=certified()), TRUSTS_CA)
    assert (found.differs, found.signers) == ((), ("ann, certified by the fleet",))


def refused(envelope: Envelope, rules: ReceiptRules = TRUSTS_KEY) -> str:
    found = check(envelope, rules)
    assert found.signers == ()
    (difference,) = found.differs
    return difference


def test_a_foreign_key_is_not_accepted():
    other = make_signing_key()
    bare = signed(of_job().to_bytes())
    made = Signature(sig=sign_bytes(other, bare.signed_bytes), keyid=key_id(public_pem_of(other)))
    assert "is not trusted" in refused(changed(bare, signatures=(made,)))
    # Under the id of a trusted key.
    assert "does not match the contents" in refused(changed(bare, signatures=(changed(made, keyid=key_id(PUBLIC)),)))


def test_a_foreign_or_expired_authority_is_not_accepted():
    data = of_job().to_bytes()
    foreign = certified(make_ca("other", now_s=NOW_S))
    assert "another CA" in refused(signed(data, certificate=foreign), TRUSTS_CA)
    late = changed(TRUSTS_CA, now_s=NOW_S + 2 * DAY_S)
    assert "not valid now: it expires on 2027-01-16" in refused(signed(data, certificate=certified()), late)
    ended = changed(TRUSTS_CA, now_s=NOW_S + 4000 * DAY_S)
    assert "not valid now" in refused(signed(data, certificate=certified()), ended)
    # Whoever trusts the key itself needs no authority.
    assert check(signed(data, certificate=foreign)).differs == ()


def test_a_signature_over_another_payload_type_is_not_accepted():
    data = of_job().to_bytes()
    moved = changed(signed(data, kind=DOWNLOAD), payload_type=IN_TOTO)
    assert "does not match the contents" in refused(moved)
    assert (
        "holds no receipt" in check(signed(data).to_bytes().replace(b"vnd.in-toto+json", b"vnd.other+json")).differs[0]
    )
    # Signed as what it is not.
    assert check(signed(of_download("/m"))).differs
    assert check(signed(data, kind=DOWNLOAD)).differs


def test_a_signed_statement_still_has_to_be_right():
    found = check(signed(of_parity((1.0,)).to_bytes()))
    assert found.signers
    assert "is not within" in found.differs[0]


def test_no_flipped_byte_of_a_signed_receipt_is_accepted():
    data = of_parity().to_bytes()
    for rules, certificate in ((TRUSTS_KEY, ""), (TRUSTS_CA, certified())):
        whole = signed(data, certificate=certificate).to_bytes()
        assert check(whole, rules).differs == ()
        # The payload is the same in both.
        for at in range(whole.index(b"signatures") if certificate else 0, len(whole)):
            flipped = whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
            assert check(flipped, rules).differs, at


def test_an_unsigned_receipt_is_refused_where_a_signature_is_needed():
    needs = changed(TRUSTS_KEY, needs_signature=True)
    assert check(of_job(), needs).differs == ("not signed",)
    assert check(signed(of_job().to_bytes()), needs).differs == ()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"nothing", b'{"a":1,"a":2}', b'{"stoker_receipt": 9}', b"\0" * 99]
)
def test_what_is_no_receipt_is_told_as_that(data: bytes):
    assert check(data).differs


def test_a_statement_of_another_kind_is_refused():
    other = changed(of_job(), predicate_type="https://example.org/vuln/v1")
    assert "about something else" in check(other).differs[0]


def test_a_file_that_is_not_there_or_no_file_is_an_error(tmp_path: Path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(LocalFile):
            check_receipt_file(str(path), TRUSTS_KEY)


def test_receipts_are_recognised_by_their_beginning(tmp_path: Path):
    path = tmp_path / "r.json"
    for data in (of_job().to_bytes(), of_download("/m"), signed(of_job().to_bytes()).to_bytes()):
        path.write_bytes(data)
        assert may_be_receipt(str(path))
    path.write_bytes(b'{"payloadType": "text/plain"}')
    assert not may_be_receipt(str(path))


# Signing files, with keys in files.


def test_a_receipt_is_signed_with_a_key_from_a_file_and_verified_with_its_public_half(tmp_path: Path):
    made = create_key(str(tmp_path / "keys" / "ci.pem"))
    assert (tmp_path / "keys" / "ci.pem").stat().st_mode & 0o777 == 0o600
    receipt = tmp_path / "receipt.json"
    receipt.write_bytes(of_job().to_bytes())
    envelope = sign_receipt(str(receipt), key_file=made.key_file)
    rules = ReceiptRules(now_s=NOW_S, trusted=lambda: trusted_keys(str(tmp_path), [made.public_file]))
    assert check(envelope, rules).signers == (f"key {made.key_id[:16]}",)
    assert check(envelope).differs
    (tmp_path / "signed.json").write_bytes(envelope.to_bytes())
    other = create_key(str(tmp_path / "keys" / "two.pem"))
    both = sign_receipt(str(tmp_path / "signed.json"), key_file=other.key_file)
    assert [one.keyid for one in both.signatures] == [made.key_id, other.key_id]
    found = check(both, rules)
    assert (len(found.signers), len(found.notes)) == (1, 1)


def test_keys_of_a_home_are_trusted_and_none_of_them_if_others_are_named(tmp_path: Path):
    own = create_key(str(tmp_path / "signing" / "key.pem"))
    other = create_key(str(tmp_path / "other.pem"))
    assert set(trusted_keys(str(tmp_path)).keys) == {own.key_id}
    assert set(trusted_keys(str(tmp_path), [other.public_file]).keys) == {other.key_id}


def test_a_key_is_never_replaced(tmp_path: Path):
    create_key(str(tmp_path / "key.pem"))
    with pytest.raises(LocalFile, match="exists already"):
        create_key(str(tmp_path / "key.pem"))


def test_a_key_that_others_can_read_signs_nothing(tmp_path: Path):
    made = create_key(str(tmp_path / "key.pem"))
    (tmp_path / "key.pem").chmod(0o644)
    (tmp_path / "r.json").write_bytes(of_job().to_bytes())
    with pytest.raises(LocalFile):
        sign_receipt(str(tmp_path / "r.json"), key_file=made.key_file)


def test_only_receipts_are_signed_and_only_with_a_certificate_of_the_same_key(tmp_path: Path):
    made = create_key(str(tmp_path / "key.pem"))
    path = tmp_path / "r.json"
    for data in (b"{}", of_job().to_bytes().replace(b"train", b"trail"), json.dumps(EVIDENCE).encode()):
        path.write_bytes(data)
        with pytest.raises(NotVerified):
            sign_receipt(str(path), key_file=made.key_file)
    path.write_bytes(of_job().to_bytes())
    (tmp_path / "key.crt").write_text(certified())
    with pytest.raises(NotVerified, match="another key"):
        sign_receipt(str(path), key_file=made.key_file, certificate_file=str(tmp_path / "key.crt"))


def test_a_receipt_that_does_not_verify_is_not_signed(tmp_path: Path):
    made = create_key(str(tmp_path / "key.pem"))
    path = tmp_path / "r.json"
    for receipt in (of_parity((1.0,)), of_job(stoker_state="running")):
        path.write_bytes(receipt.to_bytes())
        with pytest.raises(NotVerified, match="is not signed"):
            sign_receipt(str(path), key_file=made.key_file)
    path.write_bytes(of_job().to_bytes())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(b"weightz")
    with pytest.raises(NotVerified, match="its sha256 is"):
        sign_receipt(str(path), key_file=made.key_file)


def test_what_is_no_key_is_told_with_its_file(tmp_path: Path):
    (tmp_path / "odd.pub").write_text("no key")
    with pytest.raises(BadInput, match=r"odd\.pub"):
        trusted_keys(str(tmp_path), [str(tmp_path / "odd.pub")])
