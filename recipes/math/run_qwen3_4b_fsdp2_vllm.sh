#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen3-4B on NuminaMath-CoT, 25,000-token responses | FSDP2 + vLLM | 8 x 80 GB
#
#   python prepare_data.py --source numina --out data/numina --val-size 256 --eval aime24 --eval math500
#   DATA_DIR=$PWD/data/numina ./run_qwen3_4b_fsdp2_vllm.sh                        # rredcot
#   DATA_DIR=$PWD/data/numina ADV_ESTIMATOR=grpo ./run_qwen3_4b_fsdp2_vllm.sh     # the baseline, nothing else differs
#
# Hydra overrides may follow: they come last and win. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
PROJECT=rredcot_math RUN_NAME=qwen3_4b
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/numina}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/aime24.parquet,$DATA_DIR/math500.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
FSDP_SIZE=${FSDP_SIZE:--1}                         # -1: shard over all GPUs; 8: within a node, replicate between nodes
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-25000}  # tokens
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.7}              # of the GPU, while vLLM is awake
VAL_N=${VAL_N:-8}                                  # samples per validation problem: val-core/aime24/acc/mean@8

# Probes come on top of verl's count: up to MAX_SEGMENTS x MAX_PROPOSALS of some ten tokens per trace, so a micro-batch of
# 26,000 tokens (LOG_PROB_MAX_TOKENS: one trace) holds up to about 32,000. Nothing is kept for a backward pass here.
MAX_SEGMENTS=${MAX_SEGMENTS:-64}
MAX_PROPOSALS=${MAX_PROPOSALS:-8}
TRACES_PER_UPDATE=1 TRACES_PER_LOG_PROB=1          # full-length traces per micro-batch: the least it must hold

source "$HERE/../common.sh"

RREDCOT+=(+algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS")
ACTOR+=("${FSDP2[@]}" actor_rollout_ref.actor.fsdp_config.fsdp_size="$FSDP_SIZE")
ROLLOUT+=("${SAMPLED_VALIDATION[@]}")
train "$@"
