# shellcheck shell=bash
# An ACU as steps, for acu-up and acu-down: its network, control group, GPU and disk, each by its own script, a folder, and in
# them the daemon. Sourced, never run.
#
# /run/acu/N is the daemon's user's: acu.sock, daemon.log and daemon.log.1. What only root may write lies beside it, in /run/acu/N.was. No
# file says which process the daemon is: it is the leader of a session that was started with this ACU's socket, so that a
# file cannot be wrong, and one of whose start we did not see the end is found.
#
# /run is in memory, so its log is bounded: each daemon begins a new one (the former is daemon.log.1), and while it runs, a shell
# beside it looks every few seconds, and where the log has grown past $log_bytes, copies its end to daemon.log.1 and empties it, as
# logrotate's copytruncate does: the daemon, who appends, need not know. That shell ends with the daemon. A file of --log is left
# to whoever named it.

# shellcheck source=scripts/machine.sh
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
# shellcheck source=scripts/ending.sh
source "$(dirname "${BASH_SOURCE[0]}")/ending.sh"

# shellcheck disable=SC2034  # for whoever sources this
acu_steps=(fields network cgroup gpu disk folder daemon log)
# shellcheck disable=SC2034
lock='' verbs='' # the lock is the ACU's own; the parts take the box's
start_options=() part_options=() log='' wait_s=60 wait_end_s='' now=''
log_bytes=$((8 << 20)) log_every_s=10

# What is asked first

not_of_systemd() {
  [[ -d /run/systemd/system ]] || return 0
  if systemctl is-active --quiet "acu@$number.service" "acu@$number.socket"; then
    die "ACU $number is run by systemd: systemctl stop acu@$number.socket acu@$number.service"
  fi
}

# The fields by which it went up, so that it goes down by them, whatever has become of its configuration.

fields_there() { [[ -e $own.was/fields && $(<"$own.was/fields") == "$ACU_FIELDS" ]]; }
fields_up() {
  [[ ! $dry_run ]] || return 0
  run mkdir -p "$own.was"
  printf '%s\n' "$ACU_FIELDS" >"$own.was/fields"
}
fields_down() { ((failures)) || forget fields; } # what is left goes down by them too

recall_fields() {
  if [[ -s $own.was/fields ]]; then
    ACU_FIELDS=$(<"$own.was/fields")
  elif ! read_fields; then
    say "warning: the configuration cannot be read; what it says of the machine is taken to be nothing"
    ACU_FIELDS=$(printf '%s\n' 'network.namespace null' 'gpu.device_id 0' 'gpu.compute_mode auto' 'gpu.model_cache_dir /' \
      'numa.node null' 'numa.cpus null' 'numa.memory_mb null' 'data_plane.path /' 'daemon.drain_timeout_s 60' 'models {}')
  fi
  export ACU_FIELDS
}

# The parts

# Before the first: a place for what they report, which is gone with this process.
listen_to_parts() {
  [[ ! $dry_run ]] || return 0
  local scratch
  scratch=$(mktemp) || die "there is no place for a temporary file. Name a folder that can be written by TMPDIR"
  exec 7>>"$scratch"
  exec 5<"$scratch"
  rm -f "$scratch"
}

# reported PART begun|why: what it told last.
reported() { sed -n "s/^$1\.sh $2 //p" /proc/self/fd/5 | tail -n 1; }

# part_up PART: one of the scripts beside this one.
part_up() {
  if [[ $dry_run ]]; then
    "$scripts/$1.sh" up "$number" --dry-run "${@:2}"
    return
  fi
  ACU_REPORT=yes "$scripts/$1.sh" up "$number" "${@:2}" 5<&- 9>&- || {
    local code=$?
    reason=$(reported "$1" why)
    reason=${reason:-"scripts/$1.sh up $number ended with $code, for what is said above"}
    return "$code"
  }
}

