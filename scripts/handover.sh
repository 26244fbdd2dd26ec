#!/usr/bin/env bash
# What acu-host@N.service hands over to acu@N.service: the environment in which its engines find the MPS that gpu.sh has chosen for them.
# Refused is a folder that the daemon's fence hides from it: the unit then fails, and gives the GPU back.
#
#   scripts/handover.sh N      writes $RUNTIME_DIRECTORY/environment, as EnvironmentFile= reads it
#
# ACU_RUN_DIR (/run/acu) is where gpu.sh has remembered its choice.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

chosen=${ACU_RUN_DIR:-/run/acu}/${1:?the number of the ACU}.was/mps
folder=''
if [[ -s $chosen ]]; then folder=$(<"$chosen"); fi
if [[ $(realpath -m "${folder:-/}") =~ ^/(tmp|var/tmp|home|root|run/user)(/|$) ]]; then
  die "MPS runs with its folder in $folder, which acu@$1 does not see (PrivateTmp=yes, ProtectHome=yes). Start it again with another, as
  CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps nvidia-cuda-mps-control -d
and then this: systemctl restart acu-host@$1 acu@$1. Or end it: ACU starts one of its own where it needs one."
fi
file=${RUNTIME_DIRECTORY:?}/environment
# Within double quotes only these have a meaning of their own.
# shellcheck disable=SC2001
if [[ $folder ]]; then printf 'CUDA_MPS_PIPE_DIRECTORY="%s"\n' "$(sed 's/[\\"$`]/\\&/g' <<<"$folder")"; fi >"$file.new"
mv -f "$file.new" "$file"
