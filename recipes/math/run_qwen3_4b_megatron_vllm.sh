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

# ---- knobs ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/numina}
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/train.parquet}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/aime24.parquet,$DATA_DIR/math500.parquet]}
OUT_DIR=${OUT_DIR:-$PWD/outputs/qwen3_4b_megatron_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}

NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
ACTOR_TP=${ACTOR_TP:-2}                            # tensor parallel; 4 data-parallel ranks are left of 8 GPUs
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts a step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts an update: two updates a step
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses a prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-1024}       # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-8192}
ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
LR=${LR:-1e-6}
SEGMENTER=${SEGMENTER:-sentence}                   # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-8}
MAX_PROPOSALS=${MAX_PROPOSALS:-2}
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-300}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:-50}
VAL_N=${VAL_N:-8}                                  # samples a validation problem: val-core/aime24/acc/mean@8
LOGGER=${LOGGER:-'["console","tensorboard"]'}

# One full-length trace is the least that a micro-batch must hold.
MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
ACTOR_MAX_TOKENS=${ACTOR_MAX_TOKENS:-$MAX_TOKENS}
# Rows of probes are as long as their prefix and the probe, and counted as such. Two traces fit without gradients.
LOG_PROB_MAX_TOKENS=${LOG_PROB_MAX_TOKENS:-$((2 * MAX_TOKENS))}

ALGORITHM=(
  algorithm.adv_estimator="$ADV_ESTIMATOR"
  algorithm.norm_adv_by_std_in_grpo=True           # the paper's baseline is group-normalised GRPO; False is Dr. GRPO
  algorithm.use_kl_in_reward=False
)
if [[ $ADV_ESTIMATOR == rredcot* ]]; then
  ALGORITHM+=(
    +algorithm.rredcot.segmenter="$SEGMENTER"
    +algorithm.rredcot.segmenter_kwargs.max_segments="$MAX_SEGMENTS"
    +algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS"
  )
fi

DATA=(
  data.train_files="$TRAIN_FILES"
  data.val_files="$VAL_FILES"
  data.train_batch_size="$TRAIN_BATCH_SIZE"
  data.max_prompt_length="$MAX_PROMPT_LENGTH"
  data.max_response_length="$MAX_RESPONSE_LENGTH"
  data.filter_overlong_prompts=True
  data.truncation=error
  data.seed="$SEED"
  reward.custom_reward_function.path="$HERE/reward.py"
  reward.custom_reward_function.name=compute_score
)

ACTOR=(
  actor_rollout_ref.model.path="$MODEL_PATH"
  actor_rollout_ref.model.use_remove_padding=True  # rows differ in length by a factor of ten
  actor_rollout_ref.actor.megatron.use_remove_padding=True
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size="$ACTOR_TP"
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
  actor_rollout_ref.actor.megatron.context_parallel_size=1
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full # gradient checkpointing
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
  actor_rollout_ref.actor.optim.lr="$LR"           # full fine-tuning with Adam; 1e-6 is what verl's own scripts use
  actor_rollout_ref.actor.optim.lr_warmup_steps=10
  actor_rollout_ref.actor.ppo_mini_batch_size="$PPO_MINI_BATCH_SIZE"
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$ACTOR_MAX_TOKENS"
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.28     # clip-higher: rare tokens may gain, entropy lasts longer (DAPO)
  actor_rollout_ref.actor.loss_agg_mode=token-mean # every token the same weight; no reward for long wrong traces
  actor_rollout_ref.actor.use_kl_loss=False        # no reference model: its memory goes to longer traces
  actor_rollout_ref.actor.entropy_coeff=0
  actor_rollout_ref.actor.entropy_from_logits_with_chunking=True
)

ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.tensor_model_parallel_size="$ROLLOUT_TP"
  actor_rollout_ref.rollout.gpu_memory_utilization="$ROLLOUT_MEMORY"
  actor_rollout_ref.rollout.n="$ROLLOUT_N"
  actor_rollout_ref.rollout.temperature=1.0        # sampled from the policy that is trained, not from a sharper one
  actor_rollout_ref.rollout.seed="$SEED"
  actor_rollout_ref.rollout.calculate_log_probs=True # segmenters read them before the log-prob pass
  actor_rollout_ref.rollout.max_model_len="$MAX_TOKENS"
  actor_rollout_ref.rollout.max_num_batched_tokens=16384
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="$LOG_PROB_MAX_TOKENS"
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=0.6 # the model card's for thinking
  actor_rollout_ref.rollout.val_kwargs.top_p=0.95
  actor_rollout_ref.rollout.val_kwargs.n="$VAL_N"
)

TRAINER=(
  trainer.nnodes="$NNODES"
  trainer.n_gpus_per_node="$NGPUS_PER_NODE"
  trainer.total_epochs=100 trainer.total_training_steps="$TOTAL_STEPS"
  trainer.test_freq="$TEST_FREQ" trainer.save_freq="$SAVE_FREQ"
  trainer.max_actor_ckpt_to_keep=2
  trainer.val_before_train=True
  trainer.resume_mode=auto
  trainer.default_local_dir="$OUT_DIR/checkpoints"
  trainer.logger="$LOGGER"
  trainer.project_name=rredcot_math trainer.experiment_name="qwen3_4b_megatron_$ADV_ESTIMATOR"
)

export TENSORBOARD_DIR=${TENSORBOARD_DIR:-$OUT_DIR/tensorboard}
exec "$PYTHON" -m verl.trainer.main_ppo model_engine=megatron \
  "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
