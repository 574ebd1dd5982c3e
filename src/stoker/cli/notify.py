"""`stoker admin notify`: webhooks, mail commands and the desktop: who gets which events."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.screens import busy
from stoker.core.errors import Usage
from stoker.devices.this_machine import submitter_name

if TYPE_CHECKING:
    from stoker.api.desktop_notices import DesktopChoice


# `stoker admin notify`: webhooks, which events each gets, and its state.

LIST_GRAMMAR = Grammar(
    "admin notify",
    about=(
        "List webhooks and mail commands: URLs that receive events, of the fleet and of `stoker submit --notify URL`, "
        "as signed POST requests or in the format of a chat service. A signed request has X-Stoker-Event-Id (the same "
        "id if it is repeated) and X-Stoker-Signature: t=SECONDS,sha256=HEX, the HMAC-SHA256 of SECONDS, a dot and the "
        "body with the webhook's secret."
    ),
    options=(Option("--all", help="also list closed webhooks"), AT),
    examples=("stoker admin notify", "stoker admin notify --all --json"),
)


def perform_list(call: CommandContext, given: dict[str, Any]) -> int:
    """List webhooks, and what this machine's desktop shows."""
    from stoker.api.desktop_notices import read_choice
    from stoker.views.fleet_lines import HOOK_HEADER, hook_row

    out, now_s = call.out, call.parts.clock.wall_s()
    choice = read_choice(call.parts.settings.state)
    # Without a coordinator there is a desktop at most.
    client = call.lookup.client(given["at"]) if choice is None or given["at"] else call.client_if_any()
    listed = [] if client is None else client.hooks()
    hooks = [hook for hook in listed if given["all"] or hook.closed_s is None]
    for hook in hooks:
        out.object(hook.model_dump(mode="json"))
    if hooks:
        out.table([hook_row(hook, now_s) for hook in hooks], header=HOOK_HEADER)
    if choice is not None:
        out.object({"id": DESKTOP, "on": list(choice.on), "user": choice.user})
        out.line(f"{DESKTOP}: {_desktop_text(choice)}, while `stoker top` or `stoker ui` runs here")
    elif not hooks:
        out.note("no webhooks; add one: stoker admin notify add URL")
    return 0


def _desktop_text(choice: DesktopChoice) -> str:
    of = f" of jobs of {choice.user}" if choice.user else ""
    return f"{', '.join(choice.on)}{of}"


# `stoker admin notify add`: add a webhook.


DESKTOP = "desktop"
"""The name of this machine's desktop among webhooks."""
_FORMATS = ("stoker", "slack", "discord", "teams", "ntfy")
_SYNONYMS = {"finished": "completed", "done": "completed", "stuck": "symptom"}


