#!/usr/bin/env bash
# Train a tiny model with verl on a machine without GPU (two cores and 6 GB are enough).
#
#   MODEL_PATH=… TRAIN_FILE=… VAL_FILE=… REWARD_PATH=… OUT_DIR=… train_cpu.sh [hydra overrides]
#
# e.g. `… train_cpu.sh algorithm.adv_estimator=rredcot trainer.total_training_steps=20`.
# Any estimator of verl works; the default is verl's own GRPO. Curves: tensorboard --logdir $OUT_DIR/tensorboard.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:?directory of a Hugging Face causal language model with tokenizer and chat template}
TRAIN_FILE=${TRAIN_FILE:?parquet file in verl format}
VAL_FILE=${VAL_FILE:?parquet file in verl format}
REWARD_PATH=${REWARD_PATH:?python file with compute_score(data_source, solution_str, ground_truth, extra_info)}
OUT_DIR=${OUT_DIR:-$PWD/outputs/tiny_cpu}
PYTHON=${PYTHON:-python}

ROLLOUT=${ROLLOUT:-hf_cpu}                     # hf_cpu | vllm
TRAINER_MODE=${TRAINER_MODE:-sync}             # sync | colocate_async | separate_async
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-128}    # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-128}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-8}        # prompts a step
ROLLOUT_N=${ROLLOUT_N:-8}                      # responses a prompt
MICRO_BATCH_SIZE=${MICRO_BATCH_SIZE:-64}       # responses a forward pass
LR=${LR:-5e-4}
TEMPERATURE=${TEMPERATURE:-1.0}
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-3}
TEST_FREQ=${TEST_FREQ:--1}
SAVE_FREQ=${SAVE_FREQ:--1}
THREADS=${THREADS:-1}                          # of each process; 2 helps only models above 10M parameters

export VERL_PLATFORM=cpu
export OMP_NUM_THREADS=$THREADS TQ_NUM_THREADS=$THREADS TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1
export TENSORBOARD_DIR=$OUT_DIR/tensorboard
# Ray starts idle workers in advance; verl's actors have their own environment and never use them.
export RAY_prestart_worker_first_driver=0 RAY_enable_worker_prestart=0
export RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0
# vLLM-CPU only: GiB for the KV cache, no pinning to cores.
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1

mkdir -p "$OUT_DIR"

args=(
  # what makes it run on a CPU
  trainer.device=cpu trainer.nnodes=1 trainer.n_gpus_per_node=1
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
  +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
  actor_rollout_ref.ref.fsdp_config.use_torch_compile=False
  +actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32
  actor_rollout_ref.ref.fsdp_config.model_dtype=fp32
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.model.use_remove_padding=False
  actor_rollout_ref.model.enable_gradient_checkpointing=False
  actor_rollout_ref.rollout.name="$ROLLOUT"
  actor_rollout_ref.rollout.dtype=float32
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.enforce_eager=True
  actor_rollout_ref.rollout.free_cache_engine=False
  +actor_rollout_ref.rollout.enable_sleep_mode=False

  # ... and the critic, where the estimator has one (algorithm.adv_estimator=gae)
  critic.strategy=fsdp2
  critic.fsdp.use_torch_compile=False
  +critic.fsdp.mixed_precision.param_dtype=fp32
  critic.model.path="$MODEL_PATH"
  +critic.model.override_config.attn_implementation=sdpa
  critic.model.use_remove_padding=False
  critic.model.enable_gradient_checkpointing=False
  critic.ppo_mini_batch_size="$TRAIN_BATCH_SIZE"
  critic.ppo_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"

  # what is learned
  algorithm.adv_estimator=grpo
  actor_rollout_ref.actor.optim.lr="$LR"
  actor_rollout_ref.actor.ppo_mini_batch_size="$TRAIN_BATCH_SIZE"
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu="$MICRO_BATCH_SIZE"
  actor_rollout_ref.rollout.n="$ROLLOUT_N"
  actor_rollout_ref.rollout.temperature="$TEMPERATURE"
  actor_rollout_ref.rollout.seed="$SEED"

  # data, model, reward
  data.train_files="$TRAIN_FILE" data.val_files="$VAL_FILE"
  data.train_batch_size="$TRAIN_BATCH_SIZE"
  data.max_prompt_length="$MAX_PROMPT_LENGTH" data.max_response_length="$MAX_RESPONSE_LENGTH"
  data.dataloader_num_workers=0 data.seed="$SEED"
  actor_rollout_ref.model.path="$MODEL_PATH"
  reward.custom_reward_function.path="$REWARD_PATH"
  reward.custom_reward_function.name=compute_score

  # sizes for a small machine: one process of each kind
  actor_rollout_ref.rollout.max_num_seqs="$((TRAIN_BATCH_SIZE * ROLLOUT_N))"
  actor_rollout_ref.rollout.max_model_len="$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))"
  actor_rollout_ref.rollout.max_num_batched_tokens=4096
  actor_rollout_ref.rollout.agent.num_workers=1
  actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64
  reward.num_workers=1
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  transfer_queue.backend.SimpleStorage.total_storage_size=10000
  ray_kwargs.ray_init.num_cpus=8 +ray_kwargs.ray_init.num_gpus=1
  +ray_kwargs.ray_init.include_dashboard=False
  +ray_kwargs.ray_init.object_store_memory=500000000

  # the run
  trainer.v1.trainer_mode="$TRAINER_MODE"
  trainer.total_training_steps="$TOTAL_STEPS" trainer.total_epochs=1000000
  trainer.test_freq="$TEST_FREQ" trainer.save_freq="$SAVE_FREQ" trainer.val_before_train=False
  trainer.resume_mode=auto trainer.default_local_dir="$OUT_DIR/checkpoints"
  trainer.logger='["console","tensorboard"]'
  trainer.project_name=rredcot trainer.experiment_name=tiny_cpu
)

if [[ $TRAINER_MODE == separate_async ]]; then
  # A second logical GPU for the rollout process, which gets its weights through torch's key-value store.
  args+=(
    ray_kwargs.ray_init.num_gpus=2
    actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=1
    actor_rollout_ref.rollout.checkpoint_engine.backend=cpu_store
    trainer.v1.separate_async.parameter_sync_step=1
  )
fi

cd "$OUT_DIR"
exec "$PYTHON" -m verl.trainer.main_ppo "${args[@]}" "$@"
