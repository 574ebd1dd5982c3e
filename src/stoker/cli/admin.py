"""`stoker admin` (tokens, webhooks, reload) and the list of `stoker adapters`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration, whole
from stoker.core.errors import Usage
from stoker.core.leases import Role
from stoker.devices.this_machine import submitter_name

if TYPE_CHECKING:
    from stoker.protocol.enrolment_messages import TokenResponse


PEOPLE = tuple(str(role) for role in Role if role is not Role.WORKER)


def role_of_people(text: str) -> Role:
    """Parse a role of a user."""
    if text not in PEOPLE:
        message = f"unknown role {text!r}; use {', '.join(PEOPLE)}"
        raise ValueError(message)
    return Role(text)


# `stoker admin tokens`: list API tokens.

TOKENS_GRAMMAR = Grammar(
    "admin tokens",
    about=(
        "List the API tokens of the fleet: name, role, last use, expiry. Secrets are not stored: a token is printed "
        "once, when it is created."
    ),
    options=(Option("--all", help="also list revoked and expired tokens"), AT),
    examples=("stoker admin tokens", "stoker admin tokens --all --json", "stoker admin tokens revoke 573f7a79"),
)


def perform_tokens(call: CommandContext, given: dict[str, Any]) -> int:
    """List tokens."""
    from stoker.views.fleet_lines import TOKEN_HEADER, token_row

    out, now_s = call.out, call.parts.clock.wall_s()
    tokens = [
        token
        for token in call.lookup.client(given["at"]).tokens()
        if given["all"] or (token.revoked_s is None and (token.expires_s is None or token.expires_s > now_s))
    ]
    for token in tokens:
        out.object(token.model_dump(mode="json"))
    out.table([token_row(token, now_s) for token in tokens], header=TOKEN_HEADER)
    if not tokens:
        out.note("no tokens; create one: stoker admin tokens make NAME --role submit")
    return 0


def _life(text: str) -> float | str:
    """Parse the lifetime of a token."""
    return text if text == "never" else duration(text)


TOKENS_MAKE_GRAMMAR = Grammar(
    "admin tokens make",
    about=(
        "Create an API token and print it once; only its digest is stored. The role decides what its holder may do: "
        "read; submit and launch, which include read; operate, which includes these; admin, which includes all. For "
        "users, `stoker machines invite --operator` is easier: their computer gets the token and the coordinator's "
        "certificate."
    ),
    positionals=(Positional("NAME", help="name of the holder; recorded with each action"),),
    options=(
        Option(
            "--role", value="ROLE", read=role_of_people, help="read, submit, launch, operate or admin", completes=PEOPLE
        ),
        Option("--for", value="TIME", read=_life, help="lifetime, such as 30d, or never (default: 365d)"),
        AT,
    ),
    examples=(
        "stoker admin tokens make ci --role submit --for 30d",
        "stoker admin tokens make wall --role read",
        "stoker admin tokens make login-node --role launch",
    ),
)


def perform_tokens_make(call: CommandContext, given: dict[str, Any]) -> int:
    """Create a token."""
    from stoker.protocol.enrolment_messages import TokenRequest

    if given["role"] is None:
        raise Usage("--role is missing", hint="--role read, submit, launch, operate or admin")
    made = call.lookup.client(given["at"]).make_token(
        TokenRequest(name=given["name"], role=given["role"], life_s=given["for"])
    )
    show_made(call, made)
    return 0


def show_made(call: CommandContext, made: TokenResponse) -> None:
    """Print a token to standard output and its description to standard error."""
    from stoker.views.fleet_lines import day

    call.out.object(made.model_dump(mode="json"))
    call.out.line(made.token)
    view = made.view
    call.out.note(f"token {view.id}: name {view.name}, role {view.role}, expires {day(view.expires_s)}")
    call.out.note("store it now: it is not shown again; use it with STOKER_OPERATOR_TOKEN")


# `stoker admin tokens revoke`: revoke a token immediately.

TOKENS_REVOKE_GRAMMAR = Grammar(
    "admin tokens revoke",
    about="Revoke a token: the next request with it is rejected. Earlier actions are not undone.",
    positionals=(Positional("ID", help="token id, from `stoker admin tokens`", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens revoke 573f7a79",),
)


def perform_tokens_revoke(call: CommandContext, given: dict[str, Any]) -> int:
    """Revoke a token."""
    by = submitter_name(call.parts.settings.environment)
    done = call.lookup.client(given["at"]).revoke_token(given["id"], by=by)
    call.out.object({"token": given["id"], **done.model_dump(mode="json")})
    call.out.line(f"token {given['id']} {'revoked' if done.changed else 'was already revoked or expired'}")
    for note in done.notes:
        call.out.note(f"note: {note}")
    return 0


# `stoker admin tokens rotate`: replace a token's secret.

TOKENS_ROTATE_GRAMMAR = Grammar(
    "admin tokens rotate",
    about="Create a token with the same name, role and lifetime, print it once, and revoke the old one immediately.",
    positionals=(Positional("ID", help="token id, from `stoker admin tokens`", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens rotate 573f7a79",),
)


def perform_tokens_rotate(call: CommandContext, given: dict[str, Any]) -> int:
    """Rotate a token."""
    by = submitter_name(call.parts.settings.environment)
    show_made(call, call.lookup.client(given["at"]).rotate_token(given["id"], by=by))
    return 0


# `stoker admin notify`: webhooks, which events each gets, and its state.

NOTIFY_GRAMMAR = Grammar(
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


def perform_notify(call: CommandContext, given: dict[str, Any]) -> int:
    """List webhooks."""
    from stoker.views.fleet_lines import HOOK_HEADER, hook_row

    out, now_s = call.out, call.parts.clock.wall_s()
    hooks = [hook for hook in call.lookup.client(given["at"]).hooks() if given["all"] or hook.closed_s is None]
    for hook in hooks:
        out.object(hook.model_dump(mode="json"))
    out.table([hook_row(hook, now_s) for hook in hooks], header=HOOK_HEADER)
    if not hooks:
        out.note("no webhooks; add one: stoker admin notify add URL")
    return 0


# `stoker admin notify add`: add a webhook.


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


NOTIFY_ADD_GRAMMAR = Grammar(
    "admin notify add",
    about=(
        "Send events from now on to a URL, in order, each at least once: as signed JSON (the secret is printed "
        "once), or in the format of Slack, Discord, Teams or ntfy, with a picture of the curve where the service takes "
        "one and matplotlib is installed. With --mail, run a command of the coordinator's user that sends the message "
        "on its standard input, such as sendmail; only on the coordinator's own machine, never by a shell. Failed "
        "requests are retried with a backoff of up to 1 h; after 24 h the webhook is closed. Events: submitted, "
        "started, completed (or finished), failed, cancelled, retrying, symptom (or stuck), machine, lost (machines), "
        "trust."
    ),
    positionals=(
        Positional("URL", help="https://…; link-local addresses are not allowed; none with --mail", is_required=False),
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
        AT,
    ),
    examples=(
        "stoker admin notify add https://example.org/stoker",
        "stoker admin notify add http://10.0.0.5:8080/ --on failed,symptom",
        "stoker admin notify add https://hooks.slack.com/services/T0/B0/abc",
        "stoker admin notify add https://ntfy.example.org/lab --as ntfy --on failed,stuck,lost",
        "stoker admin notify add --mail 'msmtp me@example.org' --on finished,failed",
    ),
)


def perform_notify_add(call: CommandContext, given: dict[str, Any]) -> int:
    """Add a webhook."""
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


def _mail_words(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the words of a mail command; none if a URL is given instead."""
    if bool(given["url"]) == bool(given["mail"]):
        raise Usage("name either a URL or --mail CMD", hint="stoker help admin notify add")
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

