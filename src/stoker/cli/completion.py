"""`stoker completion`: scripts that let bash, zsh and fish complete `stoker` commands.

The scripts hold no words: they call `stoker __complete` (`completion_words`) and quote what it answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from stoker.cli.commands import COMMANDS
from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.core.errors import Usage
from stoker.core.text import did_you_mean
from stoker.host.durable import read_regular, translated, write_file

_MADE = "made by `stoker completion "
"""In the first lines of every script. A file without it is not overwritten or removed."""

_BASH = r"""# bash completion of stoker, made by `stoker completion bash`

_stoker() {
    local line kind="" program=$1 i
    COMPREPLY=()
    case $program in
        "~/"*/stoker) program=$HOME/${program#"~/"} ;;
        */stoker) ;;
        *) program=stoker ;;
    esac
    {
        IFS= read -r kind
        while IFS= read -r line; do COMPREPLY+=("$line"); done
    } < <(command "$program" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null)
    case $kind in
        files)
            if ((${#COMPREPLY[@]} == 0)); then
                compopt -o default +o nospace 2>/dev/null
            elif [[ $2 != *[\'\"\\~]* ]]; then
                while IFS= read -r line; do
                    if [[ -d $line ]]; then i=/; else i=" "; fi
                    printf -v line %q "$line"
                    COMPREPLY+=("$line$i")
                done < <(compgen -f -- "$2")
            fi ;;
        folders) compopt -o dirnames +o nospace 2>/dev/null ;;
        "program "*)
            compopt -o default +o nospace 2>/dev/null
            for ((i = 1; i < COMP_CWORD; i++)); do [[ ${COMP_WORDS[i]} == -- ]] && break; done
            if declare -F _comp_command_offset >/dev/null; then
                _comp_command_offset $((i + 1))
            elif declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((COMP_CWORD == i + 1)); then
                while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -c -- "$2")
            fi ;;
    esac
    return 0
}

complete -o nospace -F _stoker stoker
"""

_ZSH = r"""#compdef stoker
# zsh completion of stoker, made by `stoker completion zsh`

_stoker() {
    local program=${(Q)words[1]} kind line
    local -a typed lines more more_shown whole whole_shown
    [[ ${program:t} == stoker ]] || program=stoker
    program=${program/#\~\//$HOME/}
    typed=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    lines=("${(@f)$(command $program __complete zsh "${(@)typed}" 2>/dev/null </dev/null)}")
    kind=$lines[1]
    for line in "${(@)lines[2,-1]}"; do
        if [[ ${line%%$'\t'*} == *= ]]; then
            more+=("${line%%$'\t'*}")
            more_shown+=("${line/$'\t'/  -- }")
        elif [[ -n $line ]]; then
            whole+=("${line%%$'\t'*}")
            whole_shown+=("${${line/$'\t'/  -- }%  -- }")
        fi
    done
    (( $#whole )) && compadd -l -d whole_shown -a -- whole
    (( $#more )) && compadd -l -S '' -d more_shown -a -- more
    case $kind in
        files) compset -P '*='; _files ;;
        folders) compset -P '*='; _files -/ ;;
        program\ *)
            shift $(( ${kind#program } + 1 )) words
            (( CURRENT -= ${kind#program } + 1 ))
            _normal ;;
    esac
}

if [[ $funcstack[1] == _stoker ]]; then
    _stoker "$@"
elif (( $+functions[compdef] )); then
    compdef _stoker stoker
fi
"""

_FISH = r"""# fish completion of stoker, made by `stoker completion fish`

function __stoker_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l program stoker
    set -l first 1
    # Another program may come before it, such as sudo; an alias has another name.
    for i in (seq (count $words))
        if string match -qr '(^|/)stoker$' -- $words[$i]
            set first $i
            set program (string replace -r '^~/' "$HOME/" -- $words[$i])
            break
        end
    end
    set -e words[1..$first]
    set -l current (string unescape -- "$token")
    or set current (string trim -l -c '"\'' -- "$token")
    set -l lines (command $program __complete fish $words "$current" 2>/dev/null </dev/null)
    or return 0
    set -l kind $lines[1]
    set -e lines[1]
    test (count $lines) -gt 0; and printf '%s\n' $lines
    set -l head (string match -r -- '^[^=]*=' "$token")
    set -l path (string replace -r -- '^[^=]*=' '' "$token")
    switch "$kind"
        case files
            __fish_complete_path "$path" | string replace -r -- '^' "$head"
        case folders
            __fish_complete_directories "$path" | string replace -r -- '^' "$head"
        case 'program *'
            set -e words[1..(string replace 'program ' '' -- $kind)]
            complete -C (string join ' ' -- (string escape -- $words) "$token")
    end
end

complete -c stoker -f -a '(__stoker_complete)'
"""


SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

GRAMMAR = Grammar(
    "completion",
    about=(
        "Print a script with which a shell completes commands, options, recipes and their keys, and names of jobs, "
        "machines and stored trees: source <(stoker completion bash). --install writes it where the shell finds it: "
        "for bash if the package bash-completion is installed, for zsh if a folder of yours is in fpath, for fish if "
        "its folder of settings exists. Files of the shell itself, such as .bashrc, are not changed. Names come from "
        "files of this home: recipes are known after `stoker recipes`, jobs and machines of a fleet after a command "
        "has listed them."
    ),
    positionals=(
        Positional(
            "SHELL",
            help=f"{', '.join(SCRIPTS)} (with --install or --remove: all of them)",
            is_required=False,
            completes=tuple(SCRIPTS),
        ),
    ),
    options=(
        Option("--install", help="write the script to the shell's folder for completions of this user"),
        Option("--remove", help="remove the installed script"),
    ),
    examples=(
        "stoker completion bash",
        "stoker completion fish",
        "stoker completion --install",
        "stoker completion --remove",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Print, install or remove scripts."""
    shell, out = given["shell"], call.out
    if shell and shell not in SCRIPTS:
        hint = did_you_mean(shell, SCRIPTS) or f"use one of {', '.join(SCRIPTS)}"
        raise Usage(f"no completion for {shell!r}", hint=hint)
    if given["install"] and given["remove"]:
        raise Usage("--install and --remove exclude each other", hint="use one of them")
    shells = [shell] if shell else list(SCRIPTS)
    if given["install"] or given["remove"]:
        for one in shells:
            path = _place(one, call.parts.settings.environment)
            done = _remove(path) if given["remove"] else _install(one, path)
            out.object({"shell": one, "path": path, "result": done})
            if done in ("installed", "removed", _NOT_OURS):
                out.line(f"completion of {one}: {done}: {path}")
            elif shell:
                out.line(f"completion of {one}: {done}")
        return 0
    if not shell:
        raise Usage("SHELL is missing: bash, zsh or fish", hint="stoker completion bash")
    out.line(SCRIPTS[shell].rstrip("\n"))
    out.object({"shell": shell, "script": SCRIPTS[shell]})
    return 0


# Where shells look for completions of one user.

_NOT_OURS = "not changed, because the file has another origin"
_BASH_COMPLETION = ("/usr/share", "/usr/local/share", "/opt/homebrew/share", "/etc/profile.d")
_LARGEST_BYTES = 1 << 20
_ZSH_FOLDERS = (".local/share/zsh/site-functions", ".zsh/completions", ".zsh/completion", ".zfunc")


def _place(shell: str, environment: Mapping[str, str]) -> str:
    """Return the path of a shell's script; "" if the shell has no place for it."""
    home = environment.get("HOME", "")
    if not os.path.isabs(home):
        return ""
    if shell == "bash":
        folder = _bash_folder(home, environment)
        return folder and os.path.join(folder, "completions", "stoker")
    if shell == "zsh":
        folder = _zsh_folder(home, environment)
        return folder and os.path.join(folder, "_stoker")
    fish = os.path.join(_absolute(environment, "XDG_CONFIG_HOME") or os.path.join(home, ".config"), "fish")
    return os.path.join(fish, "completions", "stoker.fish") if os.path.isdir(fish) else ""


def _bash_folder(home: str, environment: Mapping[str, str]) -> str:
    names = ("bash-completion/bash_completion", "bash_completion.sh")
    if not any(os.path.exists(os.path.join(folder, name)) for folder in _BASH_COMPLETION for name in names):
        return ""
    data = _absolute(environment, "XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    return _absolute(environment, "BASH_COMPLETION_USER_DIR") or os.path.join(data, "bash-completion")


def _absolute(environment: Mapping[str, str], name: str) -> str:
    """Return the folder that a variable names; "" if it names none, or one relative to the current folder."""
    folder = environment.get(name, "")
    return folder if os.path.isabs(folder) else ""


def _zsh_folder(home: str, environment: Mapping[str, str]) -> str:
    """Return the first folder below the home that is in FPATH, or that exists and is named in the files of zsh."""
    for folder in map(os.path.normpath, environment.get("FPATH", "").split(":")):
        if folder.startswith(os.path.join(os.path.normpath(home), "")) and os.access(folder, os.W_OK):
            return folder
    for name in _ZSH_FOLDERS:
        folder = os.path.join(home, name)
        if os.access(folder, os.W_OK) and any(
            name in _text(os.path.join(home, file)) for file in (".zshrc", ".zshenv")
        ):
            return folder
    return ""


def _text(path: str) -> str:
    """Return the text of a file, which a link may name; "" if it is no regular file, or too large."""
    try:
        return read_regular(os.path.realpath(path), _LARGEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_ours(path: str) -> bool:
    return not os.path.islink(path) and _MADE in _text(path)[:200]


def _install(shell: str, path: str) -> str:
    if not path:
        return "not installed, because there is no folder for it"
    if os.path.lexists(path) and not _is_ours(path):
        return _NOT_OURS
    if _text(path) == SCRIPTS[shell]:
        return "already installed"
    with translated(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, SCRIPTS[shell].encode())
    return "installed"


def _remove(path: str) -> str:
    if not path or not os.path.lexists(path):
        return "not installed"
    if not _is_ours(path):
        return _NOT_OURS
    with translated(path):
        os.unlink(path)
    return "removed"


def table() -> dict[str, Any]:
    """Return the grammars of all commands as `completion_words` reads them."""
    found = {}
    for command in COMMANDS:
        grammar: Grammar = getattr(import_module(command.module), command.grammar)
        found[command.words] = {
            "arguments": [
                {"completes": one.completes, "many": one.is_many, "keys": dict(one.keys)} for one in grammar.positionals
            ],
            "options": [
                {
                    "names": list(one.names),
                    "value": one.value,
                    "many": one.is_many,
                    "completes": one.completes,
                    "help": one.help,
                }
                for one in grammar.options
            ],
            "settings": {label.rstrip("="): text for label, text in grammar.settings()} if grammar.settings else {},
            "program": grammar.takes_program,
        }
    return found
