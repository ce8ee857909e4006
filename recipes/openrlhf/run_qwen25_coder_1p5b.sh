#!/usr/bin/env bash
# rredcot, or group_norm (GRPO) to compare with | OpenRLHF | Qwen2.5-Coder-1.5B-Instruct on KodCode, 2,048 tokens | 2 x 80 GB
#
#   python ../code/prepare_data.py --source kodcode --out data/kodcode --val-size 256
#   DATA_DIR=$PWD/data/kodcode ./run_qwen25_coder_1p5b.sh [flags of OpenRLHF]
#
# Programs run in the sandbox: `rredcot doctor` says whether this machine can isolate them. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
TASK=code RUN_NAME=openrlhf_qwen25_coder_1p5b
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
ROLLOUT_BATCH_SIZE=${ROLLOUT_BATCH_SIZE:-128}      # prompts per step
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-512}          # responses per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-2048}   # a plan of a few sentences, and the program
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.5}              # of the GPU, while vLLM is awake
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-12288}    # of a micro-batch: four traces

# The program is most of the response, so credit must reach into it: `code` cuts inside the fence too. After half a program, a
# probe cannot be a whole one, so the value is how sure the model has been so far, which needs no probes.
SEGMENTER=${SEGMENTER:-code}                       # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-16}
VALUE_ESTIMATOR=${VALUE_ESTIMATOR:-confidence}

source "$HERE/common.sh"

RREDCOT+=(
  --algo.rredcot.segmenter_kwargs.answer_markers "[think]" # "####" is a heading or a comment here, no answer
  --algo.rredcot.value_estimator "$VALUE_ESTIMATOR"
  --algo.rredcot.proposals group                   # for estimators with probes: the ground truth is tests, no program
)
train "$@"
