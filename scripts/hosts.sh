#!/usr/bin/env bash
# N "hosts" on one Linux machine, for tests with faults: each has its own network, mount, PID and UTS
# namespace and one cable into a bridge that lives in a namespace of its own. Root only; the machine's
# own network is not touched.
#
#   hosts.sh up N              starts hosts 1 to N: names h1 .. hN, addresses 10.77.0.1 .. N
#   hosts.sh exec I CMD..      runs CMD on host I, as on a real node ($HOST_ID is I)
#   hosts.sh all CMD..         runs CMD on every host at once
#   hosts.sh run N CMD..       up N, all CMD, down; ends with the status of CMD
#   hosts.sh rate I RATE|off   limits host I both ways, as in 100mbit
#   hosts.sh loss I PCT|off    drops PCT % of the frames to and from host I (off: mends everything)
#   hosts.sh link I up|down    plugs or pulls the cable of host I
#   hosts.sh part A B          drops all traffic between two groups, as in part 1,2 3,4
#   hosts.sh oneway I J        drops only the frames from I to J
#   hosts.sh mend              takes every part, oneway and loss back
#   hosts.sh crash I           pulls the cable and kills every process of host I at once
#   hosts.sh boot I            starts host I again after a crash
#   hosts.sh down              takes everything away
#
# HOSTS_PREFIX lets runs stand side by side (with HOSTS_NET); HOSTS_MTU is the cables' MTU.
set -euo pipefail
prefix=${HOSTS_PREFIX:-cfh}
net=${HOSTS_NET:-10.77.0}
mtu=${HOSTS_MTU:-1500}
state=${HOSTS_DIR:-/run/copperfs-hosts.$prefix} # pid files and the hosts' /etc/hosts
switch=$prefix-sw

on_switch() { ip netns exec "$switch" "$@"; }
ids() { seq 1 "$(cat "$state/n")"; }

on_host() { # I CMD..
  local i=$1
  shift
  HOST_ID=$i nsenter -t "$(cat "$state/$i.pid")" -m -u -n -p -i -- "$@"
}

# Pid 1 of host I's PID namespace: as long as it lives, the host does.
spawn() { # I
  local i=$1 unshare='' init='' _
  nsenter --net="/run/netns/$prefix$i" setsid unshare -m -u -i -p -f --kill-child=KILL \
    --propagation private --mount-proc sh -c "
      hostname h$i
      mount --bind '$state/etchosts' /etc/hosts
      exec sleep infinity" </dev/null >/dev/null 2>&1 &
  unshare=$!
  for _ in $(seq 400); do
    init=$(cat "/proc/$unshare/task/$unshare/children" 2>/dev/null || true)
    init=${init%% *}
    [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2>/dev/null)" = sleep ] && break
    sleep 0.005
  done
  [ -n "$init" ] || { echo "hosts.sh: host $i does not start" >&2; return 1; }
  echo "$init" > "$state/$i.pid.new"
  mv "$state/$i.pid.new" "$state/$i.pid" # whole or not at all: others wait for it
}

cmd_up() { # N
  local n=$1 i _
  [ ! -e "$state/n" ] || { echo "hosts.sh: already up; hosts.sh down first" >&2; return 1; }
  mkdir -p "$state"
  echo "$n" > "$state/n"
  {
    echo "127.0.0.1 localhost"
    for i in $(seq "$n"); do echo "$net.$i h$i"; done
  } > "$state/etchosts"
  ip netns add "$switch"
  for i in $(seq "$n"); do echo "netns add $prefix$i"; done | ip -batch -
  {
    echo "link add br0 type bridge"
    echo "link set br0 up"
    echo "link set lo up"
    for i in $(seq "$n"); do
      echo "link add p$i mtu $mtu type veth peer name eth0 mtu $mtu netns $prefix$i"
      echo "link set p$i master br0 up"
    done
  } | ip -n "$switch" -batch -
  for i in $(seq "$n"); do
    printf '%s\n' "addr add $net.$i/24 dev eth0" "link set eth0 up" "link set lo up" |
      ip -n "$prefix$i" -batch -
    spawn "$i" &
  done
  for i in $(seq "$n"); do
    for _ in $(seq 400); do
      [ -s "$state/$i.pid" ] && break
      sleep 0.01
    done
  done
  on_switch nft -f - <<'N'
add table bridge chaos
add chain bridge chaos fw { type filter hook forward priority 0; }
N
}

cmd_exec() { on_host "$@"; }

cmd_all() { # CMD..
  local i pid status=0 pids=()
  for i in $(ids); do
    on_host "$i" "$@" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  return "$status"
}

cmd_run() { # N CMD..
  local n=$1 status=0
  shift
  trap cmd_down EXIT
  cmd_up "$n"
  cmd_all "$@" || status=$?
  return "$status"
}

cmd_rate() { # I RATE|off
  local i=$1 rate=$2
  if [ "$rate" = off ]; then
    on_switch tc qdisc del dev "p$i" root
    ip netns exec "$prefix$i" tc qdisc del dev eth0 root
  else
    on_switch tc qdisc replace dev "p$i" root tbf rate "$rate" burst 128k latency 50ms
    ip netns exec "$prefix$i" tc qdisc replace dev eth0 root tbf rate "$rate" burst 128k latency 50ms
  fi
}

drop() { on_switch nft add rule bridge chaos fw "$@" counter drop; }

cmd_loss() { # I PCT|off
  if [ "$2" = off ]; then
    cmd_mend
  else
    drop iifname "p$1" numgen random mod 100 "<" "$2"
    drop oifname "p$1" numgen random mod 100 "<" "$2"
  fi
}

cmd_part() { # A B
  local a b
  for a in ${1//,/ }; do
    for b in ${2//,/ }; do
      drop iifname "p$a" oifname "p$b"
      drop iifname "p$b" oifname "p$a"
    done
  done
}

cmd_oneway() { drop iifname "p$1" oifname "p$2"; }
cmd_mend() { on_switch nft flush chain bridge chaos fw; }
cmd_link() { on_switch ip link set "p$1" "$2"; }

cmd_crash() { # I
  cmd_link "$1" down
  kill -9 "$(cat "$state/$1.pid")" 2>/dev/null || true
  rm -f "$state/$1.pid"
}

cmd_boot() { # I
  spawn "$1"
  cmd_link "$1" up
}

cmd_down() {
  local i
  [ -f "$state/n" ] || return 0
  for i in $(ids); do
    [ ! -f "$state/$i.pid" ] || kill -9 "$(cat "$state/$i.pid")" 2>/dev/null || true
  done
  {
    for i in $(ids); do echo "netns del $prefix$i"; done
    echo "netns del $switch"
  } | ip -force -batch - 2>/dev/null || true
  rm -rf "$state"
}

case ${1:-} in
  up | exec | all | run | rate | loss | link | part | oneway | mend | crash | boot | down)
    command=$1
    shift
    "cmd_$command" "$@"
    ;;
  *)
    sed -n '2,22s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
