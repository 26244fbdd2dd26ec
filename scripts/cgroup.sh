#!/usr/bin/env bash
# The control group acuN of one ACU: its CPUs and memory nodes, how much memory, which devices, how many processes and threads, and
# how fast it may read its disk. For boxes without systemd: where that runs, the unit acu@N owns the group, and nothing is done here.
#
#   scripts/cgroup.sh up|down|status N [--config FILE] [--dry-run] [options]
#   scripts/cgroup.sh exec N COMMAND...     run a command inside (it replaces this one)
#
#   --slice K        which CPUs, where numa.cpus is set: the K-th that many of the node (N), so that two ACUs share none
#   --pids P         most processes and threads (8192)
#   --io-mbps M      most MB/s read and written, each, on the disk with the models (no limit; 0: take it away)
#   --io-weight W    share of the disks, 1 to 1000, where the kernel divides them (500; others have 100): by the scheduler bfq, or on v2
#                    by its cost model (io.cost.qos). Where it does not, that is said; --io-mbps holds with every scheduler
#
# Each controller is used where the kernel has it, on cgroup v2, on v1, or some on each (hybrid); one that it lacks is said, and
# the rest is done. Nothing is removed while a process is inside.
#
# ACU_CGROUP_ROOT (/sys/fs/cgroup), ACU_SYS_ROOT (/sys) and ACU_PROC_ROOT (/proc) are where hierarchies, nodes and disks, and numbers
# of devices are looked up; ACU_RUN_DIR (/run/acu) is where values from before are remembered.
set -euo pipefail
here=$(dirname "$(realpath "$0")")/..
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"
# shellcheck source=scripts/disks.sh
source "$here/scripts/disks.sh"
# shellcheck source=scripts/cpus.sh
source "$here/scripts/cpus.sh"

root=${ACU_CGROUP_ROOT:-/sys/fs/cgroup}
proc=${ACU_PROC_ROOT:-/proc}
slice='' pids=8192 io_mbps='' io_weight=500
declare -A folders=() # by controller: the folder of our group
hierarchy='' unified='' on_unified=() lacking=()

