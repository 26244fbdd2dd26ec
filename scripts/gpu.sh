#!/usr/bin/env bash
# The GPU of one ACU (gpu.device_id): its device nodes, and who may compute on it (gpu.compute_mode). auto lets one process in, where
# one engine uses the GPU. Where several do, of this ACU or of others on the same GPU, that one is the server of MPS, started here if
# nobody has; where MPS is not installed, anybody may, with a warning. `down` gives all that back, and resets the GPU when nothing is
# on it. The driver forgets such a mode with the last program on the GPU, so its persistence mode is turned on as well. Without a GPU
# there is nothing to do.
#
#   scripts/gpu.sh up|down|status N [--config FILE] [--dry-run]
#
# With --dry-run a box without a GPU is taken for one with it, where the configuration says anything about one.
#
# Remembered, beside what machine.sh says: N.was/gpu and N.was/engines, which GPU the ACU uses and how many of its processes compute
# there; N.was/mps, the folder of the MPS that they are to use (their CUDA_MPS_PIPE_DIRECTORY); host/gpu.I, who uses GPU I;
# host/mps, the folder of our own MPS.
#
# ACU_SYS_ROOT (/sys), ACU_PROC_ROOT (/proc) and ACU_DEV_ROOT (/dev) are where devices are looked up, ACU_RUN_DIR (/run/acu) where
# values from before are remembered. CUDA_MPS_PIPE_DIRECTORY is where an MPS that already runs is looked for; else it is asked of its process.
set -euo pipefail
here=$(dirname "$(realpath "$0")")/..
# shellcheck source=scripts/machine.sh
source "$here/scripts/machine.sh"
# shellcheck source=scripts/mps.sh
source "$here/scripts/mps.sh"

sys=${ACU_SYS_ROOT:-/sys}
proc=${ACU_PROC_ROOT:-/proc}
dev=${ACU_DEV_ROOT:-/dev}
find_mps
index='' address='' mode='' persistence='' minor='' engines=0 sharers='' wanted='' mps='' assumed=''

# The GPU

# A card that has failed can keep nvidia-smi waiting for good.
smi() { timeout -k 5 60 nvidia-smi "$@" 7>&- 8>&- 9>&-; }

# Finds the GPU that is configured; ends the script where there is none. Here and in choose_mode nobody else is at work, so that two
# ACUs that begin at once count each other.
find_gpu() {
  local code=0 text others
  index=$(field gpu.device_id)
  if ! have nvidia-smi; then
    if [[ $(nvidia_cards) ]]; then die "there is an NVIDIA card ($(nvidia_cards)) and no nvidia-smi: install the driver"; fi
    no_gpu "no nvidia-smi"
    return
  fi
  text=$(smi --query-gpu=pci.bus_id,persistence_mode,compute_mode --format=csv,noheader -i "$index" 2>&1) || code=$?
  if ((code == 0)) && [[ $text == *:*,*,* ]]; then
    IFS=, read -r address persistence mode <<<"${text//, /,}"
    find_minor
    return
  fi
  if others=$(smi --query-gpu=index,name --format=csv,noheader 2>/dev/null) && [[ $others == *,* ]]; then
    die "gpu.device_id: there is no GPU $index; there are $(paste -sd ';' <<<"$others")"
  fi
  [[ $(nvidia_cards) ]] || { no_gpu "nvidia-smi sees none" && return; }
  die "the driver does not answer (nvidia-smi ended with $code: ${text%%$'\n'*}); see: dmesg | grep -i nvrm; modprobe nvidia"
}

# Sets $minor, the number of the GPU's device node, from $address as nvidia-smi prints it: 00000000:3B:00.0, where the kernel has
# 0000:3b:00.0.
find_minor() {
  address=${address,,}
  address=${address: -12}
  minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$proc/driver/nvidia/gpus/$address/information" 2>/dev/null || true)
  minor=${minor:-$index}
}

# Addresses of NVIDIA's display devices on the PCI bus.
nvidia_cards() {
  local device
  for device in "$sys"/bus/pci/devices/*; do
    if [[ -e $device/class && $(<"$device/class") == 0x03* && $(<"$device/vendor") == 0x10de ]]; then printf '%s ' "${device##*/}"; fi
  done
}

