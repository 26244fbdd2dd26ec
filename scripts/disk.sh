#!/usr/bin/env bash
# The disks below the models and the data of one ACU: no I/O scheduler for NVMe, which schedules by itself, and more read-ahead
# where models lie. Both as they were again when the last ACU that wants them goes. File systems are never changed: what would help
# is said. Disks that another system drives (virtual ones) are left as they are.
#
#   scripts/disk.sh up|down|status N [--config FILE] [--read-ahead KB] [--dry-run]
#
#   --read-ahead KB     read-ahead of the disk with the models, in KiB (2048; what is more already stays; 0: as it is)
#
# ACU_SYS_ROOT (/sys) is where disks are looked up, ACU_RUN_DIR (/run/acu) where values from before are remembered.
set -euo pipefail
here=$(dirname "$(realpath "$0")")/..
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"
# shellcheck source=scripts/disks.sh
source "$here/scripts/disks.sh"

read_ahead_kb=2048
advice=()

own_option() {
  case $1 in
    --read-ahead)
      [[ $2 =~ ^[0-9]{1,7}$ ]] || wrong "--read-ahead is a number of KiB, not '$2'"
      read_ahead_kb=$((10#$2))
      ;;
    *) return 1 ;;
  esac
}

queue() { printf '%s/block/%s/queue/%s' "$sys" "$1" "$2"; }

# What is known of the places: $nvmes, the disks of that kind below any of them, and $ahead, the devices that read ahead for models.
look() {
  local purpose path disk nvme=()
  ahead=''
  for purpose in models data; do
    if [[ $purpose == models ]]; then path=$(field gpu.model_cache_dir); else path=$(field data_plane.path); fi
    look_at "$purpose" "$path"
    for disk in $(disks_of "$path"); do
      if [[ $(kind_of "$disk") == nvme ]]; then nvme+=("$disk"); fi
    done
  done
  nvmes=$(printf '%s\n' "${nvme[@]}" | sort -u)
}

# One place: says where it lies, and collects what would help.
look_at() {
  local purpose=$1 path=$2 device type target options disk kind disks='' kinds=''
  read -r device type target options < <(filesystem_of "$path") || die "$path: findmnt does not find its file system"
  if [[ $device != - ]]; then
    for disk in $(disks_below "$device" | sort -u); do
      kind=$(kind_of "$disk")
      disks+=" $disk ($kind)" kinds+=" $kind"
    done
    if [[ $purpose == models && $kinds != *virtual* ]]; then ahead=$(whole "$device"); fi
  fi
  say "$purpose: $path: $type at $target on${disks:- no disk of this box}"
  advise "$purpose" "$path" "$type" "$target" ",$options," "$kinds"
}

# What would help, said once for a file system that holds both.
advise() {
  local purpose=$1 path=$2 type=$3 target=$4 options=$5 kinds=$6
  case $type in
    nfs | nfs4 | cifs | smb3 | smbfs | ceph | glusterfs | lustre | afs | 9p | virtiofs | fuse.sshfs | fuse.s3fs | fuse.rclone | \
      fuse.glusterfs | fuse.ceph)
      add_advice "$path ($purpose) is on a file system of the network ($type): every start waits for it, and what is written is as safe as it is. Use a disk of this box."
      ;;
    tmpfs | ramfs) add_advice "$path ($purpose) is in memory ($type): it takes room from the models, and a restart of the box loses it." ;;
    overlay) add_advice "$path ($purpose) is on an overlay: its disk cannot be seen from here. Mount a disk there." ;;
    xfs) advise_xfs "$purpose" "$target" "$options" ;;
  esac
  if [[ $kinds == *hdd* ]]; then
    add_advice "$target is on a spinning disk: a 7B model takes minutes to load, not seconds. Use an NVMe disk."
  elif [[ $kinds == *virtual* ]]; then
    add_advice "$target is on a virtual disk, which its host schedules: nothing is changed."
  fi
}

