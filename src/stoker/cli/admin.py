"""`stoker admin tokens make`: a token for a person or a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext, list_verbs
from stoker.cli.grammar import AT, Grammar, Option, Positional, duration, whole
from stoker.core.errors import Usage
from stoker.core.leases import Role
from stoker.jobs.submitter import who_asks

if TYPE_CHECKING:
    from stoker.protocol.enrolment_messages import TokenResponse


PEOPLE = tuple(str(role) for role in Role if role is not Role.WORKER)


def role_of_people(text: str) -> Role:
    """Read one of people's roles."""
    if text not in PEOPLE:
        message = f"{text!r} is none of {', '.join(PEOPLE)}"
        raise ValueError(message)
    return Role(text)


# `stoker admin tokens`: who may ask the coordinator for what, and until when.

TOKENS_GRAMMAR = Grammar(
    "admin tokens",
    about=(
        "List the tokens of a fleet: whose, for which role, when they were last used, when they end. Their texts are "
        "not kept: a token is shown when it is made, and never again."
    ),
    options=(Option("--all", help="those that were revoked or have ended, too"), AT),
    examples=("stoker admin tokens", "stoker admin tokens --all --json", "stoker admin tokens revoke 573f7a79"),
)


def perform_tokens(call: CommandContext, given: dict[str, Any]) -> int:
    """List them."""
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
        out.note("no tokens; `stoker admin tokens make NAME --role submit` makes one")
    return 0


def _life(text: str) -> float | str:
    """Read how long a token lasts."""
    return text if text == "never" else duration(text)


TOKENS_MAKE_GRAMMAR = Grammar(
    "admin tokens make",
    about=(
        "Make a token and print it, once: only its digest is kept. Whoever has it may do what its role says (read, "
        "submit, operate, admin; each includes those before it), for a year unless --for says otherwise. For people, "
        "`stoker machines invite --operator` is easier: their computer gets the token, and trusts this coordinator."
    ),
    positionals=(Positional("NAME", help="whose it is: stands beside all that is done with it"),),
    options=(
        Option("--role", value="ROLE", read=role_of_people, help="read, submit, operate or admin"),
        Option("--for", value="TIME", read=_life, help="how long it lasts, such as 30d, or never (default: 365d)"),
        AT,
    ),
    examples=("stoker admin tokens make ci --role submit --for 30d", "stoker admin tokens make wall --role read"),
)


def perform_tokens_make(call: CommandContext, given: dict[str, Any]) -> int:
    """Make it."""
    from stoker.protocol.enrolment_messages import TokenRequest

    if given["role"] is None:
        raise Usage("a token has a role", hint="--role read, submit, operate or admin")
    made = call.lookup.client(given["at"]).make_token(
        TokenRequest(name=given["name"], role=given["role"], life_s=given["for"])
    )
    show_made(call, made)
    return 0


def show_made(call: CommandContext, made: TokenResponse) -> None:
    """Print a token alone on standard output, so that it can be stored, and the rest beside it."""
    from stoker.views.fleet_lines import day

    call.out.object(made.model_dump(mode="json"))
    call.out.line(made.token)
    view = made.view
    call.out.note(f"token {view.id} of {view.name}, who may {view.role}; until {day(view.expires_s)}")
    call.out.note("it is not shown again; STOKER_OPERATOR_TOKEN carries it")


# `stoker admin tokens revoke`: end a token at once.

