# shellcheck shell=bash disable=SC2034,SC2154 # $cpus and $mems are for the caller, $sys and $name from what it has sourced
# Which CPUs and which memory node an ACU gets, by the sections numa and gpu of its configuration. Sourced, after machine.sh and
# disks.sh, never run; only reads. Lists are the kernel's: 0-2,8.

# A list as numbers, and numbers as a list.
numbers() {
  local part
  for part in ${1//,/ }; do seq -s ' ' "${part%-*}" "${part#*-}"; done | tr '\n' ' '
}
ranges() {
  local number first='' last='' text=''
  for number in $(printf '%s\n' "$@" | sort -nu) end; do
    if [[ $last && $number == $((last + 1)) ]]; then
      last=$number
      continue
    fi
    if [[ $first ]]; then text+=,$first; fi
    if [[ $first != "$last" ]]; then text+=-$last; fi
    first=$number last=$number
  done
  printf '%s' "${text#,}"
}

# The numbers of list $1 that are in list $2 too, a line each; all of them where that is empty.
both() {
  local number other
  other=" $(numbers "$2") "
  for number in $(numbers "$1"); do
    if [[ ! $2 || $other == *" $number "* ]]; then printf '%s\n' "$number"; fi
  done
}

cpus_of_node() { line_of "$sys/devices/system/node/node$1/cpulist"; }

# The node of the GPU that is configured; nothing where there is none, and `unknown` where the firmware tells neither it (-1) nor CPUs
# beside the GPU that are all of one node: as the daemon has it (acu/hardware/placement.py).
node_of_gpu() {
  local address folder node beside
  have nvidia-smi || return 0
  address=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader -i "$(field gpu.device_id)" 2>/dev/null) || return 0
  address=${address,,} # 00000000:3B:00.0, and sysfs has 0000:3b:00.0
  folder=$sys/bus/pci/devices/${address: -12}
  node=$(line_of "$folder/numa_node")
  if [[ $node =~ ^[0-9]+$ ]]; then
    if [[ ! $(cpus_of_node "$node") ]]; then node=unknown; fi
    printf '%s' "$node"
    return
  fi
  beside=$(line_of "$folder/local_cpulist")
  for folder in "$sys"/devices/system/node/node[0-9]*; do
    node=${folder##*/node}
    if [[ $beside && $(cpus_of_node "$node") && $(both "$beside" "$(cpus_of_node "$node")" | wc -l) == $(both "$beside" '' | wc -l) ]]; then
      printf '%s' "$node"
      return
    fi
  done
  printf 'unknown'
}

# The node with the most free memory among those with CPUs.
freest_node() {
  local folder free best='' most=-1
  for folder in "$sys"/devices/system/node/node[0-9]*; do
    free=$(awk '/MemFree/ { print $4 }' "$folder/meminfo")
    if [[ $(line_of "$folder/cpulist") ]] && ((free > most)); then best=${folder##*/node} most=$free; fi
  done
  printf '%s' "$best"
}

# The node of the configuration; nothing where nothing is to be bound, or the kernel knows no nodes. $1 is the node from before: what
# is free differs from one minute to the next. A GPU of which nobody tells the node may be on the other one: then nothing is bound.
wanted_node() {
  local node
  node=$(field numa.node)
  if [[ $node == null || ! -d $sys/devices/system/node/node0 ]]; then return; fi
  if [[ $node == auto ]]; then
    node=$(node_of_gpu)
    if [[ $node == unknown ]]; then
      [[ ! -d $sys/devices/system/node/node1 ]] ||
        say "The firmware does not tell the NUMA node of GPU $(field gpu.device_id): nothing is bound to a node. Name it by numa.node."
      return
    fi
    if [[ ! $node && $1 =~ ^[0-9]+$ ]]; then node=$1; fi
    printf '%s' "${node:-$(freest_node)}"
  else
    [[ $(cpus_of_node "$node") ]] || die "numa.node: there is no node $node with CPUs; see $sys/devices/system/node"
    printf '%s' "$node"
  fi
}

# CPUs $@ in the order in which they are given away, a line each: the first thread of every core, then the second ones.
by_thread() {
  local cpu sibling rank
  for cpu in "$@"; do
    rank=0
    for sibling in $(numbers "$(line_of "$sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list")"); do
      if ((sibling < cpu)); then rank=$((rank + 1)); fi
    done
    printf '%s %s\n' "$rank" "$cpu"
  done | sort -n -k 1,1 -k 2,2 | cut -d ' ' -f 2
}

# choose_cpus SLICE CPUS MEMS NODE: sets $cpus and $mems, lists, of what may be used (CPUS, MEMS), for the ACU that gets the SLICE-th
# part where numa.cpus is set. NODE is the one from before, if any. Empty: as the box has them.
choose_cpus() {
  local slice=$1 usable_cpus=$2 usable_mems=$3 node count all order from
  node=$(wanted_node "$4")
  count=$(field numa.cpus)
  mems=${node:-$usable_mems}
  if [[ $node ]]; then
    mapfile -t all < <(both "$(cpus_of_node "$node")" "$usable_cpus")
  else
    mapfile -t all < <(both "$usable_cpus" '')
  fi
  cpus=$(ranges "${all[@]}")
  if [[ $count == null ]]; then return; fi
  from=$((slice * count))
  ((from + count <= ${#all[@]})) ||
    die "numa.cpus: $count for each ACU are too many for $name: ${node:+node $node has }${#all[@]} CPUs ($cpus), enough for $((${#all[@]} / count)) ACUs, counted from 0. Lower numa.cpus, or choose a part by --slice."
  mapfile -t order < <(by_thread "${all[@]}")
  cpus=$(ranges "${order[@]:from:count}")
}
