#!/usr/bin/env bash
# rredcot, or GRPO to compare with | DeepSeek-R1-Distill-Qwen-1.5B on open-rs, 3,584 tokens | LoRA, FSDP2 + vLLM
# 1 x 40 GB or more
#
#   python prepare_data.py --source open-rs --out data/open_rs --val-size 256 --eval math500 --eval amc23
#   DATA_DIR=$PWD/data/open_rs ./run_r1_distill_1p5b_lora_vllm.sh [hydra overrides]
#   DATA_DIR=$PWD/data/open_rs ADV_ESTIMATOR=grpo ./run_r1_distill_1p5b_lora_vllm.sh
#
# MAX_RESPONSE_LENGTH=1024 is the length of the paper's 1.5B table. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
PROJECT=rredcot_math RUN_NAME=r1_distill_1p5b_lora
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
DATA_DIR=${DATA_DIR:-$PWD/data/open_rs}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/math500.parquet,$DATA_DIR/amc23.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-1}
LORA_RANK=${LORA_RANK:-32}
LORA_ALPHA=${LORA_ALPHA:-64}
LR=${LR:-1e-5}                                     # ten times that of full fine-tuning: adapters start at zero
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-32}           # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-16}     # prompts per update: two updates per step
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-512}        # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-3584}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.5}              # of the GPU, while vLLM is awake
VAL_N=${VAL_N:-4}                                  # samples per validation problem: val-core/math500/acc/mean@4

# Probes come on top of verl's count: up to MAX_SEGMENTS x MAX_PROPOSALS of some ten tokens per trace, half as much again
# for a full-length one (rredcot/probes/token_overhead/mean). Nothing is kept for a backward pass there.
MAX_SEGMENTS=${MAX_SEGMENTS:-32}
MAX_PROPOSALS=${MAX_PROPOSALS:-4}
TRACES_PER_UPDATE=2 TRACES_PER_LOG_PROB=2          # full-length traces per micro-batch; one is the least

source "$HERE/../common.sh"

RREDCOT+=(+algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS")
ACTOR+=(
  "${FSDP2[@]}"
  actor_rollout_ref.model.lora_rank="$LORA_RANK"
  actor_rollout_ref.model.lora_alpha="$LORA_ALPHA"
  actor_rollout_ref.model.target_modules=all-linear
)
ROLLOUT+=(
  actor_rollout_ref.rollout.load_format=safetensors # the base weights; only adapters are sent after that
  "${SAMPLED_VALIDATION[@]}"
)
train "$@"
