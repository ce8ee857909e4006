#!/usr/bin/env bash
# rredcot, or GRPO to compare with | the tiny reasoner (1M parameters) on reasoning-gym | two CPU cores, 6 GB, offline
#
#   ./run_tiny_reasoner_cpu.sh                        # rredcot
#   ADV_ESTIMATOR=grpo ./run_tiny_reasoner_cpu.sh     # the baseline, nothing else differs
#
# The data are made on the first run. Hydra overrides may follow: they come last and win. `rredcot demo` does the same
# twice and draws it; all other knobs are those of rredcot_plugin/tiny/train_cpu.sh.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
export PYTHON=${PYTHON:-python3}
export OUT_DIR=${OUT_DIR:-$PWD/outputs/tiny_reasoner_$ADV_ESTIMATOR}
DATA_DIR=${DATA_DIR:-$PWD/data/reasoning_gym}
SEGMENTER=${SEGMENTER:-newline}                    # a step of its solutions is a line
export TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-8} ROLLOUT_N=${ROLLOUT_N:-8}
export MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-64} MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-96}
export LR=${LR:-2e-4}                              # a model this small, trained in fp32, takes it
export TOTAL_STEPS=${TOTAL_STEPS:-30} SEED=${SEED:-0}
export TEST_FREQ=${TEST_FREQ:-$TOTAL_STEPS}

PLUGIN=$HERE/../../rredcot_plugin
if [[ ! -d $PLUGIN ]]; then                        # this file lies elsewhere: the installed package has the model
  PLUGIN=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("rredcot_plugin").submodule_search_locations[0])')
fi
PLUGIN=$(cd "$PLUGIN" && pwd)
export MODEL_PATH=${MODEL_PATH:-$PLUGIN/tiny/checkpoint}
export TRAIN_FILE=${TRAIN_FILE:-$DATA_DIR/train.parquet} VAL_FILE=${VAL_FILE:-$DATA_DIR/val.parquet}
export REWARD_PATH=${REWARD_PATH:-$PLUGIN/demo/reward.py} # answers behind ####, lists of numbers among them

if [[ ! -f $TRAIN_FILE || ! -f $VAL_FILE ]]; then
  "$PYTHON" "$HERE/prepare_data.py" --source reasoning-gym --out "$DATA_DIR" --max-rows 576 --val-size 64 --seed "$SEED"
fi

ALGORITHM=(algorithm.adv_estimator="$ADV_ESTIMATOR")
if [[ $ADV_ESTIMATOR == rredcot* ]]; then
  ALGORITHM+=(+algorithm.rredcot.segmenter="$SEGMENTER")
fi

exec bash "$PLUGIN/tiny/train_cpu.sh" \
  "${ALGORITHM[@]}" \
  trainer.val_before_train=True \
  actor_rollout_ref.rollout.val_kwargs.do_sample=True \
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
  +ray_kwargs.ray_init.address=local \
  "$@"
