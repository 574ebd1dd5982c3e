"""`stoker admin` (tokens, reload) and the list of `stoker adapters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration
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