def _words(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(dict.fromkeys(_SYNONYMS.get(word, word) for word in words))


def _format(text: str) -> str:
    if text not in _FORMATS:
        message = f"unknown format {text!r}; there are {', '.join(_FORMATS)}"
        raise ValueError(message)
    return text


ADD_GRAMMAR = Grammar(
    "admin notify add",
    about=(
        "Send events from now on to a URL, in order, each at least once: as signed JSON (the secret is printed "
        "once), or in the format of Slack, Discord, Teams or ntfy, with a picture of the curve where the service takes "
        "one and matplotlib is installed. With --mail, run a command of the coordinator's user that sends the message "
        "on its standard input, such as sendmail; only on the coordinator's own machine, never by a shell. With "
        "--desktop, show notifications on this machine's desktop while `stoker top` or `stoker ui` runs here. Failed "
        "requests are retried with a backoff of up to 1 h; after 24 h the webhook is closed. Events: submitted, "
        "started, completed (or finished), failed, cancelled, retrying, symptom (or stuck), machine, lost (machines), "
        "trust."
    ),
    positionals=(
        Positional(
            "URL",
            help="https://…; link-local addresses are not allowed; none with --mail and --desktop",
            is_required=False,
        ),
    ),
    options=(
        Option(
            "--on",
            value="WORDS",
            read=_words,
            help="events, comma-separated (default: completed,failed,cancelled,symptom; for people also lost)",
        ),
        Option(
            "--as",
            value="FORMAT",
            read=_format,
            help="stoker, slack, discord, teams or ntfy (default: by the URL, else stoker)",
            completes=_FORMATS,
        ),
        Option("--mail", value="CMD", help="command that sends a mail from its standard input: 'msmtp me@example.org'"),
        Option("--desktop", help="this machine's desktop, by notify-send or osascript; needs no coordinator"),
        Option("--user", value="NAME", help="with --desktop: only jobs of this submitter"),
        AT,
    ),
    examples=(
        "stoker admin notify add https://example.org/stoker",
        "stoker admin notify add http://10.0.0.5:8080/ --on failed,symptom",
        "stoker admin notify add https://hooks.slack.com/services/T0/B0/abc",
        "stoker admin notify add https://ntfy.example.org/lab --as ntfy --on failed,stuck,lost",
        "stoker admin notify add --mail 'msmtp me@example.org' --on finished,failed",
        "stoker admin notify add --desktop --on finished,failed,stuck,lost",
    ),
)


def perform_add(call: CommandContext, given: dict[str, Any]) -> int:
    """Add a webhook, a mail command or the desktop."""
    if given["desktop"]:
        return _add_desktop(call, given)
    if given["user"]:
        raise Usage("--user needs --desktop", hint="stoker admin notify add --desktop --user NAME")
    from stoker.protocol.operator_messages import NotifyFormat, WebhookRequest

    by = submitter_name(call.parts.settings.environment)
    command = _mail_words(given)
    form = NotifyFormat(given["as"]) if given["as"] else None
    request = WebhookRequest(url=given["url"] or "", on=given["on"] or (), format=form, mail=command, by=by)
    made = call.lookup.client(given["at"]).make_hook(request)
    call.out.object(made.model_dump(mode="json"))
    hook = made.hook
    if hook.format == NotifyFormat.STOKER:
        call.out.line(made.secret)
        call.out.note(f"webhook {hook.id}: {hook.url}; its signing secret is above and is not shown again")
    else:
        call.out.line(f"webhook {hook.id}: {hook.url} as {hook.format}, on {', '.join(hook.on)}")
    call.out.note(f"test it: stoker admin notify test {made.hook.id}")
    return 0


def _add_desktop(call: CommandContext, given: dict[str, Any]) -> int:
    """Store which events this machine's desktop shows."""
    from stoker.api.desktop_notices import DESKTOP_WORDS, USUAL_DESKTOP_WORDS, DesktopChoice, write_choice
    from stoker.host.desktop import Desktop
    from stoker.host.folders import make_state

    if given["url"] or given["mail"] or given["as"]:
        raise Usage("--desktop excludes URL, --mail and --as", hint="stoker admin notify add --desktop")
    words = given["on"] or USUAL_DESKTOP_WORDS
    if unknown := [word for word in words if word not in DESKTOP_WORDS]:
        raise Usage(f"a desktop does not show {', '.join(unknown)}", hint="finished, failed, cancelled, stuck, lost")
    settings = call.parts.settings
    choice = DesktopChoice(on=tuple(words), user=given["user"] or "")
    make_state(settings.state)
    write_choice(settings.state, choice)
    is_present = Desktop(settings.environment).is_present
    call.out.object({"id": DESKTOP, "on": list(choice.on), "user": choice.user, "is_present": is_present})
    call.out.line(f"{DESKTOP}: {_desktop_text(choice)}, while `stoker top` or `stoker ui` runs here")
    if not is_present:
        call.out.note("note: this session has no desktop, or no notify-send (package libnotify-bin)")
    call.out.note(f"test it: stoker admin notify test {DESKTOP}")
    return 0


def _mail_words(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the words of a mail command; none if a URL is given instead."""
    if bool(given["url"]) == bool(given["mail"]):
        raise Usage("name one of URL, --mail CMD and --desktop", hint="stoker help admin notify add")
    if given["mail"] and given["as"]:
        raise Usage("--mail has its own format", hint="leave out --as")
    try:
        words = tuple(shlex.split(given["mail"] or ""))
    except ValueError as error:
        raise Usage(f"--mail: {error}", hint="--mail 'msmtp me@example.org'") from None
    if given["mail"] and not words:
        raise Usage("--mail: empty value", hint="--mail 'msmtp me@example.org'")
    return words


# `stoker admin notify rm`: close a webhook.

RM_GRAMMAR = Grammar(
    "admin notify rm",
    about="Close a webhook: no more events are sent to it. Or show no more notifications on this desktop.",
    positionals=(Positional("ID", help="webhook number, from `stoker admin notify`; or `desktop`", key="id"),),
    options=(AT,),
    examples=("stoker admin notify rm 3", "stoker admin notify rm desktop"),
)


def perform_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Close a webhook."""
    if given["id"] == DESKTOP:
        from stoker.api.desktop_notices import remove_choice

        was_on = remove_choice(call.parts.settings.state)
        call.out.object({"id": DESKTOP, "changed": was_on})
        call.out.line("desktop: off" if was_on else "desktop: was off already")
        return 0
    number = hook_number(given["id"])
    done = call.lookup.client(given["at"]).close_hook(number)
    call.out.object({"hook": number, **done.model_dump(mode="json")})
    call.out.line(f"webhook {number} closed" if done.changed else f"webhook {number} was already closed")
    return 0


def hook_number(text: str) -> int:
    """Parse a webhook's number."""
    try:
        return whole(1)(text)
    except ValueError:
        raise Usage(f"{text!r} is not a webhook number", hint="list them: stoker admin notify") from None


# `stoker admin notify test`: send a test event and report the result.

TEST_GRAMMAR = Grammar(
    "admin notify test",
    about="Send one event `test`, without retries, and report the result. Exit code 1 if it failed.",
    positionals=(Positional("ID", help="webhook number, from `stoker admin notify`; or `desktop`", key="id"),),
    options=(AT,),
    examples=("stoker admin notify test 3", "stoker admin notify test desktop"),
)


def perform_test(call: CommandContext, given: dict[str, Any]) -> int:
    """Send a test event."""
    if given["id"] == DESKTOP:
        return _try_desktop(call)
    number = hook_number(given["id"])
    with busy(call, f"sending to webhook {number}"):
        tried = call.lookup.client(given["at"]).try_hook(number)
    call.out.object({"hook": number, **tried.model_dump(mode="json")})
    if tried.is_delivered:
        call.out.line(f"webhook {number}: delivered")
        return 0
    call.out.line(f"webhook {number}: not delivered: {tried.message}")
    return 1


def _try_desktop(call: CommandContext) -> int:
    from stoker.host.desktop import Desktop

    error = Desktop(call.parts.settings.environment).notify("Stoker", "test of the notifications on this desktop")
    call.out.object({"id": DESKTOP, "is_delivered": not error, "message": error})
    call.out.line(f"desktop: not shown: {error}" if error else "desktop: shown")
    return 1 if error else 0
