# shellcheck shell=bash
# Which disks lie below a folder, and of what kind they are: what disk.sh and cgroup.sh share. Sourced, never run; only reads.
#
# A file system's device leads to its disks through partitions, device mapper (LVM, encryption) and software RAID, by the
# links in sysfs. Disks are named as the kernel does (nvme0n1), without /dev.

sys=${ACU_SYS_ROOT:-/sys}

# A line of a small file; nothing where it cannot be read.
line_of() {
  local text=
  { read -r text <"$1"; } 2>/dev/null || true
  printf '%s' "$text"
}

# The nearest part of path $1 that exists.
existing() {
  local path=$1
  until [[ -e $path ]]; do path=$(dirname "$path"); done
  printf '%s' "$path"
}

# Of the file system that folder $1 lies on, or will: "DEVICE TYPE TARGET OPTIONS". DEVICE is its folder in sysfs, or - where it has
# no device of this box (a network's, tmpfs, overlay).
filesystem_of() {
  local numbers type source target options device=-
  read -r numbers type source target options < <(findmnt -nro MAJ:MIN,FSTYPE,SOURCE,TARGET,OPTIONS -T "$(existing "$1")") || return 1
  source=$(realpath -q "${source%%\[*}" || printf '%s' "$source") # btrfs: /dev/sda2[/volume]; LVM: a link
  if [[ -e $sys/dev/block/$numbers ]]; then
    device=$(realpath "$sys/dev/block/$numbers")
  elif [[ $source == /dev/* && -e $sys/class/block/${source##*/} ]]; then
    device=$(realpath "$sys/class/block/${source##*/}")
  fi
  printf '%s %s %s %s\n' "$device" "$type" "$target" "$options"
}

# The device that reads ahead for a file system on the device with folder $1: itself, or the disk that it is a partition of.
whole() {
  local device=$1
  if [[ -e $device/partition ]]; then device=$(dirname "$device"); fi
  printf '%s\n' "${device##*/}"
}

# The disks below the device with folder $1, a line each.
disks_below() {
  local part found=
  for part in "$1"/slaves/*; do
    if [[ -e $part ]]; then found=yes && disks_below "$(realpath "$part")"; fi
  done
  if [[ ! $found ]]; then whole "$1"; fi
}

# The disks below folder $1, a line each; none where it lies on no disk of this box.
disks_of() {
  local device rest
  # shellcheck disable=SC2034  # what else there is to read
  read -r device rest < <(filesystem_of "$1") || return 0
  if [[ $device != - ]]; then disks_below "$device" | sort -u; fi
}

# nvme, ssd, hdd, or virtual: one whose real disk another system drives.
kind_of() {
  local folder maker
  folder=$(realpath -q "$sys/class/block/$1" || true)
  maker=$(line_of "$sys/class/block/$1/device/vendor")
  if [[ $1 == nvme* ]]; then
    printf 'nvme'
  elif [[ $1 =~ ^(loop|ram|zram|nbd|rbd|vd|xvd) || $folder == */virtio* || $maker =~ ^(QEMU|VMware|Msft|VBOX|Google|Xen) ]]; then
    printf 'virtual'
  elif [[ $(line_of "$sys/class/block/$1/queue/rotational") == 1 ]]; then
    printf 'hdd'
  else
    printf 'ssd'
  fi
}
