#!/usr/bin/env bash
# rredcot, or GRPO to compare with | Qwen2.5-Coder-1.5B-Instruct on KodCode, 2,048-token responses | FSDP2 + vLLM
# 2 x 80 GB; one is enough with NGPUS_PER_NODE=1
#
#   python prepare_data.py --source kodcode --out data/kodcode --val-size 256 --eval human-eval --eval mbpp-test
#   DATA_DIR=$PWD/data/kodcode ./run_qwen25_coder_1p5b_fsdp2_vllm.sh [hydra overrides]
#   DATA_DIR=$PWD/data/kodcode ADV_ESTIMATOR=grpo ./run_qwen25_coder_1p5b_fsdp2_vllm.sh
#
# Not run on a GPU yet; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- knobs ----
ADV_ESTIMATOR=${ADV_ESTIMATOR:-rredcot}            # rredcot | grpo
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Coder-1.5B-Instruct}
DATA_DIR=${DATA_DIR:-$PWD/data/kodcode}
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/train.parquet}
VAL_FILES=${VAL_FILES:-[$DATA_DIR/val.parquet,$DATA_DIR/human_eval.parquet,$DATA_DIR/mbpp_test.parquet]}
OUT_DIR=${OUT_DIR:-$PWD/outputs/qwen25_coder_1p5b_$ADV_ESTIMATOR}
PYTHON=${PYTHON:-python3}

NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-2}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-128}          # prompts a step
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-64}     # prompts an update: two updates a step
ROLLOUT_N=${ROLLOUT_N:-8}                          # responses a prompt
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-1024}       # tokens
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-2048}   # a plan of a few sentences, and the program
ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}              # of the GPU, while vLLM is awake
LR=${LR:-1e-6}
# The program is most of the response, so credit must reach into it: `code` cuts at sentences outside the fence, at blocks
# inside. Behind half a program no whole one can be put as a probe, so values come from what needs none: how sure the
# model has been so far, fitted to the outcome. VALUE_ESTIMATOR=monte_carlo goes on from every boundary instead: unbiased,
# and samples x segments as many rollouts and programs to run.
SEGMENTER=${SEGMENTER:-code}                       # `rredcot list` shows all
MAX_SEGMENTS=${MAX_SEGMENTS:-16}
VALUE_ESTIMATOR=${VALUE_ESTIMATOR:-confidence}
SEED=${SEED:-42}
TOTAL_STEPS=${TOTAL_STEPS:-300}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:-50}
VAL_N=${VAL_N:-1}                                  # samples a validation problem: val-core/human_eval/acc/mean@1
LOGGER=${LOGGER:-'["console","tensorboard"]'}

# The sandbox (docs/guides/sandbox.md). A reward worker runs up to 32 programs at once, two short processes each. With fewer than
# some 16 cores of the node for each worker, right programs may run out of time.
REWARD_WORKERS=${REWARD_WORKERS:-2}
export RREDCOT_CODE_SECONDS=${RREDCOT_CODE_SECONDS:-5} # of processor time a program
export RREDCOT_SANDBOX=${RREDCOT_SANDBOX:-strong}  # weak: no namespaces; needs RREDCOT_TRUST_CODE=1
export RREDCOT_TRUST_CODE=${RREDCOT_TRUST_CODE:-0} # 1: the model's code will not attack what checks it (docs/guides/sandbox.md)

# Of a GPU's 80 GB this leaves half free; one full-length trace is the least that a micro-batch must hold.
MAX_TOKENS=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
ACTOR_MAX_TOKENS=${ACTOR_MAX_TOKENS:-$((4 * MAX_TOKENS))}
LOG_PROB_MAX_TOKENS=${LOG_PROB_MAX_TOKENS:-$((4 * MAX_TOKENS))}

ALGORITHM=(
  algorithm.adv_estimator="$ADV_ESTIMATOR"
  algorithm.norm_adv_by_std_in_grpo=True           # the paper's baseline is group-normalised GRPO; False is Dr. GRPO
  algorithm.use_kl_in_reward=False
)
if [[ $ADV_ESTIMATOR == rredcot* ]]; then
  ALGORITHM+=(
    +algorithm.rredcot.segmenter="$SEGMENTER"
    +algorithm.rredcot.segmenter_kwargs.max_segments="$MAX_SEGMENTS"
    +algorithm.rredcot.segmenter_kwargs.answer_markers="[think]" # "####" is a heading or a comment here, no answer
    +algorithm.rredcot.value_estimator="$VALUE_ESTIMATOR"
    +algorithm.rredcot.proposals=group             # for estimators with probes: the ground truth is tests, no program
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
  actor_rollout_ref.model.use_remove_padding=True  # no work on padding
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
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
  actor_rollout_ref.rollout.val_kwargs.do_sample=False # greedy
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
  trainer.project_name=rredcot_code trainer.experiment_name="qwen25_coder_1p5b_$ADV_ESTIMATOR"
)

export TENSORBOARD_DIR=${TENSORBOARD_DIR:-$OUT_DIR/tensorboard}
exec "$PYTHON" -m verl.trainer.main_ppo \
  "${ALGORITHM[@]}" "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
