# Where the model's programs run, for every recipe of this folder (docs/guides/sandbox.md). A script sets REWARD_WORKERS
# and sources this file after ../common.sh.
export RREDCOT_CODE_SECONDS=${RREDCOT_CODE_SECONDS:-5} # of processor time per program
export RREDCOT_SANDBOX=${RREDCOT_SANDBOX:-strong}  # weak: no namespaces; needs RREDCOT_TRUST_CODE=1
export RREDCOT_TRUST_CODE=${RREDCOT_TRUST_CODE:-0} # 1: the model's code will not attack what checks it

# A reward worker runs up to 32 programs at once, two short processes each. With fewer than about 16 cores
# per worker on the node, correct programs may run out of time.
DATA+=(reward.num_workers="$REWARD_WORKERS")
