#!/usr/bin/env bash
# rredcot, or group_norm (GRPO) to compare with | OpenRLHF | Qwen2.5-Math-1.5B on GSM8K, 3,072-token responses | 2 x 80 GB
#
#   python ../math/prepare_data.py --source gsm8k --out data/gsm8k --val-size 256
#   DATA_DIR=$PWD/data/gsm8k ./run_qwen25_math_1p5b.sh [flags of OpenRLHF]
#   DATA_DIR=$PWD/data/gsm8k ADV_ESTIMATOR=group_norm ./run_qwen25_math_1p5b.sh
#
# Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
TASK=math RUN_NAME=openrlhf_qwen25_math_1p5b
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-1.5B}
DATA_DIR=${DATA_DIR:-$PWD/data/gsm8k}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
ROLLOUT_BATCH_SIZE=${ROLLOUT_BATCH_SIZE:-128}      # prompts per step
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-512}          # responses per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-3072}   # with the prompt 4,096: all that the model can take
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.5}              # of the GPU, while vLLM is awake
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-16384}    # of a micro-batch: four traces

MAX_SEGMENTS=${MAX_SEGMENTS:-16}
MAX_PROPOSALS=${MAX_PROPOSALS:-4}

source "$HERE/common.sh"

RREDCOT+=(--algo.rredcot.value_kwargs.max_proposals "$MAX_PROPOSALS")
train "$@"
