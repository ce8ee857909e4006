#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen3-4B on NuminaMath-CoT | Megatron (TP 2) + vLLM | 8 x 80 GB
#
#   python prepare_data.py --source numina --out data/numina --val-size 256 --eval aime24 --eval math500
#   DATA_DIR=$PWD/data/numina ./run_qwen3_4b_megatron_vllm.sh [hydra overrides]
#   DATA_DIR=$PWD/data/numina ADV_ESTIMATOR=grpo ./run_qwen3_4b_megatron_vllm.sh
#
# What it costs: on Megatron a probe is a row of its own that repeats the trace up to its boundary (`batched`), half a
# trace on average. The probes of a step thus take about MAX_SEGMENTS x MAX_PROPOSALS / 2 plain log-prob passes: 8 with
# the settings below, 256 with those of run_qwen3_4b_fsdp2_vllm.sh (there: one pass, a fraction more). Hence fewer
# segments, fewer proposals and shorter responses here; prefer FSDP2 where the model fits. Not run yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
PROJECT=rredcot_math RUN_NAME=qwen3_4b_megatron
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/numina}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/aime24.parquet,$DATA_DIR/math500.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
ACTOR_TP=${ACTOR_TP:-2}                            # tensor parallel; 4 data-parallel ranks are left of 8 GPUs
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-8192}   # tokens
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
VAL_N=${VAL_N:-8}                                  # samples per validation problem: val-core/aime24/acc/mean@8

# A probe's row is as long as its prefix plus the probe, and counted as such. Two traces fit without gradients.
MAX_SEGMENTS=${MAX_SEGMENTS:-8}
MAX_PROPOSALS=${MAX_PROPOSALS:-2}
TRACES_PER_UPDATE=1 TRACES_PER_LOG_PROB=2          # full-length traces per micro-batch; one is the least

source "$HERE/../common.sh"

RREDCOT+=(+algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS")
ACTOR+=(
  actor_rollout_ref.actor.megatron.use_remove_padding=True
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size="$ACTOR_TP"
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full # gradient checkpointing
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
)
ROLLOUT+=("${SAMPLED_VALIDATION[@]}")
train model_engine=megatron "$@"
