# shellcheck shell=bash
# What the scripts share: how they talk, which Python they take, and where packages come from. Sourced, never run.

started=$SECONDS
tell_every_s=5

# "[ 12 s] text": a step of something long, with the time since the script began.
step() { printf '[%3d s] %s\n' "$((SECONDS - started))" "$*" >&2; }
say() { printf '%s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# attended MEASURE COMMAND...: run a command whose output matters only when it fails, and then in full. While it runs,
# what the function MEASURE prints is told: on a terminal in one line that changes every second, elsewhere in a line now and
# then. MEASURE finds the output so far behind descriptor $output.
attended() {
  local measure=$1 code=0 output alive file
  shift
  file=$(mktemp)
  exec {output}<>"$file"
  rm -f "$file"
  # The pipe's end tells the teller to stop, however this process ends: it leaves nothing behind.
  exec {alive}> >(tell_while_open "$measure")
  local teller=$!
  "$@" >&"$output" 2>&1 {alive}>&- || code=$?
  exec {alive}>&-
  wait "$teller" || true
  ((code == 0)) || cat "/proc/self/fd/$output" >&2
  exec {output}>&-
  return "$code"
}

tell_while_open() {
  local code every=$tell_every_s on_terminal=
  if [[ -t 2 ]]; then every=1 on_terminal=yes; fi
  while code=0 && { read -rt "$every" || code=$?; } && ((code > 128)); do
    if [[ $on_terminal ]]; then
      printf '\r\e[K[%3d s]   %s' "$((SECONDS - started))" "$("$1" | cut -c "1-$((${COLUMNS:-80} - 12))")" >&2
    else
      step "  $("$1")"
    fi
  done
  if [[ $on_terminal ]]; then printf '\r\e[K' >&2; fi
}

# Measures of what is attended: its last line, or only that it goes on.
last_line() { tail -n 1 "/proc/self/fd/$output"; }
at_work() { printf 'at work\n'; }

# Whether $1 is a Python that ACU runs on.
python_fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

# The first fitting Python on PATH; fails if there is none.
find_python() {
  local name
  for name in python3 python3.12 python3.11 python3.13 python; do
    if command -v "$name" >/dev/null && python_fits "$name"; then
      command -v "$name"
      return
    fi
  done
  return 1
}

# uv does not read pip's configuration: hand it over, so that whoever has set up pip (mirror, proxy, wheels on a disk) need
# set up nothing else. What is set for uv itself wins. $1 is the Python whose pip to ask. Also sets $extra_indexes.
export_pip_sources() {
  local assignments
  # shellcheck disable=SC2034  # for the caller
  extra_indexes=
  assignments=$("$1" -m pip config list | "$1" "$(dirname "${BASH_SOURCE[0]}")/pip_sources.py")
  eval "$assignments"
}

# How to install packages here: $1 as apt names them, $2 as dnf does.
how_to_get() {
  if command -v apt-get >/dev/null; then
    printf 'Install with: sudo apt-get install %s' "$1"
  elif command -v dnf >/dev/null; then
    printf 'Install with: sudo dnf install %s' "$2"
  else
    printf 'Install it (Debian and Ubuntu: %s; Fedora and RHEL: %s)' "$1" "$2"
  fi
}
