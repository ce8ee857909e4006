#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen3-4B with Python as a tool, NuminaMath-CoT, 16,384 tokens | FSDP2 + vLLM | 8 x 80 GB
#
#   python prepare_data.py --source numina --out data/numina --val-size 256 --eval aime24 --eval math500
#   DATA_DIR=$PWD/data/numina ./run_qwen3_4b_tools_fsdp2_vllm.sh                        # rredcot
#   DATA_DIR=$PWD/data/numina ADV_ESTIMATOR=grpo ./run_qwen3_4b_tools_fsdp2_vllm.sh     # the baseline, nothing else differs
#
# Hydra overrides may follow: they come last and win. Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs; those that every recipe shares are in common.sh ----
TASK=math                                          # the recipe whose data and reward this one takes: it belongs beside it
PROJECT=rredcot_agent RUN_NAME=qwen3_4b_tools
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/numina}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/aime24.parquet,$DATA_DIR/math500.parquet]}

NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
FSDP_SIZE=${FSDP_SIZE:--1}                         # -1: shard over all GPUs; 8: within a node, replicate between nodes
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts per step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts per update: two updates per step
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-16384}  # tokens of all turns and of the tool's replies together
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.7}              # of the GPU, while vLLM is awake
VAL_N=${VAL_N:-4}                                  # samples per validation problem: val-core/aime24/acc/mean@4

# python_tool.yaml sets the tool's limits; docs/guides/sandbox.md describes its sandbox.
MAX_TURNS=${MAX_TURNS:-8}                          # seven calls and an answer
TOOL_REPLY_CHARS=${TOOL_REPLY_CHARS:-2048}         # of longer output the middle is left out
TOOL_CONFIG=${TOOL_CONFIG:-$HERE/python_tool.yaml}
AGENT_WORKERS=${AGENT_WORKERS:-8}                  # processes that run agents, each up to 8 programs at once
export RREDCOT_SANDBOX=${RREDCOT_SANDBOX:-strong}  # weak: no namespaces; code may then read what the trainer can
export PYTHONPATH=$HERE${PYTHONPATH:+:$PYTHONPATH} # verl imports the tool by its name, on every node

# Cut at turns, and at sentences within them: thoughts are long, and a turn has several. Half of the segments are reserved
# for turns.
SEGMENTER=${SEGMENTER:-nested}
MAX_SEGMENTS=${MAX_SEGMENTS:-64}
MAX_PROPOSALS=${MAX_PROPOSALS:-8}
TRACES_PER_UPDATE=1 TRACES_PER_LOG_PROB=1          # full-length traces per micro-batch: the least it must hold

source "$HERE/../common.sh"

RREDCOT+=(+algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS")
[[ $SEGMENTER != nested ]] || RREDCOT+=('+algorithm.rredcot.segmenter_kwargs.levels=[turn,sentence]')
ACTOR+=("${FSDP2[@]}" actor_rollout_ref.actor.fsdp_config.fsdp_size="$FSDP_SIZE")
ROLLOUT+=(
  "${SAMPLED_VALIDATION[@]}"
  actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent
  actor_rollout_ref.rollout.agent.num_workers="$AGENT_WORKERS"
  actor_rollout_ref.rollout.multi_turn.enable=True
  actor_rollout_ref.rollout.multi_turn.format=hermes # what Qwen3's chat template asks the model to write
  actor_rollout_ref.rollout.multi_turn.tool_config_path="$TOOL_CONFIG"
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns="$MAX_TURNS"
  actor_rollout_ref.rollout.multi_turn.max_tool_response_length="$TOOL_REPLY_CHARS"
  actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side=middle
)
train "$@"
