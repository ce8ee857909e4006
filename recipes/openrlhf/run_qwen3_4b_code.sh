#!/usr/bin/env bash
# rredcot, or group_norm (GRPO) to compare with | OpenRLHF | Qwen3-4B on KodCode, 16,384-token responses | 8 x 80 GB
#
#   python ../code/prepare_data.py --source kodcode --out data/kodcode --val-size 256
#   DATA_DIR=$PWD/data/kodcode ./run_qwen3_4b_code.sh [flags of OpenRLHF]
#
# Programs run in the sandbox: `rredcot doctor` says whether this machine can isolate them. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
TASK=code RUN_NAME=openrlhf_qwen3_4b_code
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}

MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-2048}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
ROLLOUT_BATCH_SIZE=${ROLLOUT_BATCH_SIZE:-64}       # prompts per step
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-256}          # responses per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-16384}  # a plan, thoughts and the program
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-18432}    # of a micro-batch: the longest trace must fit

# Credit must reach into the program: `code` cuts its lines, and the thoughts by sentences. After half a program, a probe cannot
# be a whole one, so the value is how sure the model has been so far, which needs no probes.
SEGMENTER=${SEGMENTER:-code}                       # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-64}
VALUE_ESTIMATOR=${VALUE_ESTIMATOR:-confidence}

source "$HERE/common.sh"

RREDCOT+=(
  --algo.rredcot.segmenter_kwargs.answer_markers "[think]" # "####" is a heading or a comment here, no answer
  --algo.rredcot.value_estimator "$VALUE_ESTIMATOR"
  --algo.rredcot.proposals group                   # for estimators with probes: the ground truth is tests, no program
)
train "$@"
