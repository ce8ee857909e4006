#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen2.5-Coder-1.5B-Instruct on KodCode, 2,048-token responses | FSDP2 + vLLM
# 2 x 80 GB; one is enough with NGPUS_PER_NODE=1
#
#   python prepare_data.py --source kodcode --out data/kodcode --val-size 256 --eval human-eval --eval mbpp-test
#   DATA_DIR=$PWD/data/kodcode ./run_qwen25_coder_1p5b_fsdp2_vllm.sh [hydra overrides]
#   DATA_DIR=$PWD/data/kodcode ADV_ESTIMATOR=grpo ./run_qwen25_coder_1p5b_fsdp2_vllm.sh
#
# Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh, those of the sandbox in sandbox.sh ----
PROJECT=rredcot_code RUN_NAME=qwen25_coder_1p5b
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/human_eval.parquet,$DATA_DIR/mbpp_test.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-128}          # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-64}     # prompts per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-2048}   # a plan of a few sentences, and the program
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
REWARD_WORKERS=${REWARD_WORKERS:-2}
VAL_N=${VAL_N:-1}                                  # samples per validation problem: val-core/human_eval/acc/mean@1
TRACES_PER_UPDATE=4 TRACES_PER_LOG_PROB=4          # full-length traces per micro-batch: half of 80 GB stays free

# The program is most of the response, so credit must reach into it: `code` cuts at sentences outside the fence and at
# blocks inside. After half a program, a probe cannot be a whole one, so the value, without probes, is how sure the
# model has been so far, fitted to the outcome. VALUE_ESTIMATOR=monte_carlo continues from every boundary instead:
# unbiased, but with samples x segments times as many rollouts and programs to run.
SEGMENTER=${SEGMENTER:-code}                       # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-16}
VALUE_ESTIMATOR=${VALUE_ESTIMATOR:-confidence}

source "$HERE/../common.sh"
source "$HERE/sandbox.sh"

RREDCOT+=(
  +algorithm.rredcot.segmenter_kwargs.answer_markers="[think]" # "####" is a heading or a comment here, no answer
  +algorithm.rredcot.value_estimator="$VALUE_ESTIMATOR"
  +algorithm.rredcot.proposals=group               # for estimators with probes: the ground truth is tests, no program
)
ACTOR+=("${FSDP2[@]}")
ROLLOUT+=("${GREEDY_VALIDATION[@]}")
train "$@"
