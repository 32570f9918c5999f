#!/usr/bin/env bash
# A place in which the pages' commands run as they stand: called by scripts/test-docs in mount and PID
# namespaces of its own, so that all of it ends with its first process. The root directory is an overlay
# over the machine's, and what is written goes into memory. The checkout is /src/copperfs, the program under
# test is in PATH, and a Slurm cluster of three hosts (scripts/slurm-hosts.sh) runs the pages as its jobs.
#
#   room.sh DIRECTORY PROGRAM PAGE...   DIRECTORY is empty; SHOW=1 shows the output of each page
set -euo pipefail

if [ "${1:-}" != inside ]; then
  state=$1 program=$(readlink -f "$2") checkout=$PWD
  shift 2
  mount -t tmpfs tmpfs "$state"
  mkdir "$state"/{upper,work,checkout,checkout-work,root}
  root=$state/root
  mount -t overlay overlay -o "lowerdir=/,upperdir=$state/upper,workdir=$state/work" "$root"
  mkdir -p "$root/src/copperfs"
  mount -t overlay overlay -o "lowerdir=$checkout,upperdir=$state/checkout,workdir=$state/checkout-work" \
    "$root/src/copperfs"
  for dir in dev sys; do mount --rbind "/$dir" "$root/$dir"; done
  mount -t proc proc "$root/proc"
  for dir in run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$dir"; done
  touch "$root/usr/local/bin/copperfs"
  mount --bind "$program" "$root/usr/local/bin/copperfs"
  # Not chroot alone: nsenter, as of scripts/hosts.sh, enters the root of the namespace.
  mkdir "$root/old"
  cd "$root"
  pivot_root . old
  umount -l old
  rmdir old
  exec /src/copperfs/scripts/docslib/room.sh inside "$@"
fi
shift

cd /src/copperfs
unset PYTHONPATH VIRTUAL_ENV
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOSTS_PREFIX=cfdoc HOSTS_NET=10.78.0 SLURM_HOSTS_DIR=/srv/slurm PROCTRACK=proctrack/linuxproc
nobody=65534 hosts=3
user=/home/me
# A page that takes longer hangs, and one that takes long is not as it should be.
page_seconds=${PAGE_SECONDS:-240} slow_seconds=100

cluster() { scripts/slurm-hosts.sh "$@"; }
trap 'cluster down' EXIT

# What a reader of the pages has: software and data on a parallel filesystem, and a bucket.
install -d -o "$nobody" -g "$nobody" "$user" /copper_mnt /copper_data /nvme /lus /lus/me /srv/buckets/bucket
ln -sf /usr/bin/python3 /usr/local/bin/python
# Not its own script, whose first line has the place of the checkout.
printf '#!/bin/sh\nexec /src/copperfs/.venv-docs/bin/python3 -m awscli "$@"\n' > /usr/local/bin/aws
chmod +x /usr/local/bin/aws
mkdir -p /lus/me/packages
mount --bind /usr/lib/python3/dist-packages /lus/me/packages
python3 scripts/docslib/data.py /lus /srv/buckets/bucket
chown -R "$nobody:$nobody" /srv/buckets

# slurmctld warns about a setting that these hosts do not use.
cluster up "$hosts" /usr/local/bin/copperfs /lus=file:///lus 2> /srv/up.log || { cat /srv/up.log >&2; exit 1; }
# The pages' jobs bring copperfs themselves: the site's Prolog mounts for no partition.
echo "partitions=none" >> "$SLURM_HOSTS_DIR/etc/copperfs.conf"
for host in $(seq "$hosts"); do
  cluster exec "$host" bash -c "mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o size=4T,uid=$nobody,gid=$nobody tmpfs /nvme"
done
export AWS_ACCESS_KEY_ID=readers-own AWS_SECRET_ACCESS_KEY=secret AWS_REGION=eu-west-1
export AWS_ENDPOINT=http://$HOSTS_NET.1:9000 AWS_ALLOW_HTTP=true
# The name of the same variable for aws.
export AWS_ENDPOINT_URL=$AWS_ENDPOINT
cluster exec 1 /src/copperfs/.venv/bin/rclone serve s3 --config "" --addr "$HOSTS_NET.1:9000" \
  --vfs-cache-mode writes --dir-cache-time 0s --cache-dir /srv/rclone --auth-key "$AWS_ACCESS_KEY_ID,$AWS_SECRET_ACCESS_KEY" \
  /srv/buckets >/srv/rclone.log 2>&1 &
