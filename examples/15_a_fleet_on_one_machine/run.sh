#!/usr/bin/env bash
# The whole product on one machine: a coordinator, two workers, a manifest; then everything is stopped again.
# Arguments go to `stoker submit`, such as --dry-run. Results come into stoker-out/ of the folder you are in.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
here=${here#"$PWD"/}
# A memory of its own, so that it goes the same way every time and leaves nothing but stoker-out/.
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
unset STOKER_COORDINATOR STOKER_OPERATOR_TOKEN

workers=() server=
gone() {
  for _ in $(seq 100); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
}
finish() {
  code=$?
  trap '' INT TERM
  if [ "$code" != 0 ] && [ "$code" != 130 ]; then tail -n 20 "$STOKER_HOME"/*.log >&2 || true; fi
  if [ "$code" = 130 ]; then echo 'interrupted: the workers and the coordinator are stopped, and their jobs with them' >&2; fi
  for one in "${workers[@]}"; do kill "$one" 2>/dev/null || true; done
  for one in "${workers[@]}"; do gone "$one"; done
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; gone "$server"; fi
  wait
  rm -rf "$STOKER_HOME"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { printf '\n$ %s\n' "$*"; }
try() { say "$@"; "$@"; }
until_true() {
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    kill -0 "$server" || return 1
    sleep 0.1
  done
  return 1
}

say 'stoker serve &'
stoker serve --listen 127.0.0.1:0 >"$STOKER_HOME/serve.log" 2>&1 &
server=$!
until_true test -e "$STOKER_HOME/state/serve.json"
say 'stoker work --name tower --slots 2 &'
stoker work --name tower --slots 2 >"$STOKER_HOME/tower.log" 2>&1 &
workers+=($!)
say 'stoker work --name board --declare cores=1,ram=1G,gpus=0 &'
stoker work --name board --declare cores=1,ram=1G,gpus=0 >"$STOKER_HOME/board.log" 2>&1 &
workers+=($!)
until_true grep -q "joined as tower" "$STOKER_HOME/tower.log"
until_true grep -q "joined as board" "$STOKER_HOME/board.log"

# It ends with 1: one job waits for a machine that is not here.
code=0
try stoker submit "$here/manifest.toml" --yes --watch "$@" || code=$?
case " $* " in *" --dry-run "*) exit "$code" ;; esac
[ "$code" = 1 ] || exit 1

try stoker status
try stoker compare line --no-plots
try stoker explain lora
try stoker get line stoker-out/line --force
try stoker get gbt stoker-out/gbt --force
try stoker get line --metrics stoker-out/line.csv
try cat stoker-out/line/lr=0.1/model.json
printf '\n\nstopping the workers and the coordinator; results stay in stoker-out/\n'