no_gpu() {
  if [[ $dry_run ]] && says_gpu; then
    say "$name: no GPU here ($1): taken for a box with GPU $index, its driver and MPS."
    assumed=yes address='<address>' mode=Default persistence=Disabled minor=$index
  else
    say "$name: no GPU ($1): nothing to do."
    exit
  fi
}

says_gpu() {
  [[ $(field gpu.weights_mb) != null || $(field gpu.kv_cache_size_mb) != null || $(field gpu.compute_mode) != auto || $index != 0 ]]
}

python() { "$(dirname "$(realpath -s "$acu")")/python" -c "$@"; }

# How many processes of this ACU compute on the GPU: one for each model that vLLM serves, as acu/served.py settles it.
count_engines() {
  python '
import json, sys
def engine(key, model):
    chat = (model["role"] or ("embed" if key == "embed" else "chat")) == "chat"
    return model["engine"] or ("vllm" if chat else "encoder")
print([engine(key, model) for key, model in json.loads(sys.argv[1]).items()].count("vllm"))' "$(field models)"
}

# Other ACUs that use the same GPU, and how many of their processes compute there.
other_users() {
  local mark
  for mark in "$run_dir/host/gpu.$index"/by-*; do
    if [[ -e $mark && $mark != */by-$number ]]; then printf '%s\n' "${mark##*/by-}"; fi
  done
}
other_engines() {
  local other count=0
  for other in $(other_users); do
    if [[ -s $run_dir/$other.was/engines ]]; then count=$((count + $(<"$run_dir/$other.was/engines"))); fi
  done
  printf '%s' "$count"
}

# Processes that compute on the GPU, or have its device open, as "PID NAME", a line each. The daemon that keeps the driver's state is
# no user: nvidia-smi itself says whether it is in the way.
users_of_gpu() {
  local file pid program
  smi --query-compute-apps=pid,process_name --format=csv,noheader -i "$index" 2>/dev/null | sed -n 's/^\([0-9]*\), */\1 /p' || true
  while read -r file; do
    pid=${file#/proc/}
    pid=${pid%%/*}
    program=$(cat "/proc/$pid/comm" 2>/dev/null || true)
    if [[ $program != nvidia-persiste* ]]; then printf '%s %s\n' "$pid" "$program"; fi
  done < <(find /proc/[0-9]*/fd -lname "$dev/nvidia$minor" 2>/dev/null || true)
}

# What is wanted

# Sets $wanted, the mode (empty: as it is), and $mps (yes: it is to run).
choose_mode() {
  local setting all
  setting=$(field gpu.compute_mode)
  engines=$(count_engines)
  sharers=$(other_users | paste -sd ' ')
  all=$((engines + $(other_engines)))
  if mps_at "$theirs"; then mps=yes; fi # whoever computes here is to be its client
  case $setting in
    keep) return ;;
    default) wanted=DEFAULT && return ;;
    exclusive) wanted=EXCLUSIVE_PROCESS ;;
    auto) wanted=EXCLUSIVE_PROCESS ;;
  esac
  if [[ $mode == \[* ]]; then # [N/A], [Not Supported]: in virtual machines that have a part of a card
    say "$name: GPU $index has no compute mode: it stays as it is."
    wanted=''
    return
  fi
  ((all > 1)) || return 0
  if mps_answers; then
    mps=yes
  elif ! have nvidia-cuda-mps-control && [[ ! $assumed ]]; then
    without_mps "$setting" "MPS is not installed (nvidia-cuda-mps-control, of the driver's compute utilities)"
  elif [[ ! $assumed && $(users_of_gpu) ]]; then
    without_mps "$setting" "MPS would have to start before the processes that are on it already (end them, and run this again)"
  else
    mps=yes
  fi
}

without_mps() {
  local who="$engines engines${sharers:+, and those of ACU $sharers,} use GPU $index, and $2"
  if [[ $1 == exclusive ]]; then
    say "warning: $who: gpu.compute_mode is exclusive, and only the first of them will start."
  else
    wanted=DEFAULT
    say "warning: $who: any process may compute there (DEFAULT), and nothing holds each to its part of the memory."
  fi
}

# Steps

nodes_there() { [[ -e $dev/nvidiactl && -e $dev/nvidia$minor && -e $dev/nvidia-uvm ]]; }
nodes_up() {
  if have nvidia-modprobe || [[ $assumed ]]; then
    run nvidia-modprobe -c "$minor"
    run nvidia-modprobe -u -c 0
  else
    say "warning: $dev has not all of nvidiactl, nvidia$minor and nvidia-uvm, and nvidia-modprobe is not installed."
  fi
}
nodes_down() { :; } # they are the driver's, and whoever uses it next makes them again

