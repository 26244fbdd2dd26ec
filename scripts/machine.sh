# shellcheck shell=bash
# How the parts of an ACU go up and down: what netns.sh, cgroup.sh, gpu.sh, disk.sh, acu-up and acu-down share. Sourced,
# never run.
#
# A part is a list of steps. Each step is three functions: STEP_there (is it done?), STEP_up and STEP_down, which may be
# called whatever is there. What a step changes goes through `run` and `put`, so that --dry-run prints the very commands. A value
# that it replaces is kept first (`keep`, or `share` where several ACUs want the same), and given back by STEP_down.
#
# What is remembered, under /run/acu (ACU_RUN_DIR):
#   N.was/NAME                a value of ACU N as it was before; beside its folder N, since that is the daemon's user's
#   host/NAME/was             a value of the box as it was before the first ACU that wanted another
#   host/NAME/by-N            ACU N wants it
#   box.lock, N.lock          who is at work; a file that is gone is no lock, so whoever waited for it makes a new one
# A value is written before what it is of is changed: after a crash in between it is given back as it already is. An empty file is
# one that was not written to its end, and counts as none. Nothing of this outlives a restart of the box, as what it is about.

# shellcheck disable=SC2034  # for whoever sources this
callers_umask=$(umask)
umask 022 # what is made here is for the daemon's user to read, whatever the caller's is

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2034  # for whoever sources this
scripts=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
run_dir=${ACU_RUN_DIR:-/run/acu}
acu=${ACU_COMMAND:-${scripts%/*}/.venv/bin/acu}
verbs='up down status' # what the first word may be; empty: the first word is the number
verb='' number='' config='' dry_run='' user='' home='' name='' own=''
lock=box # what this script holds while it works; see `hold`
begun=() going='' held='' reason='' failures=0

# What is said goes to standard error, and whether anybody still reads there stops nothing.
say() { printf '%s\n' "$*" >&2 2>/dev/null || true; }

# Arguments

# take_arguments up N [--config FILE] [--user NAME] [--dry-run] [-h] and what the hook `own_option NAME VALUE` knows (1 where it does not;
# it sets taken=1 where the option has no value). A value may come as --name=value too. Sets $verb $number $config $dry_run, $user and $home (the
# daemon's), $name (acuN) and $own (/run/acu/N). With no file named, that of the ACU is taken (/etc/acu/N.yaml); where there is none
# $config is empty, and ACU finds its own.
take_arguments() {
  local words=() taken joined
  while (($#)); do
    joined=''
    if [[ $1 == --?*=* ]]; then
      joined=yes
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
    fi
    taken=2
    case $1 in
      -h | --help | --dry-run) taken=1 ;;
      -c | --config) config=${2-} ;;
      --user) user=${2-} ;;
      -*) if ! declare -F own_option >/dev/null || ! own_option "$1" "${2-}"; then wrong "unknown option $1"; fi ;;
      *) words+=("$1") && shift && continue ;;
    esac
    [[ $taken == 2 || ! $joined ]] || wrong "$1 takes no value, and here has '$2'"
    [[ $taken == 1 || ${2-} ]] || wrong "$1 needs a value"
    case $1 in
      -h | --help) usage && exit ;;
      --dry-run) dry_run=yes ;;
    esac
    shift "$taken"
  done
  [[ $run_dir == /* ]] || wrong "ACU_RUN_DIR is an absolute path, not '$run_dir'"
  take_words "${words[@]}"
}

take_words() {
  if [[ $verbs ]]; then
    verb=${1-}
    [[ $verb && " $verbs " == *" $verb "* ]] || wrong "say what to do, and for which ACU: ${0##*/} ${verbs// /|} N"
    shift
  fi
  if ! [[ ${1-} =~ ^(0|[1-9][0-9]{0,2})$ ]] || (($1 > 255)); then
    wrong "the ACU is a number from 0 to 255, not '${1-}'"
  fi
  (($# == 1)) || wrong "one ACU at a time: what is '$2'?"
  number=$1 name=acu$1 own=$run_dir/$1
  if [[ ! $config && -e /etc/acu/$number.yaml ]]; then config=/etc/acu/$number.yaml; fi
  if [[ $config ]]; then
    [[ -r $config ]] || wrong "$config cannot be read"
    config=$(realpath "$config")
  fi
  choose_user
  if [[ $verb == up || $verb == down ]]; then needs_root; fi
}

needs_root() { [[ $dry_run ]] || ((EUID == 0)) || die "this needs root: sudo ${0} ... (--dry-run does not, and shows what would be done)"; }

# needs COMMAND...: what this script cannot do without.
needs() {
  local command lacks=()
  [[ ! $dry_run ]] || return 0
  for command in "$@"; do have "$command" || lacks+=("$command"); done
  ((${#lacks[@]} == 0)) ||
    die "not found: ${lacks[*]}. Install it, or where it is there, name its folder by PATH (now $PATH; /usr/sbin is for root)"
}

# Who the daemon runs as: whom --user names, else acu where there is one, else who called sudo, else who calls.
choose_user() {
  local candidate entry
  for candidate in "$user" acu "${SUDO_USER-}" "$EUID"; do
    if [[ $candidate ]] && entry=$(getent passwd -- "$candidate"); then break; fi
    [[ ! $user ]] || wrong "there is no user '$user'"
  done
  user=${entry%%:*}
  home=$(cut -d : -f 6 <<<"$entry")
}

# What the script says at its top.
usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }

wrong() {
  say "error: $*"
  usage | grep -E '^ +scripts/' >&2 || true
  say "  (--help tells all)"
  exit 2
}

# Sets $environment: what the daemon, and whatever reads its configuration, has in its environment. Of ours it is only the
# overrides of fields; the home is its user's.
set_environment() {
  local variable
  environment=("PATH=$PATH" "HOME=$home" "USER=$user" "LANG=${LANG:-C.UTF-8}")
  for variable in "${!ACU_@}"; do
    if [[ $variable == *__* ]]; then environment+=("$variable=${!variable}"); fi
  done
}

# field NAME: a field of the configuration, such as gpu.device_id, as `acu config get` prints it (null, true, 1.5).
field() {
  local environment line
  while read -r line; do
    if [[ $line == "$1 "* ]]; then printf '%s\n' "${line#"$1 "}" && return; fi
  done <<<"${ACU_FIELDS-}"
  set_environment
  env -i "${environment[@]}" "$acu" config get "$1" ${config:+-c "$config"}
}

# Reads the fields that concern the machine at once, for this script and those that it calls.
read_fields() {
  local environment shown
  set_environment
  shown=$(env -i "${environment[@]}" "$acu" config show --json ${config:+-c "$config"}) || return
  ACU_FIELDS=$("$(dirname "$(realpath -s "$acu")")/python" -c '
import json, sys
shown = json.load(sys.stdin)
def fields(prefix, value):
    for key, each in value.items():
        if isinstance(each, dict):
            fields(f"{prefix}{key}.", each)
        elif not isinstance(each, str):
            print(prefix + key, json.dumps(each))
        elif "\n" not in each:
            print(prefix + key, each)
for section in ("network", "gpu", "numa", "data_plane", "daemon"):
    fields(section + ".", shown["config"][section])
print("models", json.dumps(shown["config"]["models"]))
print("origin:data_plane.path", shown["origins"].get("data_plane.path", "default"))' <<<"$shown")
  export ACU_FIELDS
}

is_seconds() { [[ $2 =~ ^[0-9]{1,6}$ ]] || wrong "$1 is a number of seconds, not '$2'"; }

have() { command -v "$1" >/dev/null; }

# Doing

# The command as it can be typed.
quoted() {
  local word words=()
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then words+=("$word"); else words+=("${word@Q}"); fi
  done
  printf '%s\n' "${words[*]}"
}

# run CMD ARG...: run it, or print it. While things go down a failure is said and counted, and the rest is done all the same: so
# never in a subshell there. What it starts holds neither our lock nor the report to acu-up open.
run() {
  if [[ $dry_run ]]; then
    quoted "$@"
    return
  fi
  local code=0 text
  "$@" 2>/proc/self/fd/8 7>&- 8>&- 9>&- || code=$?
  text=$(</proc/self/fd/8)
  if ((code)); then
    failed "$(quoted "$@"): ${text:-ended with $code}"
  elif [[ $text ]]; then
    say "$text"
  fi
  return "$code"
}

# put VALUE FILE: write a value into a file, of the kernel or of ours.
put() {
  if [[ $dry_run ]]; then
    printf 'echo %s > %s\n' "$(quoted "$1")" "$(quoted "$2")"
    return
  fi
  local code=0
  printf '%s\n' "$1" | tee "$2" 2>/proc/self/fd/8 >/dev/null 7>&- 8>&- 9>&- || code=$?
  ((code == 0)) || failed "echo $(quoted "$1") > $(quoted "$2"): $(</proc/self/fd/8)"
  return "$code"
}

failed() {
  reason=$*
  if [[ $going == down ]]; then
    say "failed: $reason"
    failures=$((failures + 1))
  fi
}

# Ends with what is wrong: while things go up as the last that is said.
die() {
  reason=$*
  [[ $going == up && ! $dry_run ]] || tell_why "$reason"
  exit 1
}

# Why it ends: to acu-up, which says it when all is taken back, or to whoever looks on.
tell_why() {
  if [[ ${ACU_REPORT-} ]]; then printf '%s why %s\n' "${0##*/}" "$*" >&7; else say "error: $*"; fi
}

# What was before. Names have no slash.

# keep NAME VALUE: remember a value of this ACU, where none is remembered already.
keep() {
  [[ ! -s $own.was/$1 ]] || return 0
  [[ -d $own.was ]] || run mkdir -p "$own.was"
  put "$2" "$own.was/$1"
}

# kept NAME: print it; 1 where there is none.
kept() { [[ -s $own.was/$1 ]] && printf '%s\n' "$(<"$own.was/$1")"; }

forget() { [[ ! -e $own.was/$1 ]] || run rm -f "$own.was/$1"; }

# share NAME VALUE: this ACU wants a value of the box to be another; VALUE is what it is, and is remembered for the first. Who wants
# it is written before, so that no value is left that nobody wants.
share() {
  local folder=$run_dir/host/$1
  if [[ ! -e $folder/by-$number ]]; then
    run mkdir -p "$folder"
    run touch "$folder/by-$number"
  fi
  [[ -s $folder/was ]] || put "$2" "$folder/was"
}

# shares NAME: whether this ACU wants it.
shares() { [[ -e $run_dir/host/$1/by-$number ]]; }

# shared_last NAME: whether no other ACU wants it; prints the value from before. Then give it back, and `leave NAME`.
shared_last() {
  local was=$run_dir/host/$1/was
  [[ -s $was ]] && ! others_share "$1" && printf '%s\n' "$(<"$was")"
}

others_share() {
  local other
  for other in "$run_dir/host/$1"/by-*; do
    if [[ -e $other && $other != */by-$number ]]; then return 0; fi
  done
  return 1
}

# leave NAME: this ACU wants it no more; the last takes what was remembered along.
leave() {
  local folder=$run_dir/host/$1
  if [[ -e $folder/was ]] && ! others_share "$1"; then run rm -f "$folder/was"; fi
  if [[ -e $folder/by-$number ]]; then run rm -f "$folder/by-$number"; fi
}

# Removes the folders of what was remembered, where they are empty, and all of ours with the last ACU.
tidy() {
  local folder folders=()
  if [[ ! $dry_run ]]; then # looked at while no other can take it away
    [[ $held && -d $run_dir ]] || return 0
    [[ $lock == box ]] || hold box 6
  fi
  for folder in "$own.was" "$run_dir/host"; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  if [[ $dry_run ]]; then
    if [[ ! ${ACU_PART-} ]] && ((${#folders[@]})); then
      run find "${folders[@]}" -maxdepth 1 -depth -type d -empty -delete
      run rmdir --ignore-fail-on-non-empty "$run_dir"
    fi
    return
  fi
  if ((${#folders[@]})); then find "${folders[@]}" -maxdepth 1 -depth -type d -empty -delete; fi
  [[ $lock == box || -e $own.was ]] || rm -f "$run_dir/$lock.lock"
  if [[ ! $(find "$run_dir" -maxdepth 1 '(' -name '*.was' -o -name host -o -name '*.lock' ! -name box.lock ')' -print -quit) ]]; then
    rm -f "$run_dir/box.lock"
    rmdir --ignore-fail-on-non-empty "$run_dir"
  fi
  exec 6>&-
}

# hold LOCK DESCRIPTOR: wait until nobody else is at work on it (box: what all ACUs share; a number: that ACU).
hold() {
  local file=$run_dir/$1.lock text
  until [[ -e $file && $file -ef /proc/self/fd/$2 ]]; do
    text=$({ mkdir -p "$run_dir" && : >>"$file"; } 2>&1) ||
      die "nothing can be remembered in $run_dir (${text##*: }). Make it writable for root, or name another folder by ACU_RUN_DIR"
    eval "exec $2>>\"\$file\""
    flock -n "$2" || { say "waiting for another that is at work ($file)" && flock "$2"; }
  done
  held=yes
}

# Going up and down

# begin up|down: from here on nobody else is at work, so what is looked at stays as it is; then go_up or go_down. On the way up, what
# this call began is taken back where a step fails, at HUP, INT, QUIT and TERM, and when nobody reads what is said. On the way down that stops
# nothing.
begin() {
  local scratch
  going=$1
  if [[ $dry_run ]]; then return; fi
  if [[ $going == up ]]; then
    trap take_back EXIT
    trap 'reason=interrupted; exit 130' INT
    trap 'reason=interrupted; exit 131' QUIT
    trap 'reason="its terminal was closed"; exit 129' HUP
    trap 'reason=interrupted; exit 143' TERM
    trap 'reason="nobody reads what this says"; exit 141' PIPE
  else
    trap '' HUP PIPE
  fi
  scratch=$(mktemp) || die "there is no place for a temporary file. Name a folder that can be written by TMPDIR"
  exec 8<>"$scratch"
  rm -f "$scratch"
  hold "$lock" 9
}

# go_up STEP...: do what is not there. Called by acu-up (ACU_REPORT), a line behind descriptor 7 says what was begun, so that it can be
# taken back later, and one why it failed.
go_up() {
  local step
  for step in "$@"; do
    if "${step}_there"; then continue; fi
    begun=("$step" "${begun[@]}")
    "${step}_up" # not within a condition: there, bash would go on over what fails in it
  done
  if [[ ${ACU_REPORT-} ]]; then printf '%s begun %s\n' "${0##*/}" "${begun[*]}" >&7; fi
  [[ $dry_run ]] || ((${#begun[@]})) || tidy # else there is something to remember
  trap - EXIT HUP INT QUIT TERM PIPE
}

take_back() {
  local code=$? step why=${reason:-"the step ${begun[0]-to begin} failed"}
  trap '' HUP INT QUIT TERM PIPE
  trap - EXIT
  set +e
  going=down
  for step in "${begun[@]}"; do "${step}_down"; done
  tidy
  ((code == 0)) || tell_why "$why"
  exit "$code"
}

# go_down STEP...: take all back (or of it what ACU_ONLY names), in reverse, over whatever fails; ends with 1 where something did.
go_down() {
  local step order=()
  for step in "$@"; do
    if [[ " ${ACU_ONLY-$step} " == *" $step "* ]]; then order=("$step" "${order[@]}"); fi
  done
  for step in "${order[@]}"; do
    "${step}_down" || true
  done
  tidy
  if ((failures)); then die "$failures of it failed, as said above; the same command again does the rest."; fi
}

# tell STEP...: say of each whether it is there (the hook STEP_says, where it is defined, prints more). 0 when all are.
tell() {
  local step missing=0 more
  for step in "$@"; do
    more=
    if "${step}_there"; then
      if declare -F "${step}_says" >/dev/null; then more=": $("${step}_says")"; fi
      printf '%s  %-12s there%s\n' "$name" "${step//_/ }" "$more"
    else
      printf '%s  %-12s missing\n' "$name" "${step//_/ }"
      missing=1
    fi
  done
  return "$missing"
}
