#!/usr/bin/env bash
# rredcot, or GRPO to compare with | a tiny tool user (1M parameters) with a calculator | two CPU cores, 6 GB, offline
#
#   ./run_tiny_tool_user_cpu.sh                        # rredcot, a segment per turn
#   ADV_ESTIMATOR=grpo ./run_tiny_tool_user_cpu.sh     # the baseline, nothing else differs
#
# The first run makes the data, and the model from the tiny reasoner (warm_up.py, about a minute). Hydra overrides may follow:
# they come last and win. All other knobs are those of rredcot_plugin/tiny/train_cpu.sh.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs ----
TASK=math                                          # the recipe whose data and reward this one takes: it belongs beside it
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
export PYTHON=${PYTHON:-python3}
export OUT_DIR=${OUT_DIR:-$PWD/outputs/tiny_tool_user_$ADV_ESTIMATOR}
DATA_DIR=${DATA_DIR:-$PWD/data/word_problems}
SEGMENTER=${SEGMENTER:-turn}                       # a call with what led to it, or the answer
MAX_TURNS=${MAX_TURNS:-4}                          # three calls and an answer; the problems need one or two calls
TOOL_REPLY_CHARS=${TOOL_REPLY_CHARS:-48}           # what is longer is cut
export TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-8} ROLLOUT_N=${ROLLOUT_N:-8}
export MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-72} MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-96}
export LR=${LR:-2e-4}                              # a model this small, trained in fp32, takes it
export TOTAL_STEPS=${TOTAL_STEPS:-30} SEED=${SEED:-0}
export TEST_FREQ=${TEST_FREQ:-$TOTAL_STEPS}
export MODEL_PATH=${MODEL_PATH:-$PWD/data/tiny_tool_user}
export TRAIN_FILE=${TRAIN_FILE:-$DATA_DIR/train.parquet} VAL_FILE=${VAL_FILE:-$DATA_DIR/val.parquet}
export REWARD_PATH=${REWARD_PATH:-$HERE/reward.py}
export PYTHONPATH=$HERE${PYTHONPATH:+:$PYTHONPATH} # verl imports the tool by its name

PLUGIN=$HERE/../../rredcot_plugin
if [[ ! -d $PLUGIN ]]; then                        # this file lies elsewhere: the installed package has the rest
  PLUGIN=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("rredcot_plugin").submodule_search_locations[0])')
fi
PLUGIN=$(cd "$PLUGIN" && pwd)

if [[ ! -f $TRAIN_FILE || ! -f $VAL_FILE ]]; then
  "$PYTHON" "$HERE/prepare_data.py" --source word-problems --out "$DATA_DIR" --max-rows 576 --val-size 64 --seed "$SEED"
fi
if [[ ! -e $MODEL_PATH ]]; then
  "$PYTHON" "$HERE/warm_up.py" --out "$MODEL_PATH"
fi

ALGORITHM=(algorithm.adv_estimator="$ADV_ESTIMATOR")
if [[ $ADV_ESTIMATOR == rredcot* ]]; then
  ALGORITHM+=(+algorithm.rredcot.segmenter="$SEGMENTER")
fi

exec bash "$PLUGIN/tiny/train_cpu.sh" \
  "${ALGORITHM[@]}" \
  actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
  actor_rollout_ref.rollout.multi_turn.enable=True \
  actor_rollout_ref.rollout.multi_turn.format=hermes \
  actor_rollout_ref.rollout.multi_turn.tool_config_path="$HERE/calculator.yaml" \
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns="$MAX_TURNS" \
  actor_rollout_ref.rollout.multi_turn.max_tool_response_length="$TOOL_REPLY_CHARS" \
  trainer.val_before_train=True \
  actor_rollout_ref.rollout.val_kwargs.do_sample=True \
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
  +ray_kwargs.ray_init.address=local \
  "$@"