# A setting of the GPU that is wanted to be another while any ACU uses it. NAME is nvidia-smi's for asking, OPTION for setting it.

# is_set NAME NOW WANTED
is_set() { [[ $2 == "$3" ]] && { shares "$1.$index" || [[ ! -s $run_dir/host/$1.$index/was ]]; }; }

# set_gpu INDEX OPTION VALUE. nvidia-smi says on standard output what is wrong.
set_gpu() {
  local text
  if [[ $dry_run ]]; then
    run nvidia-smi -i "$1" "$2" "$3"
  elif ! text=$(smi -i "$1" "$2" "$3" 2>&1); then
    failed "nvidia-smi -i $1 $2 $3: $(paste -sd ' ' <<<"$text")"
    return 1
  fi
}

# give_back NAME OPTION: of whatever GPU this ACU wanted another value of.
give_back() {
  local mark shared before now
  for mark in "$run_dir/host/$1".*/by-"$number"; do
    [[ -e $mark ]] || continue
    shared=$(basename "$(dirname "$mark")")
    if before=$(shared_last "$shared"); then
      now=$(smi "--query-gpu=$1" --format=csv,noheader -i "${shared##*.}" 2>/dev/null) || now=''
      [[ ${now^^} == "$before" ]] || set_gpu "${shared##*.}" "$2" "$before" || continue
    fi
    leave "$shared"
  done
}

persistence_there() { [[ ! $wanted || $persistence == \[* ]] || is_set persistence_mode "${persistence^^}" ENABLED; }
persistence_up() {
  share "persistence_mode.$index" "${persistence^^}"
  if [[ ${persistence^^} != ENABLED ]]; then set_gpu "$index" -pm ENABLED; fi
}
persistence_down() { give_back persistence_mode -pm; }

mode_there() { [[ ! $wanted ]] || is_set compute_mode "${mode^^}" "$wanted"; }
mode_up() {
  share "compute_mode.$index" "${mode^^}"
  if [[ ${mode^^} != "$wanted" ]]; then set_gpu "$index" -c "$wanted"; fi
}
mode_down() { give_back compute_mode -c; }
mode_says() { printf '%s' "$mode"; }

# That this ACU uses the GPU; and when it does no more, a reset.
card_there() { [[ $(kept gpu) == "$index" && $(kept engines) == "$engines" ]] && shares "gpu.$index"; }
card_up() {
  share "gpu.$index" used
  forget gpu
  keep gpu "$index"
  forget engines
  keep engines "$engines"
}
card_down() {
  local was
  was=$(kept gpu) || return 0
  index=$was
  if shared_last "gpu.$index" >/dev/null; then reset; else say "$name: GPU $index is not reset: ACU $(other_users | paste -sd ' ') uses it too."; fi
  leave "gpu.$index"
  forget gpu
  forget engines
}
card_says() { printf 'GPU %s (%s), %s engines%s' "$index" "$address" "$engines" "${sharers:+, shared with ACU $sharers}"; }

reset() {
  local users text
  address=$(smi --query-gpu=pci.bus_id --format=csv,noheader -i "$index" 2>/dev/null || true)
  find_minor
  for _ in 1 2 3; do # whoever has just ended may take a moment
    users=$(users_of_gpu | sort -u | paste -sd ';')
    if [[ ! $users || $dry_run ]]; then break; fi
    sleep 0.3
  done
  if [[ $users ]]; then
    say "$name: GPU $index is not reset: it is used by $users"
  elif [[ $dry_run ]]; then
    run nvidia-smi --gpu-reset -i "$index"
  elif text=$(smi --gpu-reset -i "$index" 2>&1); then
    say "$name: GPU $index is reset."
  else
    say "$name: GPU $index is not reset: $(paste -sd ' ' <<<"$text")"
  fi
}

steps=(nodes persistence mode card mps)
take_arguments "$@"
if [[ $verb != down && ! ${ACU_FIELDS-} ]]; then read_fields; fi
case $verb in
  up)
    begin up
    find_gpu
    choose_mode
    go_up "${steps[@]}"
    ;;
  down)
    begin down
    go_down "${steps[@]}"
    ;;
  status)
    find_gpu
    choose_mode
    tell "${steps[@]}"
    ;;
esac
