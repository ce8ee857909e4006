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

# ---- knobs ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
DATA_DIR=${DATA_DIR:-$PWD/data/open_rs}
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/train.parquet}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/math500.parquet,$DATA_DIR/amc23.parquet]}
OUT_DIR=${OUT_DIR:-$PWD/outputs/r1_distill_1p5b_lora_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}

NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-1}
LORA_RANK=${LORA_RANK:-32}
LORA_ALPHA=${LORA_ALPHA:-64}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-32}           # prompts a step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-16}     # prompts an update: two updates a step
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses a prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-512}        # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-3584}
ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.5}              # of the GPU, while vLLM is awake
LR=${LR:-1e-5}
SEGMENTER=${SEGMENTER:-sentence}                   # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-32}
MAX_PROPOSALS=${MAX_PROPOSALS:-4}
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-300}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:-50}
VAL_N=${VAL_N:-4}                                  # samples a validation problem: val-core/math500/acc/mean@4
LOGGER=${LOGGER:-'["console","tensorboard"]'}

# One full-length trace is the least that a micro-batch must hold.
MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
ACTOR_MAX_TOKENS=${ACTOR_MAX_TOKENS:-$((2 * MAX_TOKENS))}
# Probes come on top of verl's count: up to MAX_SEGMENTS x MAX_PROPOSALS of some ten tokens a trace, half as much again
# for a full-length one (rredcot/probes/token_overhead/mean). Nothing is kept for a backward pass here.
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
  actor_rollout_ref.model.use_remove_padding=True  # no work on padding
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.model.lora_rank="$LORA_RANK"
  actor_rollout_ref.model.lora_alpha="$LORA_ALPHA"
  actor_rollout_ref.model.target_modules=all-linear
  actor_rollout_ref.actor.optim.lr="$LR"           # ten times that of full fine-tuning: adapters start at zero
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
  # no Ulysses and no fused kernels: with either, probes become rows of their own (docs/guides/choosing-values.md)
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=1
  actor_rollout_ref.model.use_fused_kernels=False
)

ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.load_format=safetensors # the base weights; only adapters are sent after that
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
  actor_rollout_ref.rollout.val_kwargs.temperature=0.6 # the model card's
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
  trainer.project_name=rredcot_math trainer.experiment_name="r1_distill_1p5b_lora_$ADV_ESTIMATOR"
)

export TENSORBOARD_DIR=${TENSORBOARD_DIR:-$OUT_DIR/tensorboard}
exec "$PYTHON" -m verl.trainer.main_ppo \
  "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
