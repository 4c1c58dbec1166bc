#!/bin/bash
# A run on a Slurm cluster: sbatch deploy/slurm.sh
#
# The first node runs the hub, and all nodes run workers. Slurm runs this script again after a preemption, after the
# loss of a node, and before the time limit. The run then continues from its newest checkpoint.
# $VENV is a virtual environment on a shared file system. Create it in the checkout:
#   python3 -m venv "$VENV" && "$VENV/bin/pip" install torch==2.13.0 ".[ray]" ray==2.60.0
# $HOME and $CHECKPOINTS must be on shared file systems, too.
#SBATCH --job-name=oddlot
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

set -eu
source "${VENV:-$HOME/venv}/bin/activate"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0    # Slurm stops all nodes of a job at once.
umask 077
ray get-auth-token --generate > /dev/null
trap 'ray stop --force' EXIT

address=$(python -c 'import ray; print(ray.util.get_node_ip_address())'):6379
ray start --head --port=6379 --num-cpus=$((SLURM_CPUS_PER_TASK - 1)) --include-dashboard=false  # one CPU for the hub
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n +2); do
    srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodelist="$node" \
        ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done

RAY_ADDRESS=$address oddlot train digits --epochs 20 --engine ray --workers 2-31 \
    --checkpoints "${CHECKPOINTS:-$HOME/oddlot/digits}" --resume auto &
run=$!

requeue=
trap 'kill -TERM "$run" || true' TERM              # on cancellation or preemption: write a checkpoint
trap 'requeue=1; kill -TERM "$run" || true' USR1   # two minutes before the time limit: also requeue
code=0
wait "$run" || code=$?
while kill -0 "$run" 2> /dev/null; do              # a signal has interrupted `wait`
    code=0
    wait "$run" || code=$?
done
trap - TERM
trap '' USR1
if [ -n "$requeue" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
