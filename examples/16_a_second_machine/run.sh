#!/usr/bin/env bash
# Three machines, played by three homes on this one: desk serves, lab1 works, the project lies on laptop. They speak TLS and
# know each other by codes alone; nothing but the coordinator's port is shared. Everything is stopped and removed again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(mktemp -d)
unset STOKER_HOME STOKER_COORDINATOR STOKER_OPERATOR_TOKEN
export GIT_CONFIG_GLOBAL=/dev/null UV_OFFLINE=1
desk() { STOKER_HOME=$top/desk/home "$@"; }
lab1() { STOKER_HOME=$top/lab1/home "$@"; }
laptop() { (cd "$top/laptop/project" && STOKER_HOME=$top/laptop/home "$@"); }
try() { printf '\n%s$ %s\n' "$1" "${*:2}"; "$@"; }

pids=()
stop() {
  code=$?
  [ "$code" = 0 ] || tail -n 20 "$top"/*.log >&2 || true
  for one in "${pids[@]}"; do kill "$one" 2>/dev/null || true; done
  wait
  rm -rf "$top"
}
trap stop EXIT
trap 'exit 130' INT TERM
until_true() {
  for _ in $(seq 300); do
    if "$@"; then return 0; fi
    kill -0 "${pids[0]}" || return 1
    sleep 0.1
  done
  return 1
}

# A project in git, with one change that is not committed; data beside it, and notes that are nobody's business.
mkdir -p "$top/laptop/project" "$top/laptop/data" "$top/lab1/home/state" stoker-out
cp "$here"/{train.py,settings.py,manifest.toml} "$top/laptop/project"
printf '%s\n' 0.1,0.31 0.4,1.22 0.7,2.09 0.9,2.68 >"$top/laptop/data/points.csv"
(
  cd "$top/laptop/project"
  python3 "$here/make_wheel.py"
  echo ./wheels/shades-1.0-py3-none-any.whl >requirements.txt
  git init -q
  git add -A
  git -c user.name=anna -c user.email=anna commit -qm 'all of it'
  echo 'STEPS = 30' >settings.py
  echo 'not for others' >notes.txt
)
# A secret of lab1: no other machine ever has it.
(umask 077 && echo 'API_KEY=open-sesame' >"$top/lab1/home/state/secrets.env")

# With each heartbeat a machine says what it has: often, so that the last submission knows.
printf '\ndesk$ stoker serve --listen 0.0.0.0\n'
STOKER_HOME=$top/desk/home stoker serve --listen 0.0.0.0:0 --heartbeat 1s --json >"$top/serve.log" 2>&1 &
pids+=($!)
until_true test -e "$top/desk/home/state/serve.json"
at=127.0.0.1:$(grep -oE '"url": *"https://[^"]+' "$top/desk/home/state/serve.json" | grep -oE '[0-9]+$')
code_of() { desk stoker machines invite --json "$@" | grep -oE '[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}' | head -n 1; }

try lab1 stoker join "$(code_of --name lab1)@$at" --name lab1
printf '\nlab1$ stoker work\n'
STOKER_HOME=$top/lab1/home stoker work --json >"$top/work.log" 2>&1 &
pids+=($!)
try laptop stoker join --operator "$(code_of --operator --role submit --name anna)@$at"
until_true grep -q '"joined"' "$top/work.log"

try laptop stoker submit manifest.toml --yes --watch
try laptop stoker jobs show study
try laptop stoker logs study | tee "$top/said"
try laptop stoker get study "$PWD/stoker-out/study" --force
printf '\nthe same again: nothing is sent, nothing runs\n'
try laptop stoker submit manifest.toml --yes

grep -q '"steps": 30' stoker-out/study/runs/model.json
grep -q 'the key is \*\*\*' "$top/said"
