#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen2.5-Math-1.5B on GSM8K or open-rs, 3,072-token responses | FSDP2 + vLLM
# 2 x 80 GB; one is enough with NGPUS_PER_NODE=1
#
#   python prepare_data.py --source gsm8k --out data/gsm8k --val-size 256 --eval gsm8k-test --eval math500
#   DATA_DIR=$PWD/data/gsm8k ./run_qwen25_math_1p5b_fsdp2_vllm.sh [hydra overrides]
#   DATA_DIR=$PWD/data/gsm8k ADV_ESTIMATOR=grpo ./run_qwen25_math_1p5b_fsdp2_vllm.sh
#
# Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
PROJECT=rredcot_math RUN_NAME=qwen25_math_1p5b
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-1.5B}
DATA_DIR=${DATA_DIR:-$PWD/data/gsm8k}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/gsm8k_test.parquet,$DATA_DIR/math500.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-128}          # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-64}     # prompts per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-3072}   # with the prompt 4,096: all that the model can take
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
VAL_N=${VAL_N:-1}                                  # samples per validation problem: val-core/gsm8k_test/acc/mean@1

# Probes come on top of verl's count: up to MAX_SEGMENTS x MAX_PROPOSALS of some ten tokens per trace, more than a short
# trace itself has (rredcot/probes/token_overhead/mean). Nothing is kept for a backward pass there.
MAX_SEGMENTS=${MAX_SEGMENTS:-16}
MAX_PROPOSALS=${MAX_PROPOSALS:-4}
TRACES_PER_UPDATE=4 TRACES_PER_LOG_PROB=4          # full-length traces per micro-batch: half of 80 GB stays free

source "$HERE/../common.sh"

RREDCOT+=(+algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS")
ACTOR+=("${FSDP2[@]}")
ROLLOUT+=("${GREEDY_VALIDATION[@]}")
train "$@"
