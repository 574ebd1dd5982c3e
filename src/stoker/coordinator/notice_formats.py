"""Messages in the formats of chat services, of ntfy and of mail, and the picture of curves that goes with them.

Texts come from names and messages of jobs: nothing in them is read as markup, a mention or a header.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import SMTP
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from stoker.coordinator.queue.reader import QueueReader
from stoker.core.frozen import fresh, frozen
from stoker.core.text import lazy_pattern
from stoker.host.background import LOG
from stoker.jobs.job_curves import CurveRange, curve_files, joined_files, read_job_curves
from stoker.jobs.job_folder import JobFolder
from stoker.protocol.operator_messages import NotifyFormat
from stoker.views.charts import ChartLine, curve_panel, curves_of_panels
from stoker.views.notice_text import NoticeText, NoticeTone

PICTURE_NAME = "curve.png"
TAKES_PICTURE = frozenset({NotifyFormat.DISCORD, NotifyFormat.NTFY, NotifyFormat.MAIL})
"""Formats whose receivers accept an image with a message."""
_JSON = "application/json"
_COLOURS = {NoticeTone.GOOD: 0x2E8B57, NoticeTone.NEUTRAL: 0x7F7F7F, NoticeTone.BAD: 0xD55E00}
_CARD_COLOURS = {NoticeTone.GOOD: "Good", NoticeTone.NEUTRAL: "Default", NoticeTone.BAD: "Attention"}
_TAGS = {NoticeTone.GOOD: "white_check_mark", NoticeTone.NEUTRAL: "information_source", NoticeTone.BAD: "warning"}
_MARKDOWN = lazy_pattern(r"[\\`*_{}\[\]()#+\-.!|~>@<]")


@frozen
class FormattedNotice:
    """A request to a receiver."""

    body: bytes
    content_type: str = _JSON
    headers: dict[str, str] = fresh(factory=dict)


def format_of_url(url: str) -> NotifyFormat:
    """Return the format of a service that its URL identifies with certainty; else our own."""
    parts = urlsplit(url)
    host, path = (parts.hostname or "").lower(), parts.path
    if host == "hooks.slack.com":
        return NotifyFormat.SLACK
    if host in ("discord.com", "discordapp.com") and path.startswith("/api/webhooks/"):
        return NotifyFormat.DISCORD
    if host.endswith(".webhook.office.com") or (host.endswith(".logic.azure.com") and "/workflows/" in path):
        return NotifyFormat.TEAMS
    return NotifyFormat.NTFY if host == "ntfy.sh" else NotifyFormat.STOKER


def formatted(form: NotifyFormat, notice: NoticeText, *, picture: bytes = b"") -> FormattedNotice:
    """Return the request of a message in the format of a service. Raises `KeyError` for `stoker` and `mail`."""
    made = {
        NotifyFormat.SLACK: _slack,
        NotifyFormat.DISCORD: _discord,
        NotifyFormat.TEAMS: _teams,
        NotifyFormat.NTFY: _ntfy,
    }
    return made[form](notice, picture)


def mail_of(notice: NoticeText, id: str, *, picture: bytes = b"") -> str:
    """Return a message for a program that sends mail, such as sendmail; ASCII, with the image if there is one."""
    mail = EmailMessage(policy=SMTP.clone(cte_type="7bit", linesep="\n"))
    mail["Subject"] = notice.title
    mail["X-Stoker-Event-Id"] = id
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{notice.title}\n\n{notice.text}\n", cte="base64" if not notice.whole.isascii() else "7bit")
    if picture:
        mail.add_attachment(picture, maintype="image", subtype="png", filename=PICTURE_NAME)
        # Otherwise random: a repeated message is the same one.
        mail.set_boundary(_boundary(picture))
    return mail.as_bytes().decode("ascii", "replace")


def _body(message: dict[str, Any]) -> bytes:
    """Return a message as plain JSON: our own tags what begins with `$`, which a service would not understand."""
    return json.dumps(message).encode()


def _slack(notice: NoticeText, _picture: bytes) -> FormattedNotice:
    def section(text: str) -> dict[str, Any]:
        return {"type": "section", "text": {"type": "plain_text", "text": _slack_text(text), "emoji": False}}

    blocks = [section(text) for text in (notice.title, notice.text) if text]
    return FormattedNotice(body=_body({"text": _slack_text(notice.whole), "blocks": blocks}))


def _slack_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord(notice: NoticeText, picture: bytes) -> FormattedNotice:
    embed: dict[str, Any] = {
        "title": _without_markdown(notice.title)[:256],
        "description": _without_markdown(notice.text),
        "color": _COLOURS[notice.tone],
    }
    if picture:
        embed["image"] = {"url": f"attachment://{PICTURE_NAME}"}
    body = _body({"embeds": [embed], "allowed_mentions": {"parse": []}})
    if not picture:
        return FormattedNotice(body=body)
    boundary = _boundary(picture)
    parts = (
        (b'name="payload_json"', _JSON.encode(), body),
        (f'name="files[0]"; filename="{PICTURE_NAME}"'.encode(), b"image/png", picture),
    )
    lines = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\nContent-Type: %b\r\n\r\n%b\r\n"
        % (boundary.encode(), name, sort, data)
        for name, sort, data in parts
    ]
    whole = b"".join(lines) + b"--%b--\r\n" % boundary.encode()
    return FormattedNotice(body=whole, content_type=f"multipart/form-data; boundary={boundary}")


def _teams(notice: NoticeText, _picture: bytes) -> FormattedNotice:
    title: dict[str, Any] = {
        "type": "TextBlock",
        "text": _without_markdown(notice.title),
        "weight": "Bolder",
        "color": _CARD_COLOURS[notice.tone],
        "wrap": True,
    }
    text = {"type": "TextBlock", "text": _without_markdown(notice.text), "wrap": True}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [title, *([text] if notice.text else [])],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return FormattedNotice(body=_body({"type": "message", "attachments": [attachment]}))


def _ntfy(notice: NoticeText, picture: bytes) -> FormattedNotice:
    headers = {
        "Title": _header(notice.title),
        "Tags": _TAGS[notice.tone],
        "Priority": "high" if notice.tone is NoticeTone.BAD else "default",
    }
    if not picture:
        return FormattedNotice(body=notice.text.encode(), content_type="text/plain; charset=utf-8", headers=headers)
    headers |= {"Message": _header(notice.text), "Filename": PICTURE_NAME}
    return FormattedNotice(body=picture, content_type="image/png", headers=headers)


def _header(text: str) -> str:
    """Return a text as the value of a header, encoded as in mail if it is not ASCII."""
    if text.isascii():
        return text
    return f"=?UTF-8?B?{base64.b64encode(text.encode(errors='replace')).decode()}?="


def _without_markdown(text: str) -> str:
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", text)


def _boundary(data: bytes) -> str:
    return f"stoker-{hashlib.sha256(data).hexdigest()[:32]}"


# Pictures; there are none where matplotlib is not installed.

_METRICS = 2
_POINTS = 400
_LARGEST_BYTES = 1 << 20


class CurvePictures:
    """Draws the metrics of a job's attempts."""

    def __init__(self, reader: QueueReader, folder_of: Callable[[str, int], str]) -> None:
        """`folder_of` returns the mirrored folder of a job's attempt, by id and number."""
        self._reader = reader
        self._folder_of = folder_of
        self._can_draw = find_spec("matplotlib") is not None
        # The library's settings belong to the process.
        self._drawing = threading.Lock()

    def picture(self, job: str) -> bytes:
        """Return the curves of a job (by id) as PNG; empty if there are none or they can't be drawn."""
        if not self._can_draw:
            return b""
        try:
            data = self._drawn(job)
        except Exception as error:  # noqa: BLE001 - values come from programs; the message is sent without a picture
            LOG.warning("no picture of job %s: %s: %s", job[:12], type(error).__name__, error)
            return b""
        return data if len(data) <= _LARGEST_BYTES else b""

    def _drawn(self, job: str) -> bytes:
        attempts = self._reader.attempts_of(job)
        files = joined_files(
            curve_files(JobFolder(self._folder_of(job, one.number)).metrics_folder) for one in attempts
        )
        panels = []
        for curve in read_job_curves(files, CurveRange(points=_POINTS)).curves[:_METRICS]:
            points = tuple((float(step), value) for step, value, _ in curve.points)
            panel = curve_panel(curve.name, [ChartLine(label=curve.name, points=points, rank=0, is_best=True)])
            panels += [panel] if panel is not None and len(points) > 1 else []
        if not panels:
            return b""
        # Importing matplotlib is slow.
        from stoker.views.png import to_png  # noqa: PLC0415

        with self._drawing:
            return to_png(curves_of_panels(panels, []))
