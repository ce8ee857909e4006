#!/usr/bin/env bash
# run_qwen3_4b_fsdp2_vllm.sh on several nodes of a running Ray cluster | 2 x 8 x 80 GB
#
# On the first node:    ray start --head --port=6379
# On every other node:  ray start --address=FIRST_NODE:6379
# On the first node:    DATA_DIR=/shared/data/numina OUT_DIR=/shared/outputs ./run_qwen3_4b_fsdp2_vllm_multinode.sh
#
# Every node needs the same environment (rredcot included: verl loads it in each process) and must see this folder, DATA_DIR
# and OUT_DIR under the same paths. All knobs of run_qwen3_4b_fsdp2_vllm.sh apply. Not run yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs ----
export RAY_ADDRESS=${RAY_ADDRESS:-auto}
export NNODES=${NNODES:-2}
export NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
export TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-$((64 * NNODES))}        # as many responses a GPU as on one node
export PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-$((32 * NNODES))}
export FSDP_SIZE=${FSDP_SIZE:--1}   # $NGPUS_PER_NODE keeps weight traffic within the nodes, for 8 GB more a GPU on two

if ! ray status --address="$RAY_ADDRESS" >/dev/null 2>&1; then
  echo "RAY_ADDRESS=$RAY_ADDRESS: no Ray cluster answers there; start one as the head of this script says" >&2
  exit 1
fi
exec bash "$HERE/run_qwen3_4b_fsdp2_vllm.sh" "$@"
