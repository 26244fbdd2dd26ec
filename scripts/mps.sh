# shellcheck shell=bash disable=SC2154 # $name, $index, $mps and so on from gpu.sh
# MPS, the one process that computes on a GPU for several clients: where one runs, ours, and how much memory it lets each client take.
# Sourced by gpu.sh, after machine.sh, never run; the step mps.
#
# One that somebody else started is used and left as it is. Ours, in /run/acu/host/mps, starts with the first ACU that needs it and ends with
# the last. N.was/mps names the folder that this ACU's engines are to use.

# Sets $ours and $theirs, the folders of ours and of another, whether they run or not.
find_mps() {
  ours=$run_dir/host/mps
  theirs=${CUDA_MPS_PIPE_DIRECTORY:-$(mps_of_others)}
}

# The folder of an MPS of others, which its processes have in their environment; NVIDIA's own where they have none.
mps_of_others() {
  local file program folder
  for file in "$proc"/[0-9]*/comm; do
    { read -r program <"$file"; } 2>/dev/null || continue
    [[ $program == nvidia-cuda-mps* ]] || continue
    folder=$(tr '\0' '\n' 2>/dev/null <"${file%comm}environ" | sed -n 's|^CUDA_MPS_PIPE_DIRECTORY=\(/.*\)|\1|p') || true
    if [[ $folder != "$ours" ]]; then printf '%s' "${folder:-/tmp/nvidia-mps}" && return; fi
  done
  printf /tmp/nvidia-mps
}

asks_mps() { CUDA_MPS_PIPE_DIRECTORY=$1 timeout 10 nvidia-cuda-mps-control <<<"$2" 2>&1 7>&- 8>&- 9>&-; }
mps_at() { [[ -d $1 ]] && have nvidia-cuda-mps-control && asks_mps "$1" get_server_list >/dev/null; }
mps_answers() { mps_at "$ours" || mps_at "$theirs"; }

# tell_mps COMMAND: to ours.
tell_mps() { run bash -c "echo '$1' | CUDA_MPS_PIPE_DIRECTORY='$ours' nvidia-cuda-mps-control"; }

# The most that one client may take, in MiB: what the plan leaves when all others have theirs, and gpu.workers_mb is kept. The daemon
# holds each engine to less (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT). Nothing where there is no plan.
client_limit() {
  local environment plan
  set_environment
  plan=$(env -i "${environment[@]}" "$acu" doctor --plan --json ${config:+-c "$config"} 2>/dev/null) || true
  python '
import json, sys
try:
    plan = json.loads(sys.argv[1])
    takes = [sum(model[part] for part in ("weights_mb", "kv_mb", "process_mb", "step_mb")) for model in plan["models"]]
    if plan["card"]["gpu"] and plan["fits"]:
        print(plan["card"]["usable_mb"] - plan["workers_mb"] - sum(takes) + max(takes))
except (ValueError, TypeError, KeyError):
    pass' "$plan"
}

# The step

mps_there() {
  [[ ! $mps ]] || { mps_at "$theirs" && [[ $(kept mps) == "$theirs" ]]; } || { mps_at "$ours" && shares mps_server && [[ $(kept mps) == "$ours" ]]; }
}
mps_up() {
  local other
  forget mps
  if mps_at "$theirs"; then
    say "$name: MPS runs already ($theirs): it is used, and its limits are left as they are."
    keep mps "$theirs"
    return
  fi
  share mps_server off
  for other in $(other_users); do run touch "$run_dir/host/mps_server/by-$other"; done # it may be their engines' as well
  keep mps "$ours"
  if [[ $dry_run ]] || ! mps_at "$ours"; then
    run install -d -m 755 "$run_dir/host" "$ours" "$ours/log" # its clients are the daemon's user's
    run env CUDA_MPS_PIPE_DIRECTORY="$ours" CUDA_MPS_LOG_DIRECTORY="$ours/log" nvidia-cuda-mps-control -d
  fi
  limit_clients
}
limit_clients() {
  local limit
  if [[ $assumed ]]; then return; fi # the plan is the card's
  limit=$(client_limit)
  if [[ $limit ]]; then
    tell_mps "set_default_device_pinned_mem_limit $index ${limit}M"
  else
    say "$name: no plan of the GPU's memory: MPS lets each engine take what it asks for."
  fi
}
mps_down() {
  forget mps
  shares mps_server || return 0
  if shared_last mps_server >/dev/null; then
    if [[ $dry_run ]] || mps_at "$ours"; then tell_mps quit || return 0; fi
    run rm -rf "$ours"
  fi
  leave mps_server
}
mps_says() {
  if mps_at "$ours"; then
    printf 'runs (%s)' "$ours"
  elif mps_at "$theirs"; then
    printf "runs, not ours (%s)" "$theirs"
  else
    printf 'not needed'
  fi
}
