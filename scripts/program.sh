# shellcheck shell=bash
# The program in its folder (--prefix): how scripts/install puts it there, and takes it out. Sourced, never run; on placing.sh.
#
# PREFIX/.acu-installed, the marker, names each file and folder that was put there, a path a line. What it does not name is somebody
# else's, and is neither replaced nor removed, wherever it lies; a folder that holds anything and has no marker is refused. Beside what is
# named only what the program makes itself is its own: .venv, .venv-bench and __pycache__.
#
# An upgrade copies the new to .incoming, lets the marker name old and new, moves the old to .outgoing (beside its own marker), and the new
# in. While .outgoing is there, this can be turned back. In the end it becomes .leaving, what is somebody else's in it goes back to its
# place, and the rest goes. What was killed before is turned back by the next run, and after it is finished.

: "${here?}" "${root?}" "${prefix?}" "${verb?}" "${dry_run?}" "${environment?}" "${installed?}" "${parts?}"
marker=.acu-installed
at=$root$prefix there=() fresh=''

is_ours() { [[ -f $at/$marker ]]; }

# Whether ACU may lie there: its own folder, or an empty one, also where the first marker was being written.
is_free() { [[ ! -e $at ]] || { [[ -d $at ]] && [[ ! $(ls -A "$at") || $(ls -A "$at") == "$marker.new" ]]; }; }

# A program of before there was a marker: the units lead to it.
is_former() { [[ $installed == "$prefix" && -f $at/pyproject.toml ]] && grep -qx 'name = "acu"' "$at/pyproject.toml"; }