own_option() {
  local most
  case $1 in
    --slice) most=255 ;;
    --pids) most=4194304 ;;
    --io-mbps) most=1000000 ;;
    --io-weight) most=1000 ;;
    *) return 1 ;;
  esac
  if [[ ! $2 =~ ^[0-9]{1,7}$ ]] || ((10#$2 > most)); then wrong "$1 is a number up to $most, not '$2'"; fi
  case $1 in
    --slice) slice=$((10#$2)) ;;
    --pids) pids=$((10#$2)) ;;
    --io-mbps) io_mbps=$((10#$2)) ;;
    --io-weight) io_weight=$((10#$2)) ;;
  esac
}

systemd_owns() { [[ ! ${ACU_CGROUP_ROOT-} && -d /run/systemd/system ]]; }

# The hierarchies

# Where each controller lives. Sets $hierarchy, $folders, $unified (the root of v2), $on_unified and $lacking.
find_hierarchies() {
  local controller legacy have_legacy='' listed=''
  if [[ -e $root/cgroup.controllers ]]; then
    unified=$root
  elif [[ -e $root/unified/cgroup.controllers ]]; then
    unified=$root/unified
  fi
  if [[ $unified ]]; then listed=" $(line_of "$unified/cgroup.controllers") "; fi
  for controller in cpuset memory devices pids io; do
    legacy=$controller
    if [[ $controller == io ]]; then legacy=blkio; fi
    if [[ -e $root/$legacy/cgroup.procs ]]; then
      folders[$controller]=$root/$legacy/$name have_legacy=yes
    elif [[ $listed == *" $controller "* ]]; then
      folders[$controller]=$unified/$name
      on_unified+=("$controller")
    elif [[ $controller != devices || ! $unified || $have_legacy ]]; then
      lacking+=("$controller")
    fi
  done
  hierarchy="$(if [[ $unified && $have_legacy ]]; then printf 'hybrid (v1 and v2)'; elif [[ $unified ]]; then printf v2; elif [[ $have_legacy ]]; then printf v1; fi)"
}

say_hierarchies() {
  [[ $hierarchy ]] || say "$name: no control groups at $root: nothing is limited. Mount them: mount -t cgroup2 none /sys/fs/cgroup"
  if [[ $hierarchy ]]; then say "$name: cgroup $hierarchy at $root: ${!folders[*]}"; fi
  if [[ $hierarchy == v2 ]]; then
    say "$name: devices are not limited: cgroup v2 does that by an eBPF programme, which systemd attaches to its units."
  fi
  if [[ $hierarchy && ${lacking[*]} ]]; then say "$name: the kernel has no controller ${lacking[*]} there: that is not limited."; fi
}

on_v2() { [[ ${folders[$1]-} == "$unified/$name" ]]; }

# The groups' folders, a line each.
groups() { if ((${#folders[@]})); then printf '%s\n' "${folders[@]}" | sort -u; fi; }

# Processes in our groups and in those below them, but this one; a line each.
processes() {
  local folder
  for folder in $(groups); do
    if [[ -d $folder ]]; then find "$folder" -name cgroup.procs -exec cat {} + 2>/dev/null || true; fi
  done | sort -nu | grep -vx "$$" || true
}

# What is wanted

# What the root of the cpuset controller may use ($1: cpus or mems).
usable() {
  if on_v2 cpuset; then line_of "$unified/cpuset.$1.effective"; else line_of "$root/cpuset/cpuset.effective_$1"; fi
}

# Devices that everything needs, and NVIDIA's: all of its cards (major 195), as NVML counts those that it may open, and
# gpu.device_id counts as on the box.
wanted_devices() {
  local major driver
  printf 'c %s rw\n' 1:3 1:5 1:7 1:8 1:9 5:0 5:2 136:\* 195:\* # null zero full random urandom tty ptmx pts/*
  while read -r major driver; do
    if [[ $driver == nvidia-uvm || $driver == nvidia-caps ]]; then printf 'c %s:* rw\n' "$major"; fi
  done <"$proc/devices"
}

# Steps

controller_is_on() { [[ " $(line_of "$unified/cgroup.subtree_control") " == *" $1 "* ]]; }
ours_or_nobodys() { shares "controller.$1" || [[ ! -s $run_dir/host/controller.$1/was ]]; }

controllers_there() {
  local controller
  for controller in "${on_unified[@]}"; do
    controller_is_on "$controller" && ours_or_nobodys "$controller" || return 1
  done
}

controllers_up() {
  local controller
  for controller in "${on_unified[@]}"; do
    if controller_is_on "$controller" && ours_or_nobodys "$controller"; then continue; fi
    share "controller.$controller" off
    if ! controller_is_on "$controller"; then put "+$controller" "$unified/cgroup.subtree_control"; fi
  done
}

controllers_down() {
  local controller others
  for controller in "${on_unified[@]}"; do
    shares "controller.$controller" || continue
    if shared_last "controller.$controller" >/dev/null && controller_is_on "$controller"; then
      others=$(find "$unified" -mindepth 1 -maxdepth 1 -type d ! -name 'acu[0-9]*' -printf '%f ')
      if [[ $others ]]; then
        say "$name: controller $controller stays on: other groups may use it by now: $others"
      else
        put "-$controller" "$unified/cgroup.subtree_control" || continue
      fi
    fi
    leave "controller.$controller"
  done
}

# Ours is what `group_up` made: a group of that name that was there before it may be anybody's.
group_there() {
  local folder
  for folder in $(groups); do [[ -d $folder ]] && kept group >/dev/null || return 1; done
}

group_up() {
  local folder
  kept group >/dev/null || refuse_others
  keep group "$name"
  for folder in $(groups); do
    if [[ ! -d $folder ]]; then run mkdir "$folder"; fi
  done
}

refuse_others() {
  local folder theirs=() inside
  for folder in $(groups); do
    if [[ -d $folder ]]; then theirs+=("$folder"); fi
  done
  ((${#theirs[@]})) || return 0
  inside=$(processes)
  die "there is a control group $name that is not this ACU's (${theirs[*]}${inside:+, processes inside: ${inside//$'\n'/ }}). Remove it when" \
    "nothing needs it: rmdir ${theirs[*]}"
}

group_down() {
  local folder inside try
  kept group >/dev/null || return 0
  for folder in $(groups); do leave_group "$folder"; done
  for ((try = 0; try < 10; try++)); do # whoever has just ended may take a moment
    inside=$(processes)
    if [[ ! $inside || $dry_run ]]; then break; fi
    sleep 0.1
  done
  if [[ $inside && ! $dry_run ]]; then
    failed "$name has processes inside, and stays; end them first: $(ps -o pid=,args= -p "${inside//$'\n'/,}" | head -n 10 | cut -c 1-120 | paste -sd ';')"
    return
  fi
  for folder in $(groups); do
    remove_tree "$folder"
    [[ $dry_run || ! -d $folder ]] || return 1
  done
  forget group
}

# This process is not to be in the way itself.
leave_group() {
  if [[ ! $dry_run && -e $1/cgroup.procs ]] && grep -qx "$$" "$1/cgroup.procs"; then put "$$" "${1%/*}/cgroup.procs" || true; fi
}

# The deepest first: the kernel's files in them are no obstacle. A process that is about to end is listed no more, and counts still.
remove_tree() {
  local folder try
  [[ -d $1 ]] || return 0
  while read -r folder; do
    for ((try = 0; try < 20; try++)); do
      [[ ! $dry_run ]] || break
      if rmdir "$folder" 2>/dev/null; then continue 2; fi
      sleep 0.1
    done
    run rmdir "$folder" || true
  done < <(find "$1" -depth -type d)
}

# Each limit is there when the kernel's file says so. They go with the group.

cpus_there() {
  local folder=${folders[cpuset]-}
  [[ ! $cpus ]] || [[ $(line_of "$folder/cpuset.cpus") == "$cpus" && $(line_of "$folder/cpuset.mems") == "$mems" ]]
}
cpus_up() {
  put "$cpus" "${folders[cpuset]}/cpuset.cpus"
  if [[ $mems ]]; then put "$mems" "${folders[cpuset]}/cpuset.mems"; fi
}
cpus_down() { :; }
cpus_says() { if [[ $cpus ]]; then printf 'CPUs %s, memory of node %s' "$cpus" "$mems"; else printf 'as the box has them'; fi; }

memory_file() { if on_v2 memory; then printf memory.max; else printf memory.limit_in_bytes; fi; }
memory_now() { line_of "${folders[memory]-}/$(memory_file)"; }
memory_there() {
  local now
  now=$(memory_now)
  if [[ ! ${folders[memory]-} ]]; then return; fi
  if [[ $memory_mb != null ]]; then
    [[ $now == $((memory_mb << 20)) ]]
  else
    [[ ! $now || $now == max ]] || ((now > 1 << 60)) # what v1 says for no limit
  fi
}
memory_up() {
  local bytes=-1
  if on_v2 memory; then bytes=max; fi
  if [[ $memory_mb != null ]]; then bytes=$((memory_mb << 20)); fi
  put "$bytes" "${folders[memory]}/$(memory_file)"
}
memory_down() { :; }
memory_says() { if [[ $memory_mb == null ]]; then printf 'no limit'; else printf '%s MiB at most' "$memory_mb"; fi; }

devices_there() {
  [[ ! ${folders[devices]-} ]] ||
    { [[ -e ${folders[devices]}/devices.list ]] && [[ $(sort "${folders[devices]}/devices.list") == "$(wanted_devices | sort)" ]]; }
}
devices_up() {
  local device
  # The number of nvidia-uvm is the kernel's choice when it is loaded.
  if have nvidia-modprobe && ! grep -q nvidia-uvm "$proc/devices"; then run nvidia-modprobe -u -c 0 || true; fi
  put a "${folders[devices]}/devices.deny"
  while read -r device; do put "$device" "${folders[devices]}/devices.allow"; done < <(wanted_devices)
}
devices_down() { :; }
devices_says() { if [[ ${folders[devices]-} ]]; then wanted_devices | paste -sd ,; else printf 'not limited here'; fi; }

pids_there() { [[ ! ${folders[pids]-} || $(line_of "${folders[pids]}/pids.max") == "$pids" ]]; }
pids_up() { put "$pids" "${folders[pids]}/pids.max"; }
pids_down() { :; }
pids_says() { printf '%s at most' "$pids"; }

# "FILE VALUE" of each that is wanted for reading and writing disks.
wanted_io() {
  local disk device bytes=0
  [[ ${folders[io]-} ]] || return 0
  if on_v2 io && [[ -e $unified/io.cost.qos ]]; then printf 'io.weight %s\n' "$io_weight"; fi
  if ! on_v2 io && [[ -e $root/blkio/blkio.bfq.io_service_bytes ]]; then printf 'blkio.bfq.weight %s\n' "$io_weight"; fi
  if [[ ! $io_mbps ]]; then return; fi
  bytes=$((io_mbps * 1000000))
  for disk in $models_on; do
    device=$(line_of "$sys/class/block/$disk/dev")
    if on_v2 io; then
      if ((bytes == 0)); then bytes=max; fi
      printf 'io.max %s rbps=%s wbps=%s\n' "$device" "$bytes" "$bytes"
    else
      printf 'blkio.throttle.%s_bps_device %s\n' read "$device $bytes" write "$device $bytes"
    fi
  done
}
io_there() {
  local file value
  while read -r file value; do
    if [[ $value == *' 0' || $value == *=max ]]; then
      if grep -qs "^${value%% *} " "${folders[io]}/$file"; then return 1; fi
    elif ! grep -qsE "^(default )?$value( |$)" "${folders[io]}/$file"; then
      return 1
    fi
  done < <(wanted_io)
}
io_up() {
  local file value
  while read -r file value; do put "$value" "${folders[io]}/$file"; done < <(wanted_io)
}
io_down() { :; }
io_says() {
  local without
  without=$(weightless)
  printf '%s%s' "$(wanted_io | paste -sd ,)" "${without:+ (the weight does not count on $without)}"
}

# "DISK (SCHEDULER)" of those with the models whose kernel divides nothing by weight: only bfq does, or on v2 the cost model that is
# turned on for the disk. disk.sh takes the scheduler of NVMe away.
weightless() {
  local disk device scheduler
  [[ $(wanted_io) == *weight* ]] || return 0
  for disk in $models_on; do
    scheduler=$(line_of "$sys/class/block/$disk/queue/scheduler")
    if [[ $scheduler == *\[*\]* ]]; then scheduler=${scheduler#*[} scheduler=${scheduler%%]*}; fi
    if [[ $(kind_of "$disk") == nvme ]]; then scheduler=none; fi
    device=$(line_of "$sys/class/block/$disk/dev")
    if [[ $scheduler == bfq ]] || { on_v2 io && grep -qs "^$device .*enable=1" "$unified/io.cost.qos"; }; then continue; fi
    printf '%s (scheduler %s)\n' "$disk" "${scheduler:-unknown}"
  done | paste -sd , | sed 's/,/, /g'
}

say_weight() {
  local without priorities='' limit="no limit is set"
  without=$(weightless)
  [[ $without ]] || return 0
  if [[ $without == *'scheduler none'* ]]; then priorities=", and with none not even I/O priorities count"; fi
  if [[ $io_mbps && $io_mbps != 0 ]]; then limit="$io_mbps MB/s"; fi
  say "$name: the share of the disk (--io-weight) does not count on $without: only bfq, or the cost model of cgroup v2, divides by" \
    "it$priorities. What holds with every scheduler is --io-mbps: $limit."
}

steps=(controllers group cpus memory devices pids io)

look() {
  cpus='' mems=''
  if [[ ${folders[cpuset]-} ]]; then choose_cpus "${slice:-$number}" "$(usable cpus)" "$(usable mems)" "$(line_of "${folders[cpuset]}/cpuset.mems")"; fi
  memory_mb=$(field numa.memory_mb)
  models_on=$(disks_of "$(field gpu.model_cache_dir)")
  [[ ! $io_mbps || $models_on ]] || say "$name: --io-mbps: the models lie on no disk of this box: their reading is not limited."
}

# Into the group, and away: no process is in between.
exec_inside() {
  local folder
  if [[ ! ${1-} =~ ^(0|[1-9][0-9]{0,2})$ ]] || (($1 > 255)); then wrong "the ACU is a number from 0 to 255, not '${1-}'"; fi
  (($# > 1)) || wrong "exec $1: which command?"
  name=acu$1 number=$1
  if ! systemd_owns; then
    find_hierarchies
    for folder in $(groups); do
      { echo "$$" >"$folder/cgroup.procs"; } 2>/dev/null || die "$folder does not take this process: is it there? scripts/cgroup.sh up $number"
    done
  fi
  umask "$callers_umask"
  exec "${@:2}"
}

if [[ ${1-} == exec ]]; then
  shift
  exec_inside "$@"
fi
take_arguments "$@"
if systemd_owns; then
  say "$name: systemd runs here, and its unit acu@$number owns the control group: nothing is done."
  exit
fi
find_hierarchies
if [[ $verb != down && ! ${ACU_FIELDS-} ]]; then read_fields; fi
case $verb in
  up)
    begin up
    say_hierarchies
    look
    say_weight
    go_up "${steps[@]}"
    ;;
  down)
    begin down
    go_down "${steps[@]}"
    ;;
  status)
    say_hierarchies
    look
    code=0
    tell "${steps[@]}" || code=$?
    inside=$(processes)
    printf '%s  processes    %s\n' "$name" "$(wc -w <<<"$inside")"
    exit "$code"
    ;;
esac
