#!/usr/bin/env bash
# Workers that come when jobs wait and leave when they are idle, on a Slurm that this script starts for a few seconds.
# It runs in namespaces of its own: nothing of it can be reached from elsewhere, and everything ends with it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH="$PATH:/usr/sbin:/sbin"

missing=()
for program in slurmctld slurmd sbatch munged; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "not installed: ${missing[*]}. On Debian: apt-get install slurmctld slurmd slurm-client munge"
  exit 0
fi
if [ "${1:-}" != --inside ]; then
  spaces=(unshare --net --pid --fork --kill-child=KILL --mount-proc)
  [ "$(id -u)" = 0 ] || spaces+=(--user --map-root-user)
  if ! "${spaces[@]}" true 2>/dev/null; then
    echo 'this Slurm needs namespaces of its own: run it as root'
    exit 0
  fi
  top=$(mktemp -d)
  trap 'rm -rf "$top"' EXIT
  TOP=$top "${spaces[@]}" bash "$here/run.sh" --inside
  exit
fi

export STOKER_HOME=$TOP/home STOKER_RUNTIME=$TOP/run SLURM_CONF=$TOP/slurm.conf
unset STOKER_COORDINATOR STOKER_OPERATOR_TOKEN
trap '[ $? = 0 ] || tail -n 20 "$TOP"/*.log "$TOP"/log/* >&2' EXIT
say() { printf '\n$ %s\n' "$*"; }
try() { say "$@"; "$@"; }
until_true() {
  for _ in $(seq 600); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  return 1
}

bash "$here/slurm.sh" "$TOP"
try sinfo
cp "$here"/{train.py,manifest.toml} "$TOP/project"
cd "$TOP/project"
# A folder that the machines share, and here the one of their temporary files.
mkdir "$TOP/shared" "$TOP/node"
sed "s#FOLDER#$TOP/shared#" "$here/cluster.yaml" >"$TOP/cluster.yaml"
say 'stoker serve --listen 0.0.0.0 --cluster cluster.yaml &'
stoker serve --listen 0.0.0.0 --cluster "$TOP/cluster.yaml" >"$TOP/serve.log" 2>&1 &
until_true grep -q 'operator.token' "$TOP/serve.log"
try stoker pools check small

try stoker submit manifest.toml --yes
try stoker explain root/1

say 'stoker launch watch &'
TMPDIR=$TOP/node stoker launch watch >"$TOP/watch.log" 2>&1 &
watcher=$!
until_true grep -q submitted "$TOP/watch.log"
try squeue
# The same jobs again: nothing is added, and it waits for their ends.
try stoker submit manifest.toml --yes --watch
try stoker pools

printf '\nworkers without a job leave after 5 s\n'
until_true bash -c '[ -z "$(squeue --noheader)" ]'
try squeue
try stoker pools show small
kill "$watcher"
wait "$watcher" || true
say 'the log of stoker launch watch'
cat "$TOP/watch.log"
