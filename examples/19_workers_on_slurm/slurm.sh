#!/usr/bin/env bash
# Starts a Slurm of one node with two cores in the folder $1, as processes of this namespace. Returns when it is idle.
set -euo pipefail
top=$1
host=$(hostname -s)
mkdir -p "$top"/{state,log,munge,project}
chmod 700 "$top/munge"
(umask 077 && head -c 128 /dev/urandom >"$top/munge/key")
# An interface that leads nowhere: Slurm resolves no name with the loopback interface alone.
ip link set lo up
ip link add e0 type veth peer name e1
ip addr add 10.99.0.1/24 dev e0
ip link set e0 up
ip link set e1 up
cat >"$SLURM_CONF" <<CONF
ClusterName=example
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket=$top/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$top/state
SlurmdSpoolDir=$top/spool
SlurmctldPidFile=$top/slurmctld.pid
SlurmdPidFile=$top/slurmd.pid
SlurmctldLogFile=$top/log/slurmctld
SlurmdLogFile=$top/log/slurmd
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=2
PropagateResourceLimits=NONE
NodeName=n0 NodeHostname=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=n0 Default=YES MaxTime=INFINITE State=UP
CONF
start() { setsid "$@" </dev/null >"$top/log/$1.out" 2>&1 & }
start munged --foreground --force --key-file="$top/munge/key" --socket="$top/munge.sock" \
  --pid-file="$top/munge/pid" --log-file="$top/munge/log" --seed-file="$top/munge/seed"
for _ in $(seq 200); do
  test -S "$top/munge.sock" && break
  sleep 0.05
done
start slurmctld -D -i
start slurmd -D -N n0
for _ in $(seq 300); do
  [ "$(sinfo -h -o %T 2>/dev/null)" != idle ] || exit 0
  sleep 0.1
done
echo 'Slurm does not start' >&2
exit 1