advise_xfs() {
  local purpose=$1 target=$2 options=$3
  if [[ $options != *,noatime,* ]]; then
    add_advice "$target (XFS) is mounted without noatime: reads cause writes. mount -o remount,noatime $target, and in /etc/fstab."
  fi
  if [[ $purpose == models && $options != *,allocsize=* ]]; then
    add_advice "$target (XFS) has no allocsize: allocsize=64m in /etc/fstab keeps weight files in few pieces, from the next mount on."
  fi
  if have xfs_info && [[ $(xfs_info "$target" 2>/dev/null) == *reflink=0* ]]; then
    add_advice "$target (XFS) was made without reflink: each copy takes its whole size. mkfs.xfs -m reflink=1, when it is made anew."
  fi
}

add_advice() {
  local line
  for line in "${advice[@]}"; do
    if [[ $line == "$1" ]]; then return; fi
  done
  advice+=("$1")
}

# Steps. A value that is as it should be already is nobody's change, but where another ACU made it so, this one wants it too.

wanted_by_none() { [[ ! -s $run_dir/host/$1/was ]]; }

scheduler_now() { sed 's/.*\[\(.*\)\].*/\1/' "$(queue "$1" scheduler)"; }

has_no_scheduler() { [[ $(scheduler_now "$1") == none ]] && { shares "scheduler.$1" || wanted_by_none "scheduler.$1"; }; }

scheduler_there() {
  local disk
  for disk in $nvmes; do has_no_scheduler "$disk" || return 1; done
}

scheduler_up() {
  local disk
  for disk in $nvmes; do
    if has_no_scheduler "$disk"; then continue; fi
    share "scheduler.$disk" "$(scheduler_now "$disk")"
    if [[ $(scheduler_now "$disk") != none ]]; then put none "$(queue "$disk" scheduler)"; fi
  done
}

scheduler_down() { give_back scheduler; }

scheduler_says() { printf '%s' "${nvmes:+none for }" "${nvmes:-no NVMe below models and data}" | tr '\n' ' '; }

reads_ahead() {
  ((read_ahead_kb <= $(<"$(queue "$1" read_ahead_kb)"))) && { shares "read_ahead.$1" || wanted_by_none "read_ahead.$1"; }
}

read_ahead_there() { [[ ! $ahead ]] || ((read_ahead_kb == 0)) || reads_ahead "$ahead"; }

read_ahead_up() {
  local before
  before=$(<"$(queue "$ahead" read_ahead_kb)")
  share "read_ahead.$ahead" "$before"
  if ((before < read_ahead_kb)); then put "$read_ahead_kb" "$(queue "$ahead" read_ahead_kb)"; fi
}

read_ahead_down() { give_back read_ahead; }

read_ahead_says() { if [[ $ahead ]]; then printf '%s KiB for %s' "$(<"$(queue "$ahead" read_ahead_kb)")" "$ahead"; else printf 'as it is'; fi; }

# Give back value $1 (scheduler or read_ahead) of every disk for which this ACU wanted another.
give_back() {
  local mark shared disk before file
  for mark in "$run_dir/host/$1".*/by-"$number"; do
    [[ -e $mark ]] || continue
    shared=$(basename "$(dirname "$mark")") disk=${mark#"$run_dir/host/$1."}
    disk=${disk%/by-*}
    if [[ $1 == scheduler ]]; then file=$(queue "$disk" scheduler); else file=$(queue "$disk" read_ahead_kb); fi
    if before=$(shared_last "$shared") && [[ -e $file ]]; then
      if [[ $1 == scheduler && " none $before " != *" $(scheduler_now "$disk") "* ]]; then
        say "$name: somebody has set the scheduler of $disk since ($(scheduler_now "$disk")): it stays."
      else
        put "$before" "$file" || continue
      fi
    fi
    leave "$shared"
  done
}

take_arguments "$@"
if [[ $verb != down && ! ${ACU_FIELDS-} ]]; then read_fields; fi
case $verb in
  up)
    begin up
    look
    go_up scheduler read_ahead
    ;;
  down)
    begin down
    go_down scheduler read_ahead
    ;;
  status)
    look
    code=0
    tell scheduler read_ahead || code=$?
    ;;
esac
for line in "${advice[@]}"; do say "advice: $line"; done
exit "${code:-0}"
