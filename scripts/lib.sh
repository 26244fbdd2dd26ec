# shellcheck shell=bash
# What the scripts share: how they talk, which Python they take, and where packages come from. Sourced, never run.

started=$SECONDS

# "[ 12 s] text": a step of something long, with the time since the script began.
step() { printf '[%3d s] %s\n' "$((SECONDS - started))" "$*" >&2; }
say() { printf '%s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

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
