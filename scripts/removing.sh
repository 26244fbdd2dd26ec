# shellcheck shell=bash
# How scripts/install --uninstall takes an ACU away, and with the last one the program. Sourced, never run; on placing.sh.
#
# Every step does what is left to do, and so a run that was broken off is finished by the next. Only what is ACU's is removed: its
# folders, and what /etc/acu/.installed names. What people have put there stays without --purge.

: "${number?}" "${incomplete?}" "${root?}" "${prefix?}" "${listed?}" "${units?}" "${dropins?}" "${purge?}" "${others?}"

# Whether no ACU but N is installed, which is told by the drop-in that each has for its engine.
no_other() {
  local file
  for file in "$root$dropins"/acu@*.service.d/{gpu,cpu}.conf; do
    [[ ! -e $file || $file == "$root$dropins/acu@$number.service.d/"* ]] || return 1
  done
}

remove_account() {
  if grep -qs '^acu:' "$root/etc/passwd"; then run userdel ${root:+--prefix "$root"} acu; fi
  if grep -qs '^acu:' "$root/etc/group"; then run groupdel ${root:+--prefix "$root"} acu; fi
}

stop_and_disable() {
  local both=("acu@$number.socket" "acu@$number.service")
  step "stopping acu@$number: running answers may finish"
  if [[ ! -e $root$units/acu@.service ]]; then return; fi
  [[ $root ]] || run systemctl stop "${both[@]}"
  systemctl_there disable "${both[@]}"
  if [[ ! $others ]]; then systemctl_there disable acu.target; fi
}

# What is noted and is this ACU's own, or with the last everything; the last that was made goes first.
remove_noted() {
  local paths=() path at left=()
  [[ ! -f $root$listed ]] || mapfile -t paths <"$root$listed"
  for ((at = ${#paths[@]} - 1; at >= 0; at--)); do
    path=${paths[at]}
    if [[ $others && $path != *@"$number".service.d* ]]; then
      left=("$path" "${left[@]}")
    elif [[ -d $root$path ]]; then
      run rmdir --ignore-fail-on-non-empty "$root$path"
    else
      run rm -f "$root$path"
    fi
  done
  if ((${#left[@]})); then
    write "$root$listed" 644 < <(printf '%s\n' "${left[@]}")
  else
    run rm -f "$root$listed"
  fi
  run rm -f "$root$incomplete"
  [[ $root ]] || run systemctl daemon-reload
}

remove_program() {
  [[ ! $others ]] || return 0
  step "taking away the program and the units"
  ! is_ours || run rm -rf "$root${prefix:?}"
}

# What people have put there: configuration, keys, data; with the last ACU the models and the account.
remove_kept() {
  local other kept=''
  if [[ ! $purge ]]; then
    say "What stays: /etc/acu/$number.yaml and .keys, /var/lib/acu/$number (data), /var/cache/acu (models), user and group acu."
    say "scripts/install $number --uninstall --purge takes that away too."
    return
  fi
  step "taking away configuration, keys and data of ACU $number"
  run rm -rf "$root/etc/acu/$number.yaml" "$root/etc/acu/$number.keys" "$root/var/lib/acu/$number" "$root/var/cache/acu/$number"
  for other in "$root"/etc/acu/*.yaml "$root"/etc/acu/*.keys "$root"/var/lib/acu/*; do
    [[ ! -e $other || $other == "$root/etc/acu/$number".* || $other == "$root/var/lib/acu/$number" ]] || kept+=" ${other#"$root"}"
  done
  if [[ $others || $kept ]]; then
    say "What stays, since other ACUs are or were here:${kept:-} /var/cache/acu (models), user and group acu."
    return
  fi
  run rm -rf "$root/var/lib/acu" "$root/var/cache/acu" "$root/run/acu"
  remove_account
  if [[ -d $root/etc/acu ]]; then run rmdir --ignore-fail-on-non-empty "$root/etc/acu"; fi
}