NOTIFY_RM_GRAMMAR = Grammar(
    "admin notify rm",
    about="Close a webhook: no more events are sent to it.",
    positionals=(Positional("ID", help="webhook number, from `stoker admin notify`", key="id"),),
    options=(AT,),
    examples=("stoker admin notify rm 3",),
)


def perform_notify_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Close a webhook."""
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

NOTIFY_TRYING_GRAMMAR = Grammar(
    "admin notify test",
    about="Send one signed event `test`, without retries, and report the result. Exit code 1 if it failed.",
    positionals=(Positional("ID", help="webhook number, from `stoker admin notify`", key="id"),),
    options=(AT,),
    examples=("stoker admin notify test 3",),
)


def perform_notify_trying(call: CommandContext, given: dict[str, Any]) -> int:
    """Send a test event."""
    number = hook_number(given["id"])
    tried = call.lookup.client(given["at"]).try_hook(number)
    call.out.object({"hook": number, **tried.model_dump(mode="json")})
    if tried.is_delivered:
        call.out.line(f"webhook {number}: delivered")
        return 0
    call.out.line(f"webhook {number}: not delivered: {tried.message}")
    return 1


# `stoker admin reload`: make the coordinator read its cluster file and its manifest again.

RELOAD_GRAMMAR = Grammar(
    "admin reload",
    about=(
        "Make the coordinator read its cluster file and its manifest again, as SIGHUP does, and list the changes. If a "
        "file has errors, nothing changes. Idempotent."
    ),
    options=(Option("--dry-run", help="list the changes without applying them"), AT),
    examples=("stoker admin reload --dry-run", "stoker admin reload"),
)


def perform_reload(call: CommandContext, given: dict[str, Any]) -> int:
    """Reload the coordinator's files."""
    from stoker.protocol.view_messages import NOTHING_GIVEN

    done = call.lookup.client(given["at"]).reload(dry_run=given["dry_run"])
    call.out.object({**done.model_dump(mode="json"), "dry_run": given["dry_run"]})
    # Each note names one change; the changed data is for programs.
    for note in done.notes:
        call.out.line(f"would change: {note}" if given["dry_run"] else note)
    if not done.notes:
        call.out.line(NOTHING_GIVEN if done.data.get("files") == 0 else "nothing changed")
    return 0


# `stoker admin`: list its verbs.

ADMIN_GRAMMAR = Grammar(
    "admin",
    about="List the commands for operators.",
    examples=("stoker admin", "stoker admin simulate"),
)


def perform_admin(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin")
    return 0


# `stoker adapters`: list its verbs.

ADAPTERS_GRAMMAR = Grammar(
    "adapters",
    about=(
        "Train many adapters in one process that loads the base model once, each adapter with its own data and "
        "settings. A sweep of language/lora does the same; an adapters file lists adapters one by one."
    ),
    examples=("stoker adapters run adapters.toml", "stoker adapters board adapters.toml"),
)


def perform_adapters(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "adapters")
    return 0
