# Shared by the recipes of math/, code/ and agent/. A script sets its own values, sources this file, adds its own overrides to
# the groups below, and ends with `train "$@"`. `rredcot recipe print NAME` prints a script with this file inlined.
#
# It needs from the script: HERE, PROJECT, RUN_NAME, MODEL_PATH, DATA_DIR, VAL_FILES, NGPUS_PER_NODE, TRAIN_BATCH_SIZE,
# PPO_MINI_BATCH_SIZE, MAX_RESPONSE_LENGTH, ROLLOUT_MEMORY, MAX_SEGMENTS, VAL_N, TRACES_PER_UPDATE and TRACES_PER_LOG_PROB.

# ---- knobs: the environment wins, then the script, then these ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo: the baseline, nothing else differs
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/train.parquet}
REWARD_PATH=${REWARD_PATH:-$HERE/reward.py}
OUT_DIR=${OUT_DIR:-$PWD/outputs/${RUN_NAME}_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}

NNODES=${NNODES:-1}
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses per prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-1024}       # tokens
ROLLOUT_TP=${ROLLOUT_TP:-1}                        # tensor parallelism of vLLM
LR=${LR:-1e-6}                                     # full fine-tuning with Adam; what verl's own scripts use
SEGMENTER=${SEGMENTER:-sentence}                   # `rredcot list` shows all
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-300}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:-50}
LOGGER=${LOGGER:-'["console","tensorboard"]'}

MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
ACTOR_MAX_TOKENS=${ACTOR_MAX_TOKENS:-$((TRACES_PER_UPDATE * MAX_TOKENS))}
LOG_PROB_MAX_TOKENS=${LOG_PROB_MAX_TOKENS:-$((TRACES_PER_LOG_PROB * MAX_TOKENS))}

# ---- groups of overrides ----
ALGORITHM=(
  algorithm.adv_estimator="$ADV_ESTIMATOR"
  algorithm.norm_adv_by_std_in_grpo=True           # the paper's baseline is group-normalised GRPO; False is Dr. GRPO
  algorithm.use_kl_in_reward=False
)

RREDCOT=(                                          # left out with another ADV_ESTIMATOR
  +algorithm.rredcot.segmenter="$SEGMENTER"
  +algorithm.rredcot.segmenter_kwargs.max_segments="$MAX_SEGMENTS"
)

DATA=(
  data.train_files="$TRAIN_FILES"
  data.val_files="$VAL_FILES"
  data.train_batch_size="$TRAIN_BATCH_SIZE"
  data.max_prompt_length="$MAX_PROMPT_LENGTH"
  data.max_response_length="$MAX_RESPONSE_LENGTH"
  data.filter_overlong_prompts=True
  data.truncation=error
  data.seed="$SEED"
  reward.custom_reward_function.path="$REWARD_PATH"
  reward.custom_reward_function.name=compute_score
)

ACTOR=(
  actor_rollout_ref.model.path="$MODEL_PATH"
  actor_rollout_ref.model.use_remove_padding=True  # no work on padding: rows differ in length
  actor_rollout_ref.actor.optim.lr="$LR"
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

FSDP2=(                                            # a script without Megatron adds these to ACTOR
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  # no Ulysses and no fused kernels: with either, probes become separate rows (docs/guides/choosing-values.md)
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=1
  actor_rollout_ref.model.use_fused_kernels=False
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
  actor_rollout_ref.rollout.val_kwargs.n="$VAL_N"
)

SAMPLED_VALIDATION=(                               # for models that think: what their cards say
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=0.6
  actor_rollout_ref.rollout.val_kwargs.top_p=0.95
)
GREEDY_VALIDATION=(actor_rollout_ref.rollout.val_kwargs.do_sample=False)

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
  trainer.project_name="$PROJECT" trainer.experiment_name="${RUN_NAME}_$ADV_ESTIMATOR"
)

# What loggers, rewards and tools read from the environment. The processes of a running Ray cluster do not see this shell's
# environment, so verl is told to forward these variables.
FORWARDED=(
  TENSORBOARD_DIR RREDCOT_MATH_TIMEOUT RREDCOT_MATH_WORKERS RREDCOT_CODE_SECONDS RREDCOT_SANDBOX RREDCOT_TRUST_CODE
)

train() {  # overrides that come last and win
  local name
  [[ $ADV_ESTIMATOR != rredcot* ]] || ALGORITHM+=("${RREDCOT[@]}")
  export TENSORBOARD_DIR=${TENSORBOARD_DIR:-$OUT_DIR/tensorboard}
  for name in "${FORWARDED[@]}"; do  # in quotes: Ray takes texts only, and 5 would be a number
    [[ -z ${!name:-} ]] || TRAINER+=("+ray_kwargs.ray_init.runtime_env.env_vars.$name='${!name}'")
  done
  exec "$PYTHON" -m verl.trainer.main_ppo \
    "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
}
