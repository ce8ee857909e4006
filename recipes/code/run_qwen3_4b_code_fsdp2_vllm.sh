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

# ---- knobs ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/train.parquet}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/human_eval.parquet,$DATA_DIR/mbpp_test.parquet]}
OUT_DIR=${OUT_DIR:-$PWD/outputs/qwen3_4b_code_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}

NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
FSDP_SIZE=${FSDP_SIZE:--1}                         # -1: shard over all GPUs; 8: within a node, replicate between nodes
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-64}           # prompts a step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}     # prompts an update: two updates a step
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses a prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-2048}       # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-16384}
ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.7}              # of the GPU, while vLLM is awake
LR=${LR:-1e-6}
# The thoughts are cut; the program behind </think> is the answer. A probe is a whole program that passed, as another
# rollout of the group wrote it. Its probability is next to 0, hence the mean per token (length_normalize). One probe a
# boundary: such means of several programs would add up to more than 1, and all of them together would cost too much.
SEGMENTER=${SEGMENTER:-sentence}                   # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-32}
MIN_SEGMENT_TOKENS=${MIN_SEGMENT_TOKENS:-128}      # at most one probe for so many tokens: bounds memory, see below
MAX_PROPOSALS=${MAX_PROPOSALS:-1}
MAX_PROBE_TOKENS=${MAX_PROBE_TOKENS:-1024}         # longer programs are not proposed: rredcot/fallback/answer_too_long/mean
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-300}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:-50}
VAL_N=${VAL_N:-4}                                  # samples a validation problem: val-core/human_eval/acc/mean@4
LOGGER=${LOGGER:-'["console","tensorboard"]'}

# The sandbox (docs/guides/sandbox.md). A reward worker runs up to 32 programs at once, two short processes each. With fewer than
# some 16 cores of the node for each worker, right programs may run out of time.
REWARD_WORKERS=${REWARD_WORKERS:-4}
export RREDCOT_CODE_SECONDS=${RREDCOT_CODE_SECONDS:-5} # of processor time a program
export RREDCOT_SANDBOX=${RREDCOT_SANDBOX:-strong}  # weak: no namespaces; needs RREDCOT_TRUST_CODE=1
export RREDCOT_TRUST_CODE=${RREDCOT_TRUST_CODE:-0} # 1: the model's code will not attack what checks it (docs/guides/sandbox.md)

# One full-length trace is the least that a micro-batch must hold.
MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
ACTOR_MAX_TOKENS=${ACTOR_MAX_TOKENS:-$MAX_TOKENS}
# Probes come on top of verl's count: one of some 300 tokens for every MIN_SEGMENT_TOKENS at most, whose logits (0.3 MB a
# token) exist at once: 13 GB a micro-batch of 18,432 tokens. Nothing is kept for a backward pass here.
LOG_PROB_MAX_TOKENS=${LOG_PROB_MAX_TOKENS:-$MAX_TOKENS}

ALGORITHM=(
  algorithm.adv_estimator="$ADV_ESTIMATOR"
  algorithm.norm_adv_by_std_in_grpo=True           # the paper's baseline is group-normalised GRPO; False is Dr. GRPO
  algorithm.use_kl_in_reward=False
)
if [[ $ADV_ESTIMATOR == rredcot* ]]; then
  ALGORITHM+=(
    +algorithm.rredcot.segmenter="$SEGMENTER"
    +algorithm.rredcot.segmenter_kwargs.max_segments="$MAX_SEGMENTS"
    +algorithm.rredcot.segmenter_kwargs.min_segment_tokens="$MIN_SEGMENT_TOKENS"
    +algorithm.rredcot.segmenter_kwargs.answer_markers="[think]" # a fence inside the thoughts is no answer
    +algorithm.rredcot.value_kwargs.max_proposals="$MAX_PROPOSALS"
    +algorithm.rredcot.max_probe_tokens="$MAX_PROBE_TOKENS"
    +algorithm.rredcot.length_normalize=true
    +algorithm.rredcot.proposals=group             # never the ground truth: it is tests, no program
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
  reward.num_workers="$REWARD_WORKERS"
)

ACTOR=(
  actor_rollout_ref.model.path="$MODEL_PATH"
  actor_rollout_ref.model.use_remove_padding=True  # rows differ in length by a factor of ten
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.fsdp_config.fsdp_size="$FSDP_SIZE"
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
  # no Ulysses and no fused kernels: with either, probes become rows of their own (docs/guides/choosing-values.md)
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
  trainer.project_name=rredcot_code trainer.experiment_name="qwen3_4b_code_$ADV_ESTIMATOR"
)

export TENSORBOARD_DIR=${TENSORBOARD_DIR:-$OUT_DIR/tensorboard}
exec "$PYTHON" -m verl.trainer.main_ppo \
  "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
