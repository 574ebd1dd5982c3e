#!/bin/bash
# Runs a command beside a user's systemd of its own, in namespaces of its own:
#
#     GROUPS_OF_OURS="FOLDER …" XDG_RUNTIME_DIR=FOLDER beside_systemd.sh COMMAND…
#
# GROUPS_OF_OURS are control groups made for this, one of version 2 and one of version 1 that systemd names, as far as
# they are mounted: systemd moves every process of the group that it finds itself in. Status 77: it could not be had.
set -eu
if [ "$1" != --inside ]; then
  for group in $GROUPS_OF_OURS; do echo 0 > "$group/cgroup.procs" || exit 77; done
  exec unshare --pid --fork --kill-child=KILL --mount --mount-proc "$BASH" "$0" --inside "$@"
fi
shift
# Systemd's tools only speak to it where this folder says that systemd rules.
mkdir -p /run/systemd
mount -t tmpfs none /run/systemd || exit 77
mkdir -p /run/systemd/system
unset DBUS_SESSION_BUS_ADDRESS
SYSTEMD_LOG_TARGET=console /lib/systemd/systemd --user --unit=basic.target > "$XDG_RUNTIME_DIR/log" 2>&1 &
started=$!
for _ in $(seq 200); do
  if [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; then break; fi
  sleep 0.02
done
systemctl --user is-system-running --wait > /dev/null || { cat "$XDG_RUNTIME_DIR/log" >&2; exit 77; }
status=0
"$@" || status=$?
kill "$started"
wait "$started" || true
exit "$status"
