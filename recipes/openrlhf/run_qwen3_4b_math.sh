#!/usr/bin/env bash
# rredcot, or group_norm (GRPO) to compare with | OpenRLHF | Qwen3-4B on NuminaMath-CoT, 25,000-token responses | 8 x 80 GB
#
#   python ../math/prepare_data.py --source numina --out data/numina --val-size 256
#   DATA_DIR=$PWD/data/numina ./run_qwen3_4b_math.sh                              # rredcot
#   DATA_DIR=$PWD/data/numina ADV_ESTIMATOR=group_norm ./run_qwen3_4b_math.sh     # the baseline, nothing else differs
#
# Flags of OpenRLHF may follow: they come last and win. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
TASK=math RUN_NAME=openrlhf_qwen3_4b_math
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/numina}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
ROLLOUT_BATCH_SIZE=${ROLLOUT_BATCH_SIZE:-64}       # prompts per step
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-256}          # responses per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-25000}  # tokens
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-26024}    # of a micro-batch: the longest trace must fit

# Probes come on top of that count: up to MAX_SEGMENTS x MAX_PROPOSALS of some ten tokens per trace.
MAX_SEGMENTS=${MAX_SEGMENTS:-64}
MAX_PROPOSALS=${MAX_PROPOSALS:-8}

source "$HERE/common.sh"

RREDCOT+=(--algo.rredcot.value_kwargs.max_proposals "$MAX_PROPOSALS")
train "$@"
