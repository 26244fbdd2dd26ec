# shellcheck shell=bash
# How scripts/install --uninstall takes an ACU away, and with the last one the program. Sourced, never run; on placing.sh.
#
# Every step does what is left to do, and so a run that was broken off is finished by the next. Only what is ACU's is removed: its
# data, and what /etc/acu/.installed, PREFIX/.acu-installed and /etc/acu/.account name. What people have put there stays without --purge,
# and what is not ACU's stays with it, and is named.

# $prefix, $parts, and $at and $marker (program.sh) are there when these functions are called.
# shellcheck disable=SC2154
: "${number?}" "${incomplete?}" "${root?}" "${listed?}" "${made?}" "${units?}" "${dropins?}" "${purge?}" "${others?}"

# Whether no ACU but N is installed or runs: that is told by the drop-in that each has for its engine, by the links, and by systemd.
no_other() {
  local file
  for file in "$root$dropins"/{acu@*.service.d/{gpu,cpu}.conf,acu.target.wants/acu@*.service}; do
    [[ ! -e $file && ! -L $file || $file == *"/acu@$number.service"* ]] || return 1
  done
  [[ $root ]] || ! systemctl list-units --plain --no-legend --state=active,activating,deactivating 'acu@*' 2>/dev/null |
    grep -v "^acu@$number\\." | grep -q .
}

# owns_account user|group: whether scripts/install made it. Without a list: of before there was one, by the words it gave the user.
owns_account() {
  if [[ -f $root$made ]]; then grep -qx "$1" "$root$made"; else [[ $(entry passwd) == *:'Agent Compute Units:/var/lib/acu:'* ]]; fi
}

# remove_account [user] [group]
remove_account() {
  local number_of_group
  number_of_group=$(entry group | cut -d : -f 3)
  if [[ " $* " == *" user "* && $(entry passwd) ]]; then
    run userdel ${root:+--prefix "$root"} acu || say "The user acu stays: userdel could not remove it."
  fi
  if [[ " $* " == *" group "* ]]; then
    if [[ $(entry group) ]]; then run groupdel ${root:+--prefix "$root"} acu || say "The group acu stays: groupdel could not remove it."; fi
  elif [[ $number_of_group && ! $(entry group) ]]; then # it was there before the user, with which userdel took it away
    run groupadd ${root:+--prefix "$root"} -g "$number_of_group" acu
  fi
}

stop_and_disable() {
  local both=("acu@$number.socket" "acu@$number.service") more=("acu-host@$number.service")
  [[ $others ]] || more+=(acu.slice acu.target)
  step "stopping acu@$number: running answers may finish"
  if [[ ! -e $root$units/acu@.service ]]; then return; fi
  [[ $root ]] || run systemctl stop "${both[@]}" "${more[@]}" # the host puts back what it changed, with the program
  systemctl_there disable "${both[@]}"
  if [[ ! $others ]]; then systemctl_there disable acu.target; fi
}

# What is noted and is this ACU's own, or with the last everything; the last that was made goes first.
remove_noted() {
  local paths=() path last left=()
  [[ ! -f $root$listed ]] || mapfile -t paths <"$root$listed"
  for ((last = ${#paths[@]} - 1; last >= 0; last--)); do
    path=${paths[last]}
    if [[ $others && $path != *@"$number".service.d* ]]; then
      left=("$path" "${left[@]}")
    elif [[ -d $root$path && ! -L $root$path ]]; then
      run rmdir --ignore-fail-on-non-empty "$root$path"
      [[ $dry_run || ! -d $root$path || $path != "$dropins"/*.d ]] ||
        say "What others have put into $root$path stays: $(ls -Am "$root$path")."
    elif [[ $path == /* && $path != "$prefix" ]]; then
      run rm -f "$root$path"
    fi
  done
  if ((${#left[@]})); then
    write "$root$listed" 644 < <(printf '%s\n' "${left[@]}")
  else
    run rm -f "$root$listed"
  fi
  run rm -f "$root$incomplete"
  if [[ ! $root ]]; then
    run systemctl daemon-reload
    run systemctl reset-failed "acu@$number.*" "acu-host@$number.*"
  fi
}

remove_program() {
  [[ ! $others ]] || return 0
  step "taking away the program and the units"
  if [[ ! $dry_run ]] && ! is_ours && is_former; then mark_former; fi
  if [[ $dry_run ]]; then
    printf '# what %q names is removed from %q, with .venv and bytecode\n' "$at/$marker" "$at"
  elif is_ours; then
    program_out
  elif [[ -e $at ]]; then
    say "$at is not what scripts/install made (it has no $marker): it stays as it is."
  fi
}

# clear_out FOLDER: with all that is in it on the same disk.
clear_out() {
  if [[ -L $root$1 ]]; then
    say "$root$1 stays, with what it leads to: $(readlink "$root$1")."
  elif [[ -e $root$1 ]]; then
    run rm -rf --one-file-system "$root$1" || say "$root$1 stays, emptied: something is mounted there."
  fi
}

# What people have put there: configuration, keys, data; with the last ACU the models and the account.
remove_kept() {
  local other kept='' words=()
  if [[ ! $purge ]]; then
    say "What stays: /etc/acu/$number.yaml and .keys, /var/lib/acu/$number (data), /var/cache/acu (models), user and group acu."
    say "scripts/install $number --uninstall --purge takes that away too."
    return
  fi
  step "taking away configuration, keys and data of ACU $number"
  run rm -f "$root/etc/acu/$number.yaml" "$root/etc/acu/$number.keys"
  clear_out "/var/lib/acu/$number"
  clear_out "/var/cache/acu/$number"
  while IFS= read -r other; do
    [[ $other == "$root/etc/acu/$number".* || $other == "$root/var/lib/acu/$number" ]] || kept+=" ${other#"$root"}"
  done < <(find "$root/etc/acu" "$root/var/lib/acu" -mindepth 1 -maxdepth 1 ! -name .account ! -name .installed 2>/dev/null | sort)
  if [[ $others || $kept ]]; then
    say "What stays, since other ACUs are or were here:${kept:-} /var/cache/acu (models), user and group acu."
    return
  fi
  clear_out /var/lib/acu
  clear_out /var/cache/acu
  run rm -f "$root/run/acu/$number.sock" "$root/run/acu/acu.sock"
  for other in /run/acu /run/acu-daemon /run/acu-host; do # what acu-up remembers there is not this one's
    [[ ! -d $root$other ]] || run rmdir --ignore-fail-on-non-empty "$root$other"
  done
  for other in user group; do
    if owns_account "$other"; then words+=("$other"); elif [[ ! $dry_run ]]; then say "The $other acu was there before, and stays."; fi
  done
  remove_account "${words[@]}"
  run rm -f "$root$made"
  if [[ -d $root/etc/acu ]]; then run rmdir --ignore-fail-on-non-empty "$root/etc/acu"; fi
}