# part_down PART: all of it, or when taking back, what this call began of it; one that failed has taken back its own.
part_down() {
  local only=() code=0
  if ((${#begun[@]})); then
    only=("ACU_ONLY=$(reported "$1" begun)")
    [[ ${only[0]} != ACU_ONLY= && ! $(reported "$1" why) ]] || return 0
  fi
  env ACU_PART=yes "${only[@]}" "$scripts/$1.sh" down "$number" ${dry_run:+--dry-run} "${@:2}" 5<&- 7>&- 9>&- || code=$?
  if [[ $dry_run ]] && ((code == 141)); then exit 141; fi # who reads no more has seen enough
  ((code == 0)) || failed "scripts/$1.sh down $number"
}

printed='' # what gpu.sh does in a dry run
what_is_said=() # --config, --user: what the parts are told as well
tell_parts() { what_is_said=(${config:+--config "$config"} --user "$user"); }

network_there() { false; } # the parts know themselves what of them is there
network_up() { part_up netns "${what_is_said[@]}"; }
network_down() { part_down netns "${what_is_said[@]}"; }
cgroup_there() { false; }
cgroup_up() { part_up cgroup "${what_is_said[@]}" "${part_options[@]}"; }
cgroup_down() { part_down cgroup "${what_is_said[@]}"; }
gpu_there() { false; }
gpu_up() {
  if [[ ! $dry_run ]]; then
    part_up gpu "${what_is_said[@]}"
  else # whether MPS is to run is only printed
    printed=$(part_up gpu "${what_is_said[@]}")
    if [[ $printed ]]; then printf '%s\n' "$printed"; fi
  fi
}
gpu_down() { part_down gpu "${what_is_said[@]}"; }
disk_there() { false; }
disk_up() { part_up disk "${what_is_said[@]}"; }
disk_down() { part_down disk "${what_is_said[@]}"; }

# The folder

folder_there() { kept folder >/dev/null && [[ -d $own && $(stat -c %U "$own") == "$user" ]]; }
folder_up() {
  if ! kept folder >/dev/null && [[ -e $own || -L $own ]]; then
    die "there is $own, which is not this ACU's. Remove it when nothing needs it: rm -r $own"
  fi
  keep folder "$own"
  run install -d -m 755 -o "$user" -g "$(id -g "$user")" "$own"
}
folder_down() {
  if kept folder >/dev/null && [[ -e $own ]]; then run rm -rf "$own" || return 1; fi
  forget folder
}

# The daemon

socket() { printf '%s/acu.sock\n' "$own"; }

# The process id of the daemon, while it runs or starts.
daemon_pid() { leader_with serve; }

# leader_with WORD: the process that leads a session and was started with this word and this ACU's socket.
leader_with() {
  local file fields
  while read -r file; do
    grep -qzxF -- "$1" "$file" 2>/dev/null || continue
    file=${file%/cmdline}
    [[ $dry_run || $file/ns/pid -ef /proc/self/ns/pid ]] || continue # a container's
    read -ra fields < <(sed 's/.*) //' "$file/stat" 2>/dev/null) || continue
    # After the name: state, parent, group, session.
    if [[ ${fields[0]} != Z && ${fields[3]} == "${file#/proc/}" ]]; then
      printf '%s\n' "${fields[3]}" && return
    fi
  done < <(grep -lzxF -- "$(socket)" /proc/[0-9]*/cmdline 2>/dev/null || true)
  return 1
}

# The namespace that netns.sh made.
namespace() {
  kept namespace && return
  local named
  named=$(field network.namespace)
  if [[ $named == null ]]; then printf '%s\n' "$name"; else printf '%s\n' "$named"; fi
}

daemon_there() {
  local pid anew="Begin anew: scripts/acu-down $number && scripts/acu-up $number"
  pid=$(daemon_pid) || return 1
  [[ $dry_run || ! -e /proc/$pid/ns/net ]] || lies_in_place "$pid" || still_starting || {
    [[ /proc/$pid/ns/net -ef /run/netns/$(namespace) ]] || die "the daemon (process $pid) runs in a network that is no more. $anew"
    die "the daemon (process $pid) runs outside of the control group $name. $anew"
  }
  [[ $dry_run || " ${begun[*]} " != *" folder "* ]] || die "the daemon (process $pid) runs, and its folder $own was gone. $anew"
  [[ $dry_run ]] || await_socket "$pid" 0
  say "$name  the daemon runs already, as process $pid"
}

# Whether it comes to be where it belongs, after the start of another acu-up that was killed.
still_starting() {
  local pid tries=0
  while ((tries++ < 50)) && pid=$(daemon_pid); do
    if lies_in_place "$pid"; then return 0; fi
    sleep 0.1
  done
  return 1
}

# In its network, and in its control group where one was made.
lies_in_place() {
  [[ /proc/$1/ns/net -ef /run/netns/$(namespace) ]] && { ! kept group >/dev/null || grep -qE "/$name(/|\$)" "/proc/$1/cgroup" 2>/dev/null; }
}

# Sets $command: what starts it, in the group, in the namespace, as its user, with what its configuration needs.
set_command() {
  local environment mps
  set_environment
  if [[ $(field origin:data_plane.path) == default ]]; then # each has its own
    environment+=("ACU_DATA_PLANE__PATH=$(field data_plane.path)/$number")
  fi
  if mps=$(mps_folder); then environment+=("CUDA_MPS_PIPE_DIRECTORY=$mps"); fi
  # As many files and as much locked memory as the box allows; the log is opened by its user. Both for those shells:
  # shellcheck disable=SC2016
  local limits='for n in 65536 "$(ulimit -Hn)"; do ulimit -n "$n" && break; done 2>/dev/null; ulimit -l unlimited 2>/dev/null; exec "$@"'
  # shellcheck disable=SC2016
  local logged='cd "$HOME" 2>/dev/null || cd /; exec "$@" >>"$0" 2>&1'
  # shellcheck disable=SC2016
  if [[ $log == "$own/daemon.log" ]]; then logged='if [ -s "$0" ]; then mv -f "$0" "$0.1"; fi; '$logged; fi
  command=(setsid "$scripts/cgroup.sh" exec "$number" "$scripts/netns.sh" exec "$number"
    sh -c "$limits" limits
    "${as_user[@]}" --no-new-privs
    env -i '--default-signal=INT,QUIT' "${environment[@]}"
    sh -c "$logged" "$log"
    "$(realpath -s "$acu")" ${config:+-c "$config"} serve --socket "$(socket)" --bind 127.0.0.1:8228 "${start_options[@]}")
}

# Waits until what was started last is known by its session, or has ended: interrupted before, it could not be found.
starting=''
settle() {
  local fields tries=0
  while [[ $starting ]] && ((tries++ < 40)) && read -ra fields < <(sed 's/.*) //' "/proc/$starting/stat" 2>/dev/null) &&
    [[ ${fields[0]} != Z && ${fields[3]} != "$starting" ]]; do sleep 0.05; done
  starting=''
}

set_as_user() { as_user=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --init-groups); }

# The folder of MPS that the daemon's engines are to use, where gpu.sh has given it a GPU: what it chose, else ours, since another ACU
# on the same GPU may start that before these begin. Without a server there CUDA goes on alone.
mps_folder() {
  local chosen
  chosen=$(kept mps || sed -n "s|^echo \(.*\) > $own.was/mps\$|\1|p" <<<"$printed")
  if [[ ! $chosen ]] && { kept gpu >/dev/null || [[ $printed == *"> $own.was/gpu"* ]]; }; then chosen=$run_dir/host/mps; fi
  [[ $chosen ]] && printf '%s\n' "$chosen"
}

daemon_up() {
  local command as_user pid before=0
  set_as_user
  set_command
  if [[ $dry_run ]]; then
    printf '%s </dev/null 2>%s &\n' "$(quoted "${command[@]}")" "$own.was/start"
    return
  fi
  if [[ $log != "$own/daemon.log" ]]; then before=$(stat -c %s "$log" 2>/dev/null) || before=0; fi
  run mkdir -p "$own.was"
  { umask "$callers_umask" && exec "${command[@]}"; } </dev/null >/dev/null 2>"$own.was/start" 5<&- 7>&- 8>&- 9>&- &
  starting=$!
  await_socket "$starting" "$before"
  pid=$(daemon_pid) || died "$before"
  printf '%s\n' "$pid" >>"$own.was/daemons"
  say "$name  the daemon started, as process $pid"
}

# Waits until it accepts. $1 is the process that starts it, $2 how long its log was before.
await_socket() {
  local since=$SECONDS
  until [[ -S $(socket) ]] && accepts; do
    kill -0 "$1" 2>/dev/null || died "$2"
    ((SECONDS - since < wait_s)) || die "the daemon does not accept after $wait_s s. $(said "$2")"
    sleep 0.05
  done
}

# `acu status` ends with 1 while models load, and with 3 when there is no daemon.
accepts() {
  local code=0
  env -i "PATH=$PATH" "HOME=$home" "$acu" status --socket "$(socket)" >/dev/null 2>&1 || code=$?
  ((code <= 1))
}

said() {
  local text
  text=$({ cat "$own.was/start"; tail -c "+$(($1 + 1))" "$log"; } 2>/dev/null | tail -n 5)
  printf '%s' "${text:+It said last: }${text:-It said nothing.}"
}

died() { die "the daemon ended at once. $(said "$1")"; }

# The log's bound

log_there() {
  local pid
  [[ $log == "$own/daemon.log" ]] || return 0
  pid=$(leader_with acu-log) && grep -qzxF "$(daemon_pid)" "/proc/$pid/cmdline" 2>/dev/null
}
log_up() {
  local as_user bounding
  log_down # of a daemon that is no more
  set_as_user
  set_bounding
  if [[ $dry_run ]]; then
    printf '%s %s </dev/null >/dev/null 2>&1 &\n' "$(quoted "${bounding[@]}")" "$(daemon_pid || printf '"$!"')"
    return
  fi
  "${bounding[@]}" "$(daemon_pid)" </dev/null >/dev/null 2>&1 5<&- 7>&- 8>&- 9>&- &
  starting=$!
  until log_there; do
    kill -0 "$starting" 2>/dev/null || die "what bounds the log ended at once: $(quoted "${bounding[@]}")"
    sleep 0.05
  done
}
log_down() {
  local pid
  settle
  while pid=$(leader_with acu-log); do
    if [[ $dry_run ]]; then run kill -TERM -- "-$pid" && return; fi
    kill -TERM -- "-$pid" 2>/dev/null || true
    await_end "$pid" 5 || return 1
  done
}

# Sets $bounding: what bounds the log while the process lives whose number is the last word. As the daemon's user, whose folder it is.
set_bounding() {
  # shellcheck disable=SC2016  # for that shell
  local bound='while sleep "$4" && kill -0 "$5"; do [ "$(stat -c %s "$2")" -le "$3" ] || { tail -c "$3" "$2" >"$2.1" && : >"$2"; }; done'
  bounding=(setsid "${as_user[@]}" env -i "PATH=$PATH" sh -c "$bound" acu-log "$(socket)" "$log" "$log_bytes" "$log_every_s")
}

# It drains: what runs may finish, within drain_timeout_s. Then whatever else is in its namespace ends.
daemon_down() {
  local pid
  settle
  if pid=$(daemon_pid); then
    say "$name  the daemon (process $pid) ends$([[ $now ]] || printf ': what runs may finish within %s s' "$(end_s)")"
    run kill -TERM "$pid" || [[ ! -e /proc/$pid ]] || return 1
    if [[ $now && ! $dry_run ]]; then # a second one breaks off what runs
      sleep 0.2
      kill -TERM "$pid" 2>/dev/null || true
    fi
    await_end "$pid" "$(end_s)" || true # it is counted as a failure, and found again by its command
  fi
  if [[ ! $dry_run ]]; then end_others; fi
  clear_up
  if [[ -e $own.was/start ]]; then run rm -f "$own.was/start"; fi
  if kept folder >/dev/null && [[ -S $(socket) ]]; then run rm -f "$(socket)"; fi
}

# What the engines of a daemon that was killed left: their folders and semaphores, which its process is named in.
clear_up() {
  local pid
  [[ -e $own.was/daemons ]] || return 0
  while read -r pid; do
    if runs "$pid"; then return; fi # another time
    if [[ $pid =~ ^[0-9]+$ ]]; then
      run find /tmp /dev/shm -maxdepth 1 '(' -name "acu-engine-$pid-*" -o -name "sem.acu-engine-$pid-*" ')' -user "$user" \
        -exec rm -rf '{}' +
    fi
  done <"$own.was/daemons"
  run rm -f "$own.was/daemons"
}
