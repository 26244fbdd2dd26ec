#!/usr/bin/env bash
# Prints the drop-in that binds acu@N.service to its part of the machine, by the sections numa and gpu of its configuration, as
# scripts/cgroup.sh would choose it: prefer the memory of the node (more than it has does not kill), and its CPUs, or of
# these numa.cpus for each ACU, so that two share none; no more memory than numa.memory_mb. Prints nothing where nothing is to be
# bound. scripts/install puts it beside the unit.
#
#   scripts/binding.sh N [--config FILE] [--slice K]
#
#   --slice K    which CPUs, where numa.cpus is set: the K-th that many (N)
#
# ACU_SYS_ROOT (/sys) is where nodes and CPUs are looked up.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=scripts/machine.sh
source "$here/machine.sh"
# shellcheck source=scripts/disks.sh
source "$here/disks.sh"
# shellcheck source=scripts/cpus.sh
source "$here/cpus.sh"

own_option() {
  [[ $1 == --slice ]] || return 1
  if [[ ! $2 =~ ^[0-9]{1,3}$ ]] || ((10#$2 > 255)); then wrong "--slice is a number up to 255, not '$2'"; fi
  slice=$((10#$2))
}

verbs='' slice=''
cpus='' mems='' lines=()
take_arguments "$@"
online=$(line_of "$sys/devices/system/cpu/online")
choose_cpus "${slice:-$number}" "$online" "$(line_of "$sys/devices/system/node/online")" ''
# A list of several nodes says that there is none to be bound to; and on a box with one, all memory is near.
if [[ $mems =~ ^[0-9]+$ && -d $sys/devices/system/node/node1 ]]; then lines+=("NUMAPolicy=preferred" "NUMAMask=$mems"); fi
if [[ $cpus != "$online" ]]; then lines+=("AllowedCPUs=$cpus"); fi
memory=$(field numa.memory_mb)
if [[ $memory != null ]]; then lines+=("MemoryMax=${memory}M"); fi
((${#lines[@]})) || exit 0
printf '%s\n' "# By scripts/install, from numa and gpu in ${config:-the defaults}; run it again when these have changed." "[Service]" "${lines[@]}"
