#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen3-4B on KodCode, 16,384-token responses | FSDP2 + vLLM | 8 x 80 GB
#
#   python prepare_data.py --source kodcode --out data/kodcode --val-size 256 --eval human-eval --eval mbpp-test
#   DATA_DIR=$PWD/data/kodcode ./run_qwen3_4b_code_fsdp2_vllm.sh                        # rredcot
#   DATA_DIR=$PWD/data/kodcode ADV_ESTIMATOR=grpo ./run_qwen3_4b_code_fsdp2_vllm.sh     # the baseline, nothing else differs
#
# Hydra overrides may follow: they come last and win. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh, those of the sandbox in sandbox.sh ----
PROJECT=rredcot_code RUN_NAME=qwen3_4b_code
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/human_eval.parquet,$DATA_DIR/mbpp_test.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
FSDP_SIZE=${FSDP_SIZE:--1}                         # -1: shard over all GPUs; 8: within a node, replicate between nodes
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts per update: two updates per step
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-2048}       # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-16384}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.7}              # of the GPU, while vLLM is awake
REWARD_WORKERS=${REWARD_WORKERS:-4}
VAL_N=${VAL_N:-4}                                  # samples per validation problem: val-core/human_eval/acc/mean@4

# The thoughts are cut into segments; the program after </think> is the answer. A probe is a whole program that passed in
# another rollout of the group. Its probability is close to 0, hence the mean per token (length_normalize). There is one
# probe per boundary, because such means of several programs would add up to more than 1 and together cost too much.
MAX_SEGMENTS=${MAX_SEGMENTS:-32}
MIN_SEGMENT_TOKENS=${MIN_SEGMENT_TOKENS:-128}      # at most one probe for so many tokens: bounds memory, see below
MAX_PROPOSALS=${MAX_PROPOSALS:-1}
MAX_PROBE_TOKENS=${MAX_PROBE_TOKENS:-1024}         # longer programs are not proposed: rredcot/fallback/answer_too_long/mean
# Probes come on top of verl's count: at most one of some 300 tokens for every MIN_SEGMENT_TOKENS. Their logits (0.3 MB
# per token) exist at once: 13 GB for a micro-batch of 18,432 tokens (LOG_PROB_MAX_TOKENS: one trace). Nothing is kept for a
# backward pass there.
TRACES_PER_UPDATE=1 TRACES_PER_LOG_PROB=1          # full-length traces per micro-batch: the least it must hold

source "$HERE/../common.sh"
source "$HERE/sandbox.sh"

RREDCOT+=(
  +algorithm.rredcot.segmenter_kwargs.min_segment_tokens="$MIN_SEGMENT_TOKENS"
  +algorithm.rredcot.segmenter_kwargs.answer_markers="[think]" # a fence inside the thoughts is not an answer
  +algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS"
  +algorithm.rredcot.max_probe_tokens="$MAX_PROBE_TOKENS"
  +algorithm.rredcot.length_normalize=true
  +algorithm.rredcot.proposals=group               # never the ground truth: it is tests, no program
)
ACTOR+=("${FSDP2[@]}" actor_rollout_ref.actor.fsdp_config.fsdp_size="$FSDP_SIZE")
ROLLOUT+=("${SAMPLED_VALIDATION[@]}")
train "$@"