# What speaks against the folder, into $problems.
check_prefix() {
  local real
  if [[ ! $prefix =~ ^/[A-Za-z0-9._+@/-]*$ ]]; then
    problems+=("--prefix: $(printf %q "$prefix") is no absolute path of letters, digits and . _ + @ - (no spaces).")
    return
  fi
  [[ $verb == install ]] || return 0
  real=$(realpath -m "$at")
  if [[ ${real#"$root"} =~ ^/(home|root|tmp|var/tmp|run|dev|proc|sys)(/|$) ]]; then
    problems+=("--prefix: $real is out of the daemon's sight, or gone with the next start of the box; choose another, as /opt/acu.")
  elif [[ ${real#"$root"}/ =~ ^/(etc|boot|var/lib/acu|var/cache/acu)/ ]]; then
    problems+=("--prefix: $real is for other things; choose another, as /opt/acu.")
  elif is_ours || is_former; then
    return
  elif ! is_free; then
    problems+=("--prefix: $at holds something else, and nothing is put beside it; choose a folder of ACU's own, as ${prefix%/}/acu.")
  elif [[ -d $at && $prefix != /*/* ]]; then
    problems+=("--prefix: $at is for all programs; choose a folder of ACU's own, as ${prefix%/}/acu.")
  elif [[ -d $at && $(stat -Lc %u "$at") != 0 ]]; then
    problems+=("--prefix: $at belongs to $(stat -Lc %U "$at"), who could change what root runs: chown root $at")
  elif [[ $real/ == "$here"/* ]]; then
    problems+=("--prefix: $at lies in the checkout that is to be copied; choose another, as /opt/acu.")
  fi
}

mark_former() {
  local names=()
  mapfile -t names < <(cd "$at" && ls -d "${parts[@]}" 2>/dev/null)
  contents "$at" "${names[@]}" | mark "$at"
}

# mark FOLDER: what comes on standard input, as its marker.
mark() {
  { printf '# Put here by scripts/install of ACU. What stands not in this list is not its own, and stays.\n' && LC_ALL=C sort -u; } >"$1/$marker.new"
  mv -f "$1/$marker.new" "$1/$marker"
}

# named MARKER: what it names, a line each.
named() { sed '/^#/d' "$1"; }

# contents FOLDER PATH...: what lies there, but for bytecode, a line each.
contents() { (cd "$1" && find "${@:2}" -name __pycache__ -prune -o -print); }

# split own|other FOLDER: what its marker names and is there, or what is there besides, below it; each ended by a NUL, what lies in a
# folder after that.
split() {
  local which=-12
  [[ $1 == own ]] || which=-23
  LC_ALL=C comm -z "$which" \
    <(cd "$2" && find . -xdev -mindepth 1 '(' -name __pycache__ -o -path ./.venv -o -path ./.venv-bench -o -path ./.incoming \
      -o -path ./.outgoing -o -path ./.leaving -o -path "./$marker" -o -path "./$marker.new" ')' -prune -o -printf '%P\0' | LC_ALL=C sort -z) \
    <(named "$2/$marker" | tr '\n' '\0' | LC_ALL=C sort -zu)
}

# take_out [NAME]: what is named, or of it what is called NAME or lies below it; folders where nothing else is in them.
take_out() {
  local path files=() folders=()
  while IFS= read -rd '' path; do
    [[ ! ${1-} || $path == "$1" || $path == "$1"/* ]] || continue
    if [[ -d $at/$path && ! -L $at/$path ]]; then folders=("$at/$path" "${folders[@]}"); else files+=("$at/$path"); fi
  done < <(split own "$at")
  ((${#files[@]} == 0)) || printf '%s\0' "${files[@]}" | xargs -0 rm -f --
  ((${#folders[@]})) || return 0
  printf '%s/__pycache__\0' "${folders[@]}" | xargs -0 rm -rf --
  printf '%s\0' "${folders[@]}" | xargs -0 rmdir --ignore-fail-on-non-empty --
}

# All of the program that is in the folder, and the marker last; says what stays.
program_out() {
  local name other=()
  is_ours || return 0
  former_back
  settle
  take_out
  for name in .venv .venv-bench; do [[ -L $at/$name ]] || rm -rf --one-file-system "${at:?}/$name"; done
  rm -rf "$at/.incoming" "$at/$marker.new"
  mapfile -t other < <(ls -A "$at")
  rm -f "$at/$marker"
  ((${#other[@]} == 1)) || say "What others have put into $at stays: $(ls -Am "$at"). Before ACU can lie there again, move it away."
}

program() {
  local name
  step "the program, in $prefix"
  mapfile -t there < <(cd "$here" && ls -d "${parts[@]}" 2>/dev/null)
  if [[ ! $dry_run ]]; then
    if ! is_ours && is_former; then mark_former; fi
    if is_ours; then
      former_back
      settle
    fi
  fi
  is_ours && [[ -f $at/pyproject.toml ]] || fresh=yes
  if same_program; then return; fi
  for name in "${there[@]}"; do
    [[ ! -e $at/$name && ! -L $at/$name ]] || [[ $dry_run ]] || grep -qsxF "$name" "$at/$marker" ||
      die "$at/$name is not ACU's, and stands where a part of this version goes: move it away."
  done
  folder "$prefix"
  if [[ $dry_run ]]; then
    printf '# %s to %q, in the place of what %q names\n' "${there[*]}" "$at" "$at/$marker"
    return
  fi
  undone_by rm -f "$at/$marker.new"
  if [[ $fresh ]]; then
    undone_by program_out
    is_ours || mark "$at" </dev/null
    take_out # what a run that was killed has left
  fi
  undone_by rm -rf "$at/.incoming"
  rm -rf "$at/.incoming"
  mkdir "$at/.incoming"
  cp -R --no-preserve=ownership "${there[@]/#/$here/}" "$at/.incoming"
  find "$at/.incoming" -name __pycache__ -prune -exec rm -rf '{}' +
  chmod -R u+rwX,go+rX,go-w "$at/.incoming"
  stop_running
  if [[ ! $fresh ]]; then
    undone_by program_back # before what was stopped is started again
    mkdir "$at/.outgoing"
    named "$at/$marker" | mark "$at/.outgoing"
  fi
  { named "$at/$marker" && wanted; } | mark "$at"
  if [[ ! $fresh ]]; then
    tops "$at/.outgoing/$marker" | while IFS= read -r name; do
      [[ ! -e $at/$name && ! -L $at/$name ]] || mv -t "$at/.outgoing" "$at/$name"
    done
  fi
  find "$at/.incoming" -mindepth 1 -maxdepth 1 -exec mv -t "$at" '{}' +
  rmdir "$at/.incoming"
}

wanted() { contents "$here" "${there[@]}"; }

# tops MARKER: what it names that lies right in the folder.
tops() { named "$1" | grep -v / || true; }

# Whether what is installed is what would be.
same_program() {
  if [[ $here -ef $at ]]; then return; fi
  [[ ! $fresh ]] && cmp -s <(wanted | LC_ALL=C sort) <(named "$at/$marker") && cmp -s <(sums "$here") <(sums "$at")
}

# sums FOLDER: of the files that this version has.
sums() {
  (cd "$here" && find "${there[@]}" -name __pycache__ -prune -o -type f -print0) |
    (cd "$1" && LC_ALL=C sort -z | xargs -0 sha256sum 2>/dev/null)
}

# The former program, as it was before this run, whatever of it was moved already; and its environment.
program_back() {
  former_back
  [[ ! $environment ]] || in_place "$prefix/scripts/setup"
}

former_back() {
  local name outgoing=$at/.outgoing
  [[ -d $outgoing ]] || return 0
  if [[ -f $outgoing/$marker ]]; then # else nothing was moved yet
    tops "$at/$marker" | while IFS= read -r name; do
      if [[ -e $outgoing/$name || -L $outgoing/$name ]] || ! grep -qxF "$name" "$outgoing/$marker"; then
        take_out "$name"
        [[ ! -e $at/$name && ! -L $at/$name ]] || keep_beside "$at/$name" "$at/$name"
      fi
    done
    find "$outgoing" -mindepth 1 -maxdepth 1 ! -name "$marker" -exec mv -t "$at" '{}' + || return 1 # the list stays with what it names
    mv -f "$outgoing/$marker" "$at/$marker"
  fi
  rm -f "$outgoing/$marker.new"
  rmdir "$outgoing"
}

# keep_beside FILE PLACE: somebody else's, whose place is taken.
keep_beside() {
  say "$2 is not ACU's, and its place is taken: it stays as $2.kept."
  mv --backup=numbered -T "$1" "$2.kept"
}

# The new program stays: what was before goes, but for what others have put there. 1 where something of it could not be done; whatever
# calls it, nothing is removed then.
settle() {
  local path leaving=$at/.leaving
  [[ ! -d $at/.outgoing ]] || mv -T "$at/.outgoing" "$leaving" || return 1
  [[ -d $leaving ]] || return 0
  if [[ -f $leaving/$marker ]]; then # the last of it to go
    while IFS= read -rd '' path; do
      if [[ ! -e $leaving/$path && ! -L $leaving/$path ]]; then
        continue # it went with its folder
      elif [[ ! -e $at/$path && ! -L $at/$path ]]; then
        mkdir -p "$(dirname "$at/$path")" && mv -T "$leaving/$path" "$at/$path" || return 1
      elif [[ ! -d $leaving/$path || -L $leaving/$path || ! -d $at/$path ]]; then
        keep_beside "$leaving/$path" "$at/$path" || return 1
      fi
    done < <(split other "$leaving")
    find "$leaving" -mindepth 1 -maxdepth 1 ! -name "$marker" -exec rm -rf --one-file-system '{}' + || return 1
  fi
  rm -rf --one-file-system "$leaving"
}

# After all else: what the marker names is what is there.
program_stays() {
  is_ours && [[ ! $dry_run && ! $here -ef $at ]] || return 0
  settle || return 1
  cmp -s <(wanted | LC_ALL=C sort) <(named "$at/$marker") || wanted | mark "$at"
}
