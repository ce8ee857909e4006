# Shared by the recipes for OpenRLHF. A script sets its own values, sources this file, adds its own flags to the groups
# below, and ends with `train "$@"`. `rredcot recipe print NAME` prints a script with this file inlined.
#
# It needs from the script: HERE, TASK, RUN_NAME, MODEL_PATH, DATA_DIR, NGPUS_PER_NODE, ROLLOUT_BATCH_SIZE, TRAIN_BATCH_SIZE,
# MAX_RESPONSE_LENGTH, ROLLOUT_MEMORY, MAX_SEGMENTS, MAX_TOKENS_PER_GPU.

# ---- knobs: the environment wins, then the script, then these ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | group_norm: the baseline, nothing else differs
TRAIN_FILE=${TRAIN_FILE:-$DATA_DIR/train.parquet}
REWARD_PATH=${REWARD_PATH:-$HERE/reward.py}
OUT_DIR=${OUT_DIR:-$PWD/outputs/${RUN_NAME}_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}
export RREDCOT_TASK=$TASK                          # which reward reward.py loads

NNODES=${NNODES:-1}
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses per prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-1024}       # tokens
ROLLOUT_TP=${ROLLOUT_TP:-1}                        # tensor parallelism of vLLM
LR=${LR:-1e-6}                                     # full fine-tuning with Adam
SEGMENTER=${SEGMENTER:-sentence}                   # `rredcot list` shows all
SEED=${SEED:-42}
EPISODES=${EPISODES:-1}                            # times through the data
SAVE_STEPS=${SAVE_STEPS:-50}

MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
GPUS=$((NNODES * NGPUS_PER_NODE))

# ---- groups of flags ----
ALGORITHM=(
  --algo.advantage.estimator "$ADV_ESTIMATOR"      # group-normalised, as the paper's baseline; --algo.advantage.no_std_norm: Dr. GRPO
  --algo.kl.init_coef 0                            # no reference model: its memory goes to longer traces
  --actor.eps_clip_low_high 0.2 0.28               # clip-higher: rare tokens may gain, entropy lasts longer (DAPO)
  --algo.advantage.is_correction_level token       # importance sampling between vLLM and the actor; ratios outside [0.5, 5] are masked
)

RREDCOT=(                                          # left out with another ADV_ESTIMATOR
  --algo.rredcot.segmenter "$SEGMENTER"
  --algo.rredcot.segmenter_kwargs.max_segments "$MAX_SEGMENTS"
)

DATA=(
  --data.prompt_dataset "$TRAIN_FILE"
  --data.input_key prompt
  --data.label_key reward_model
  --data.apply_chat_template
  --data.max_len "$MAX_TOKENS"
  --reward.remote_url "$REWARD_PATH"
)

ACTOR=(
  --actor.model_name_or_path "$MODEL_PATH"
  --actor.adam.lr "$LR"
  --actor.lr_scheduler constant_with_warmup
  --actor.lr_warmup_ratio 0.03
  --actor.gradient_checkpointing_enable
  --actor.num_nodes "$NNODES"
  --actor.num_gpus_per_node "$NGPUS_PER_NODE"
  --ref.num_nodes "$NNODES"
  --ref.num_gpus_per_node "$NGPUS_PER_NODE"
  --ds.zero_stage 3
  --ds.packing_samples                             # no work on padding: rows differ in length
  --ds.attn_implementation flash_attention_2
  # no ring attention, no DeepSpeed tensor parallelism: with either, probes run as separate rows (docs/guides/openrlhf.md)
  --ds.enable_sleep
  --train.colocate_all
  --train.batch_size "$TRAIN_BATCH_SIZE"
  --train.dynamic_batch_enable
  --train.max_tokens_per_gpu "$MAX_TOKENS_PER_GPU"
  --train.num_episodes "$EPISODES"
  --train.seed "$SEED"
)

ROLLOUT=(
  --vllm.num_engines $((GPUS / ROLLOUT_TP))
  --vllm.tensor_parallel_size "$ROLLOUT_TP"
  --vllm.gpu_memory_utilization "$ROLLOUT_MEMORY"
  --vllm.enable_sleep
  --vllm.sync_backend nccl
  --rollout.batch_size "$ROLLOUT_BATCH_SIZE"
  --rollout.n_samples_per_prompt "$ROLLOUT_N"
  --rollout.max_new_tokens "$MAX_RESPONSE_LENGTH"
  --rollout.max_tokens_per_gpu "$MAX_TOKENS_PER_GPU"
  --rollout.temperature 1.0                        # sampled from the policy that is trained, not from a sharper one
)

OUTPUT=(
  --ckpt.output_dir "$OUT_DIR/model"
  --ckpt.path "$OUT_DIR/checkpoints"
  --ckpt.save_steps "$SAVE_STEPS"
  --ckpt.max_num 2
  --ckpt.load_enable                               # goes on where it stopped
  --logger.tensorboard_dir "$OUT_DIR/tensorboard"
)

train() {  # flags that come last and win
  [[ $ADV_ESTIMATOR != r*edcot* && $ADV_ESTIMATOR != red ]] || ALGORITHM+=("${RREDCOT[@]}")
  exec "$PYTHON" -m rredcot_plugin.integrations.openrlhf \
    "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${OUTPUT[@]}" "$@"
}
