# shellcheck shell=bash disable=SC2154 # $name, $now, $wait_end_s and so on from acu.sh
# How the processes of an ACU end, with a bound on each wait, and what is said when all is gone. Sourced by acu.sh, never run.

killed_s=10 # for one that was killed to be gone

# How long its end may take, in seconds: as it was asked, or as the configuration says, and some.
end_s() {
  local drain
  if [[ $wait_end_s ]]; then
    printf '%s\n' "$wait_end_s"
  elif [[ $now ]] || ((${#begun[@]})); then
    printf '30\n'
  else
    drain=$(field daemon.drain_timeout_s)
    printf '%s\n' $((${drain%.*} + 30))
  fi
}

# await_end PID SECONDS: then it is killed. 1 where even that does not end it: it waits in the kernel, for a device or a disk.
await_end() {
  local since=$SECONDS wait_s=$2 killed=''
  if [[ $dry_run ]]; then
    printf 'timeout %s tail --pid=%s -s 0.1 -f /dev/null || kill -KILL %s\n' "$2" "$1" "$1"
    return
  fi
  while runs "$1"; do
    if ((SECONDS - since >= wait_s)); then
      if [[ $killed ]]; then
        failed "process $1 has not ended $killed_s s after it was killed: it waits in the kernel ($(waits_in "$1")). What it holds stays until" \
          "then; a restart of the box ends it"
        return 1
      fi
      say "$name  process $1 has not ended within $2 s: it is killed"
      kill -KILL "$1" 2>/dev/null || true
      since=$SECONDS wait_s=$killed_s killed=yes
    fi
    sleep 0.05
  done
}

# Whether it runs: a process that only waits to be seen dead by its parent does not.
runs() { grep -q '^State:.[^XZ]' "/proc/$1/status" 2>/dev/null; }

waits_in() { sed -n 's/^State:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null; tr -d '\0' 2>/dev/null <"/proc/$1/wchan"; }

# What is left in the namespace: engines of a daemon that was killed, tools, somebody's shell.
end_others() {
  local pid others=()
  mapfile -t others < <(ip netns pids "$(namespace)" 2>/dev/null || true)
  if ((${#others[@]})); then
    say "$name  ends what is left in its namespace: $(ps -o pid=,comm= -p "$(IFS=, && printf '%s' "${others[*]}")" | xargs)"
    kill -TERM "${others[@]}" 2>/dev/null || true
    for pid in "${others[@]}"; do await_end "$pid" 5 || true; done
  fi
}

# When all is taken away that was remembered: what of its name is there still, and was not, because it is somebody else's or because
# $run_dir was emptied.
tell_end() {
  local folder found=()
  if [[ -e /run/netns/$name ]]; then found+=("ip netns del $name"); fi
  if ip link show dev "$name" >/dev/null 2>&1; then found+=("ip link del $name"); fi
  if have nft && nft list table ip "$name" >/dev/null 2>&1; then found+=("nft delete table ip $name"); fi
  for folder in "${ACU_CGROUP_ROOT:-/sys/fs/cgroup}"{,/*}/"$name"; do
    if [[ -e $folder/cgroup.procs ]]; then found+=("rmdir $folder"); fi
  done
  if ((${#found[@]})); then
    say "$name  all is gone that it is known to have made. Of its name there is more, which may be somebody else's; to remove it:"
    printf '  %s\n' "${found[@]}" >&2
  else
    say "$name  nothing of it is left"
  fi
}