TOKENS_REVOKE_GRAMMAR = Grammar(
    "admin tokens revoke",
    about="End a token: the next request that shows it is refused. What was done with it stays done.",
    positionals=(Positional("ID", help="as `stoker admin tokens` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens revoke 573f7a79",),
)


def perform_tokens_revoke(call: CommandContext, given: dict[str, Any]) -> int:
    """Revoke it."""
    by = who_asks(call.parts.settings.environment)
    done = call.lookup.client(given["at"]).revoke_token(given["id"], by=by)
    call.out.object({"token": given["id"], **done.model_dump(mode="json")})
    call.out.line(f"token {given['id']} is revoked" if done.changed else f"token {given['id']} had ended already")
    for note in done.notes:
        call.out.note(f"note: {note}")
    return 0


# `stoker admin tokens rotate`: a new text in a token's place.

TOKENS_ROTATE_GRAMMAR = Grammar(
    "admin tokens rotate",
    about="Make a new token of the same name, role and length of life, print it once, and end the old one at once.",
    positionals=(Positional("ID", help="as `stoker admin tokens` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin tokens rotate 573f7a79",),
)


def perform_tokens_rotate(call: CommandContext, given: dict[str, Any]) -> int:
    """Rotate it."""
    by = who_asks(call.parts.settings.environment)
    show_made(call, call.lookup.client(given["at"]).rotate_token(given["id"], by=by))
    return 0


# `stoker admin notify`: webhooks, which events each gets, and its state.

NOTIFY_GRAMMAR = Grammar(
    "admin notify",
    about=(
        "List who is told of events by signed POST requests: the fleet's hooks and those of `stoker submit --notify "
        "URL`. Each message carries X-Stoker-Event-Id, the same if it comes twice, and X-Stoker-Signature: "
        "t=SECONDS,sha256=HEX, the HMAC-SHA256 of SECONDS, a dot and the body under the hook's secret."
    ),
    options=(Option("--all", help="those that were closed, too"), AT),
    examples=("stoker admin notify", "stoker admin notify --all --json"),
)


def perform_notify(call: CommandContext, given: dict[str, Any]) -> int:
    """List them."""
    from stoker.views.fleet_lines import HOOK_HEADER, hook_row

    out, now_s = call.out, call.parts.clock.wall_s()
    hooks = [hook for hook in call.lookup.client(given["at"]).hooks() if given["all"] or hook.closed_s is None]
    for hook in hooks:
        out.object(hook.model_dump(mode="json"))
    out.table([hook_row(hook, now_s) for hook in hooks], header=HOOK_HEADER)
    if not hooks:
        out.note("nobody is told; `stoker admin notify add URL` tells somebody")
    return 0


# `stoker admin notify add`: tell an address of events.


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


NOTIFY_ADD_GRAMMAR = Grammar(
    "admin notify add",
    about=(
        "Tell an address of what happens from now on, by POST requests of JSON, at least once each, in order. What "
        "signs them is printed, once. An address that can't be told anything is tried again after pauses of up to an "
        "hour, and closed after a day. Words: submitted, started, completed, failed, cancelled, retrying, symptom, "
        "machine, trust; completed, failed, cancelled and symptom unless told."
    ),
    positionals=(Positional("URL", help="https://…; link-local addresses are never told"),),
    options=(Option("--on", value="WORDS", read=_words, help="of what, with commas: failed,symptom"), AT),
    examples=(
        "stoker admin notify add https://example.org/stoker",
        "stoker admin notify add http://10.0.0.5:8080/ --on failed,symptom",
    ),
)


def perform_notify_add(call: CommandContext, given: dict[str, Any]) -> int:
    """Make it."""
    from stoker.protocol.operator_messages import WebhookRequest

    by = who_asks(call.parts.settings.environment)
    made = call.lookup.client(given["at"]).make_hook(WebhookRequest(url=given["url"], on=given["on"] or (), by=by))
    call.out.object(made.model_dump(mode="json"))
    call.out.line(made.secret)
    call.out.note(f"hook {made.hook.id}: {made.hook.url}; what signs its messages is above, and is not shown again")
    call.out.note(f"try it: stoker admin notify test {made.hook.id}")
    return 0


# `stoker admin notify rm`: tell an address nothing more.

NOTIFY_RM_GRAMMAR = Grammar(
    "admin notify rm",
    about="Close a hook: nothing more is sent there. What was sent stays sent.",
    positionals=(Positional("ID", help="as `stoker admin notify` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin notify rm 3",),
)


def perform_notify_rm(call: CommandContext, given: dict[str, Any]) -> int:
    """Close it."""
    number = hook_number(given["id"])
    done = call.lookup.client(given["at"]).close_hook(number)
    call.out.object({"hook": number, **done.model_dump(mode="json")})
    call.out.line(f"hook {number} is told nothing more" if done.changed else f"hook {number} was closed already")
    return 0


def hook_number(text: str) -> int:
    """Read a hook's number."""
    try:
        return whole(1)(text)
    except ValueError:
        raise Usage(f"{text!r} is no hook's number", hint="`stoker admin notify` lists them") from None


# `stoker admin notify test`: send an address a message that says nothing, and say what became of it.

NOTIFY_TRYING_GRAMMAR = Grammar(
    "admin notify test",
    about="Send one signed message of the event `test`, once, and say whether it was taken. Exit code 1 if not.",
    positionals=(Positional("ID", help="as `stoker admin notify` lists it", key="id"),),
    options=(AT,),
    examples=("stoker admin notify test 3",),
)


def perform_notify_trying(call: CommandContext, given: dict[str, Any]) -> int:
    """Try it."""
    number = hook_number(given["id"])
    tried = call.lookup.client(given["at"]).try_hook(number)
    call.out.object({"hook": number, **tried.model_dump(mode="json")})
    if tried.is_delivered:
        call.out.line(f"hook {number} took it")
        return 0
    call.out.line(f"hook {number} did not take it: {tried.message}")
    return 1


# `stoker admin reload`: have the coordinator read its cluster file and its manifest again.

RELOAD_GRAMMAR = Grammar(
    "admin reload",
    about=(
        "Have the coordinator read its cluster file and its manifest again, as HUP does, and say what changed. Files "
        "with faults change nothing; reading them twice changes nothing more."
    ),
    options=(Option("--dry-run", help="say what would change, and change nothing"), AT),
    examples=("stoker admin reload --dry-run", "stoker admin reload"),
)


def perform_reload(call: CommandContext, given: dict[str, Any]) -> int:
    """Have them read."""
    from stoker.protocol.view_messages import NOTHING_GIVEN

    done = call.lookup.client(given["at"]).reload(dry_run=given["dry_run"])
    call.out.object({**done.model_dump(mode="json"), "dry_run": given["dry_run"]})
    # Every change is one of the notes, by its name; what is changed itself is for programs.
    for note in done.notes:
        call.out.line(f"would change: {note}" if given["dry_run"] else note)
    if not done.notes:
        call.out.line(NOTHING_GIVEN if done.data.get("files") == 0 else "nothing changed")
    return 0


# `stoker admin`: what operators need, one line each.

ADMIN_GRAMMAR = Grammar(
    "admin",
    about="List what operators need now and then.",
    examples=("stoker admin", "stoker admin simulate"),
)


def perform_admin(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "admin")
    return 0


# `stoker adapters`: what there is to do with many adapters.

ADAPTERS_GRAMMAR = Grammar(
    "adapters",
    about=(
        "Train many adapters over one base in one process, which loads the base once, each with its own data and "
        "settings. A sweep of language/lora does so by itself; a file names adapters one by one."
    ),
    examples=("stoker adapters run adapters.toml", "stoker adapters board adapters.toml"),
)


def perform_adapters(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the verbs."""
    list_verbs(call, "adapters")
    return 0
