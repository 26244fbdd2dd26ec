# shellcheck shell=bash
# What scripts/install puts down, and takes back. Sourced, never run.
#
# Every change goes through here: it is printed with --dry-run, and what takes it back is remembered before it is made, so that a
# run that fails, or is interrupted, leaves the tree as it was. Files and folders outside of those that are ACU's alone are noted in
# /etc/acu/.installed, a path a line, in the order in which they were made; only these are ever removed. The program's folder has a list
# of its own (program.sh).
#
# The sourcing script sets $number, $dropins (where those of units lie), $here (the checkout), $root (the tree, empty for this box), $prefix, $listed, $dry_run and $was (an empty
# folder, which undo_all removes) and has `trap undo_all EXIT`.

: "${number?}" "${dropins?}" "${here?}" "${root?}" "${prefix?}" "${listed?}" "${dry_run?}" "${was?}"
undo=() planned=() touched=''
incomplete=/etc/acu/.incomplete

# run COMMAND...: do it, or with --dry-run say it.
run() {
  if [[ $dry_run ]]; then
    printf '%s\n' "${*@Q}"
  else
    "$@"
  fi
}

# write FILE MODE: what comes on standard input, as a file, which is there as a whole or not at all.
write() {
  if [[ $dry_run ]]; then
    printf "install -m %s /dev/stdin %q <<'EOF'\n%s\nEOF\n" "$2" "$1" "$(cat)"
  else
    if ! { install -m "$2" /dev/stdin "$root$incomplete" && mv -f "$root$incomplete" "$1"; }; then
      rm -f "$root$incomplete"
      return 1
    fi
  fi
}

# Undoing. Each entry is a command, quoted; the last is done first.
undone_by() { undo+=("${*@Q}"); }

undo_all() {
  local code=$? last
  set +e
  trap - EXIT
  trap '' HUP INT PIPE TERM # once begun, it is done to its end, whether anybody looks on or not
  if ((code != 0)) && [[ ! $dry_run ]] && ((${#undo[@]})); then
    step "it failed: what this run did is undone"
    for ((last = ${#undo[@]} - 1; last >= 0; last--)); do
      eval "${undo[last]}" || say "could not: ${undo[last]}"
    done
  fi
  rm -rf "$was"
  exit "$code"
}

# note FILE: remember that this installation made it.
note() {
  [[ $1 != /etc/acu && $1 != /etc/acu/* && $1 != "$prefix"/* ]] || return 0
  if [[ ! $dry_run ]] && ! grep -qsxF "$1" "$root$listed"; then printf '%s\n' "$1" >>"$root$listed"; fi
}

# noting: from now on `note` may write.
noting() {
  folder /etc/acu
  undone_by rm -f "$root$incomplete"
  if [[ -f $root$listed ]]; then
    [[ $dry_run ]] || cp -a "$root$listed" "$was/listed"
    undone_by cp -a "$was/listed" "$root$listed"
  else
    undone_by rm -f "$root$listed"
  fi
}

# folder PATH: with all that it lies in.
folder() {
  [[ ! -d $root$1 && " ${planned[*]} " != *" $1 "* ]] || return 0
  folder "$(dirname "$1")"
  undone_by remove_folder "$root$1"
  if [[ -d $root/etc/acu ]]; then note "$1"; fi # before it is there: a run that is killed leaves nothing unnoted
  run mkdir -m 755 "$root$1"
  planned+=("$1") # --dry-run makes none
}

# remove_folder PATH: where it is there and empty.
remove_folder() { [[ ! -d $1 ]] || rmdir --ignore-fail-on-non-empty "$1"; }

# changing FILE: it will be made or written anew.
changing() {
  local name=${1//\//%}
  case $1 in # for the sourcing script: whether more than this ACU has changed
    "$dropins"/acu*"@$number.service.d"/* | /etc/acu/*) touched=${touched:-own} ;;
    *) touched=all ;;
  esac
  folder "$(dirname "$1")"
  if [[ -e $root$1 ]]; then
    [[ $dry_run ]] || cp -a "$root$1" "$was/$name"
    undone_by cp -a "$was/$name" "$root$1"
  else
    undone_by rm -f "$root$1"
    note "$1"
  fi
}

# place SOURCE FILE [EDIT]: a file of systemd/ with the prefix in it, and with this edit of sed.
place() {
  local edit="s|/opt/acu|$prefix|g;${3-}"
  if is_placed "$@"; then return; fi
  changing "$2"
  if [[ $dry_run ]]; then
    printf 'sed %q %q | install -m 644 /dev/stdin %q\n' "$edit" "$here/systemd/$1" "$root$2"
  else
    sed "$edit" "$here/systemd/$1" >"$was/edited"
    write "$root$2" 644 <"$was/edited"
  fi
}

# is_placed SOURCE FILE [EDIT]: whether it is there as `place` would make it.
is_placed() { [[ -f $here/systemd/$1 && -f $root$2 ]] && cmp -s <(sed "s|/opt/acu|$prefix|g;${3-}" "$here/systemd/$1") "$root$2"; }

# drop FILE: a drop-in that this configuration has no use for.
drop() {
  [[ -e $root$1 ]] || return 0
  changing "$1"
  run rm -f "$root$1"
}

# in_place COMMAND...: run it where the program will run, in the image or here.
in_place() {
  if [[ $root ]]; then
    run chroot "$root" "$@"
  else
    run "$@"
  fi
}

systemctl_there() {
  if [[ $root ]]; then
    run systemctl --root="$root" --quiet "$@"
  else
    run systemctl --quiet "$@"
  fi
}
