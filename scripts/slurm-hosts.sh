#!/usr/bin/env bash
# A real Slurm cluster on one machine, for tests: N hosts made by hosts.sh, each with a munged and a
# slurmd of its own, slurmctld on the first, and copperfs' Prolog and Epilog installed as on a site. Root
# only; needs Debian's slurm-wlm and munge.
#
#   slurm-hosts.sh up N PROGRAM ORIGIN  starts it; jobs find ORIGIN (PREFIX=URI), served by PROGRAM, in
#                                       $COPPER_MNT
#   slurm-hosts.sh user CMD..           runs CMD on the first host as an ordinary user
#   slurm-hosts.sh exec I CMD..         runs CMD on host I as root
#   slurm-hosts.sh left                 prints what jobs have left on the hosts: mounts, daemons, files
#   slurm-hosts.sh crash I              takes host I away at once
#   slurm-hosts.sh boot I               starts host I again
#   slurm-hosts.sh down                 takes everything away
#
# SLURM_HOSTS_DIR, a directory that does not exist, is where everything is; HOSTS_PREFIX and HOSTS_NET as
# for hosts.sh. PROCTRACK is proctrack/cgroup unless it says otherwise.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
dir=${SLURM_HOSTS_DIR:-/tmp/copperfs-slurm}
export HOSTS_PREFIX=${HOSTS_PREFIX:-cfs} HOSTS_DIR=$dir/hosts
user=65534 # nobody: fusermount3 wants a name

hosts() { "$here/hosts.sh" "$@"; }
on_host() { # I CMD..
  local i=$1
  shift
  hosts exec "$i" env SLURM_CONF="$dir/etc/slurm.conf" "$@"
}
ids() { seq 1 "$(cat "$dir/hosts/n")"; }

configure() { # N PROGRAM ORIGIN
  local n=$1 i
  install -d -m 0755 "$dir/etc" "$dir/bin" "$dir/state" "$dir/log"
  install -m 0755 "$2" "$dir/bin/copperfs"
  install -m 0755 "$here"/slurm/{prolog,epilog,task-prolog} "$dir/etc/"
  head -c 128 /dev/urandom > "$dir/etc/munge.key"
  chmod 600 "$dir/etc/munge.key"
  "$dir/bin/copperfs" secret "$dir/etc/site.key"
  # On the hosts' own /run, which goes with a crash.
  cat > "$dir/etc/copperfs.conf" <<E
copperfs=$dir/bin/copperfs
site_key=$dir/etc/site.key
mounts=/run/copper_mnt
options=(--origin $3 --memory 64MiB --arity 2 --log-level debug)
E
  cat > "$dir/etc/cgroup.conf" <<E
CgroupPlugin=cgroup/v1
CgroupAutomount=no
E
  cat > "$dir/etc/slurm.conf" <<E
ClusterName=copper
SlurmctldHost=h1
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmdPidFile=/run/slurmd.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/%n
ProctrackType=${PROCTRACK:-proctrack/cgroup}
TaskPlugin=task/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=8
KillWait=5
UnkillableStepTimeout=200
SchedulerParameters=sched_min_interval=0
PrologFlags=Alloc,Contain
Prolog=$dir/etc/prolog
Epilog=$dir/etc/epilog
TaskProlog=$dir/etc/task-prolog
NodeName=h[1-$n] CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
E
  for i in $(seq "$n"); do install -d "$dir/spool-h$i"; done
}

# What a machine does when it comes up.
start_host() { # I
  # shellcheck disable=SC2016 # expanded on the host
  on_host "$1" bash -euo pipefail -c '
    dir=$1
    mount -t tmpfs -o mode=755 tmpfs /run
    install -d -m 0755 /run/munge
    mknod -m 0666 /run/fuse c 10 229
    mount --bind /run/fuse /dev/fuse
    munged --force --num-threads=1 --key-file="$dir/etc/munge.key" --log-file="$dir/log/munge-$(hostname)" \
      --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed
    [ "$(hostname)" != h1 ] || slurmctld
    # The first process of such a host reaps nobody, and Slurm waits for what is left of a step.
    setsid python3 -c "
import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
" slurmd -D -N "$(hostname)" </dev/null >/dev/null 2>&1 &
  ' sh "$dir"
}

cmd_up() { # N PROGRAM ORIGIN
  local n=$1 i pids=() _
  mkdir -m 0755 "$dir"
  configure "$@"
  hosts up "$n"
  for i in $(seq "$n"); do
    start_host "$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
  for _ in $(seq 300); do
    [ "$(on_host 1 sinfo -h -t idle -o %D 2>/dev/null || true)" != "$n" ] || return 0
    sleep 0.1
  done
  echo "slurm-hosts.sh: the nodes do not come up" >&2
  on_host 1 sinfo -R >&2 || true
  tail -n 5 "$dir"/log/* >&2
  return 1
}

cmd_exec() { on_host "$@"; }

cmd_user() {
  on_host 1 setpriv --reuid="$user" --regid="$user" --clear-groups --inh-caps=-all "$@"
}

cmd_left() {
  local i
  for i in $(ids); do
    [ -f "$dir/hosts/$i.pid" ] || continue
    # Nobody reaps on such a host: what has ended is still shown.
    # Below /run, which is the hosts' own: other mounts were there before the hosts.
    # shellcheck disable=SC2016 # expanded on the host
    on_host "$i" sh -c '
      grep -E "^([^ ]+ ){4}/run/.* - fuse\.copperfs " /proc/self/mountinfo | sed "s/^/$(hostname): mount /"
      ps -eo stat,pid,args | grep "[c]opperfs daemon" | grep -v ^Z | sed "s/^/$(hostname): process /"
      find /run/copper_mnt /run/copperfs-jobs -mindepth 1 2>/dev/null | sed "s/^/$(hostname): file /"
    '
  done
}

cmd_crash() { hosts crash "$1"; }

cmd_boot() {
  hosts boot "$1"
  start_host "$1"
}

cmd_down() {
  local i group
  [ -d "$dir" ] || return 0
  if [ -f "$dir/hosts/n" ]; then
    i=$(cat "$dir/hosts/n")
    hosts down || true
    # The kernel takes a moment to end what a host ran; its groups stay until then.
    for group in $(seq -f 'slurm_h%g' "$i"); do
      find /sys/fs/cgroup/*/"$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
  fi
  rm -rf "$dir"
}

case ${1:-} in
  up | exec | user | left | crash | boot | down)
    command=$1
    shift
    "cmd_$command" "$@"
    ;;
  *)
    sed -n '2,19s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