serves() { cluster exec 1 bash -c "exec 3<>/dev/tcp/$HOSTS_NET.1/9000" 2>/dev/null; }
for _ in $(seq 100); do
  ! serves || break
  sleep 0.1
done
serves || { echo "room.sh: the S3 server does not come up" >&2; cat /srv/rclone.log >&2; exit 1; }

# A page may name a release build.
mkdir -p target/release
[ -e target/release/copperfs ] || touch target/release/copperfs
mount --bind /usr/local/bin/copperfs target/release/copperfs

# What the machine does meanwhile: it tells a page that is slow from a machine that is busy, or that stood still.
watch_machine() {
  while sleep 5; do
    printf '%(%T)T up %s load %s %s\n' -1 "$(cut -d' ' -f1 /proc/uptime)" "$(cut -d' ' -f1 /proc/loadavg)" \
      "$(ps -eo pcpu=,comm= --sort=-pcpu | head -n 3 | tr -s ' \n' ' ')"
    grep -HE '^some' /proc/pressure/* 2>/dev/null | sed 's|^/proc/pressure/|    |; s| total=.*||' || true
  done
}
: > /srv/machine.log
watch_machine >> /srv/machine.log 2>&1 &

# The page's script as a job on all hosts, by an ordinary user. The files of the pages are seconds old, and
# storage has the clock of this machine, so no margin for its clock is needed.
as_job() { # DIRECTORY SCRIPT
  timeout -k 5 "$page_seconds" scripts/slurm-hosts.sh user \
    env HOME="$1" USER=me COPPERFS_CLOCK_SKEW=1s \
    salloc -Q -N "$hosts" -J docs bash "$2"
}

failed=()
for page in "$@"; do
  start=$SECONDS status=0
  seen=$(wc -l < /srv/machine.log)
  blocks=/srv/pages/${page//\//-}
  home=$user/${page//\//-}
  install -d -m 0777 "$blocks"
  install -d -o "$nobody" -g "$nobody" "$home"
  install -o "$nobody" -g "$nobody" -t "$home" scripts/docslib/readers/*
  python3 scripts/docslib/pages.py script "$page" "$blocks"
  # The scripts that a page names are those of the checkout.
  ln -s /src/copperfs/scripts "$home/scripts"
  as_job "$home" "$blocks/page.sh" > "$blocks/log" 2>&1 || status=$?
  [ "$status" != 0 ] || env -u HOSTS_PREFIX -u HOSTS_NET -u SLURM_HOSTS_DIR timeout -k 5 "$page_seconds" \
    bash "$blocks/root.sh" >> "$blocks/log" 2>&1 || status=$?
  cluster user env HOME="$home" copperfs unmount --all --force >/dev/null 2>&1 || true
  [ "$status" != 0 ] || python3 scripts/docslib/pages.py compare "$page" "$blocks" || status=1
  if [ "$status" = 0 ]; then
    echo "ok      $page ($((SECONDS - start)) s)"
    [ -z "${SHOW:-}" ] || tail -n +1 "$blocks"/*.out
  else
    failed+=("$page")
    echo "FAILED  $page (status $status, $((SECONDS - start)) s)"
    # The block that failed is the last one with output.
    # shellcheck disable=SC2012 # names are numbers
    last=$(ls -t "$blocks"/*.out 2>/dev/null | head -n 1)
    [ -z "$last" ] || { echo "    --- its output, the end:"; tail -n "${TAIL:-40}" "$last" | sed "s|^|    |"; }
  fi
  if [ "$status" != 0 ] || [ $((SECONDS - start)) -ge "$slow_seconds" ]; then
    echo "    --- its blocks:"
    sed "s|^|    |" "$blocks/log"
    echo "    --- the machine meanwhile:"
    tail -n "+$((seen + 1))" /srv/machine.log | sed "s|^|    |"
  fi
done
[ "${#failed[@]}" -eq 0 ]
