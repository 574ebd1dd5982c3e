"""Notifications in the formats of other services, received by a real HTTP server, and by a real mail command."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from email import message_from_string
from email.header import decode_header, make_header
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.notice_formats import CurvePictures, format_of_url, formatted, mail_of
from stoker.coordinator.notify import MailCommands, Notifier, is_wanted
from stoker.coordinator.queue.commands import AddHook
from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.host.command_runner import SubprocessRunner
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.operator_messages import PERSON_WORDS, NotifyFormat
from stoker.views.notice_text import NoticeTone, notice_text
from tests.contract.queue_driving import Driven, order
from tests.servers.receiver import Message, receiver

PICTURE = b"\x89PNG\r\n\x1a\n not really"
NASTY = "<!channel> @everyone *b* [x](http://a) \r\nBcc: all 学习"
READS_STDIN = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Driven]:
    shutil.copyfile(sqlite_template, tmp_path / "queue.db")
    driven = Driven(f"sqlite:///{tmp_path / 'queue.db'}")
    yield driven
    driven.close()


@pytest.fixture
def mails(tmp_path: Path) -> MailCommands:
    return MailCommands(str(tmp_path / "mail-commands.json"), SubprocessRunner({"PATH": "/usr/bin:/bin"}))


@pytest.fixture
def notifier(fleet: Driven, mails: MailCommands) -> Iterator[Notifier]:
    with Notifier(
        fleet.queue,
        HttpSettings(),
        clock=fleet.clock,
        chance=lambda: 1.0,
        round_s=3600.0,
        mails=mails,
        picture=lambda _job: PICTURE,
    ) as found:
        yield found


def one_failure(fleet: Driven, notifier: Notifier) -> None:
    fleet.submit(order("resnet"))
    fleet.join("m1")
    (lease,) = fleet.claim(most=1)
    fleet.fail(lease)
    while notifier.deliver_all():
        pass


def delivered(fleet: Driven, notifier: Notifier, form: str) -> Message:
    """Return what a service received of a job that failed on a machine."""
    with receiver() as service:
        fleet.ask(AddHook(url=service.url, secret="s", kinds=("failed",), is_inner=True, format=form))
        one_failure(fleet, notifier)
    (message,) = service.messages
    assert "X-Stoker-Signature" not in message.headers
    assert message.headers["X-Stoker-Event-Id"].startswith("1-")
    return message


def test_slack_gets_text_and_blocks(fleet: Driven, notifier: Notifier) -> None:
    body = json.loads(delivered(fleet, notifier, "slack").body)
    assert body["text"].startswith("resnet failed: on m1")
    assert {block["text"]["type"] for block in body["blocks"]} == {"plain_text"}


def test_teams_gets_an_adaptive_card(fleet: Driven, notifier: Notifier) -> None:
    (attachment,) = json.loads(delivered(fleet, notifier, "teams").body)["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert attachment["content"]["$schema"] == "http://adaptivecards.io/schemas/adaptive-card.json"
    assert attachment["content"]["body"][0]["text"] == "resnet failed"


def test_a_completed_job_is_told_with_its_metrics(fleet: Driven, notifier: Notifier) -> None:
    with receiver() as service:
        fleet.ask(AddHook(url=service.url, secret="s", kinds=("completed",), is_inner=True, format="slack"))
        fleet.submit(order("resnet"))
        fleet.join("m1")
        (lease,) = fleet.claim(most=1)
        fleet.finish(lease, val_loss=0.25)
        while notifier.deliver_all():
            pass
    (message,) = service.messages
    assert json.loads(message.body)["text"] == "resnet completed: on m1; val_loss 0.25"


def test_discord_gets_an_embed_with_the_curve_and_mentions_no_one(fleet: Driven, notifier: Notifier) -> None:
    message = delivered(fleet, notifier, "discord")
    assert message.headers["Content-Type"].startswith("multipart/form-data; boundary=")
    payload = json.loads(message.body.split(b"\r\n\r\n")[1].split(b"\r\n--")[0])
    assert payload["allowed_mentions"] == {"parse": []}
    assert payload["embeds"][0]["image"] == {"url": "attachment://curve.png"}
    assert PICTURE in message.body


def test_ntfy_gets_the_curve_with_title_and_text_in_headers(fleet: Driven, notifier: Notifier) -> None:
    message = delivered(fleet, notifier, "ntfy")
    assert message.body == PICTURE
    assert (message.headers["Title"], message.headers["Priority"]) == ("resnet failed", "high")
    assert (message.headers["Filename"], message.headers["Message"][:5]) == ("curve.png", "on m1")


def test_a_mail_command_reads_the_message_and_is_no_shell(
    fleet: Driven, notifier: Notifier, mails: MailCommands, tmp_path: Path
) -> None:
    written = tmp_path / "$(touch hacked); mail.txt"
    address = mails.add([sys.executable, "-c", READS_STDIN, str(written)])
    assert "mail.txt" not in address, "the database holds only the name of a command"
    assert (tmp_path / "mail-commands.json").stat().st_mode & 0o077 == 0
    fleet.ask(AddHook(url=address, secret="s", kinds=("failed",), is_inner=True, format="mail"))
    one_failure(fleet, notifier)
    mail = message_from_string(written.read_text())
    assert mail["Subject"] == "resnet failed"
    parts: Any = mail.get_payload()
    text, picture = parts
    assert "on m1" in text.get_payload()
    assert picture.get_payload(decode=True) == PICTURE
    assert not (tmp_path / "hacked").exists()


def test_a_mail_command_that_fails_is_reported_with_its_output(mails: MailCommands) -> None:
    address = mails.add([sys.executable, "-c", "import sys; sys.exit('no such user')"])
    assert mails.send(address, "x") == "exit code 1: no such user"
    assert "add it again" in mails.send("mail:other/abc", "x")


@pytest.mark.parametrize("form", [NotifyFormat.SLACK, NotifyFormat.DISCORD, NotifyFormat.TEAMS, NotifyFormat.NTFY])
@pytest.mark.parametrize("picture", [b"", PICTURE])
def test_names_of_jobs_are_text_in_every_format(form: NotifyFormat, picture: bytes) -> None:
    notice = notice_text({"kind": "job_failed", "to": "failed", "name": NASTY, "message": NASTY})
    made = formatted(form, notice, picture=picture)
    assert all(value.isascii() and value.isprintable() for value in made.headers.values())
    assert b"<!channel>" not in made.body or form is NotifyFormat.NTFY
    if form in (NotifyFormat.DISCORD, NotifyFormat.TEAMS):
        assert b"\\\\[x\\\\]" in made.body
        assert b"\\\\@everyone" in made.body


def test_a_mail_has_no_header_of_a_jobs_name() -> None:
    mail = message_from_string(mail_of(notice_text({"kind": "job_failed", "to": "failed", "name": NASTY}), "1-2"))
    assert mail["Bcc"] is None
    assert "学习 failed" in str(make_header(decode_header(mail["Subject"].replace("\n", ""))))


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://lab.webhook.office.com/webhookb2/x", "teams"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x", "teams"),
        ("https://ntfy.sh/lab", "ntfy"),
        ("https://ntfy.example.org/lab", "stoker"),
        ("https://hooks.slack.com.example.org/x", "stoker"),
        ("https://example.org/?u=https://hooks.slack.com/", "stoker"),
    ],
)
def test_a_format_is_detected_only_where_the_url_is_sure(url: str, form: str) -> None:
    assert format_of_url(url) == form


def test_people_hear_of_lost_machines_but_not_of_joined_ones() -> None:
    lost: dict[str, Any] = {"kind": "machine_lost", "machine": "lab1"}
    assert is_wanted(lost, PERSON_WORDS)
    assert not is_wanted({"kind": "machine_joined", "machine": "lab1"}, PERSON_WORDS)
    assert notice_text(lost).whole == "machine lab1 is lost"
    assert notice_text(lost).tone is NoticeTone.BAD
    known = {**lost, "ts": 130.0, "last_seen_s": 40.0}
    assert notice_text(known).text == "no heartbeat for 1m30s; its jobs return to the queue"


def test_a_picture_is_drawn_of_what_can_be_drawn_and_never_fails(fleet: Driven, tmp_path: Path):
    (job,) = fleet.submit(order("resnet")).jobs
    fleet.join("m1")
    fleet.claim()
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    pictures = CurvePictures(fleet.reader, lambda _job, _attempt: str(tmp_path))
    assert pictures.picture(job.id) == b""
    odd = (-(2**63), 0, 5, 2**63 - 1)
    values = (1e308, -1e308, float("nan"), float("inf"))
    rows = [MetricRow(step, at, "loss", value) for at, (step, value) in enumerate(zip(odd, values, strict=True))]
    (metrics / "a.skm").write_bytes(encode_frame(rows))
    assert pictures.picture(job.id)[:4] in (b"", PICTURE[:4])
    (metrics / "a.skm").write_bytes(encode_frame([MetricRow(step, 0.0, "loss", 1.0 / step) for step in range(1, 9)]))
    assert pictures.picture(job.id)[:4] == PICTURE[:4]
    (metrics / "a.skm").write_bytes(b"not metrics")
    assert pictures.picture(job.id) == b""
