#!/bin/bash
# Runs a command as one process of an MXNet dist_sync job. The rank from mpirun or srun determines its role.
#   rank 0                  scheduler
#   1 to DMLC_NUM_SERVER    servers
#   all others              workers
# usage: role.sh COMMAND ...    with DMLC_NUM_SERVER, DMLC_NUM_WORKER, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT set
set -eu

fail() { echo "role.sh: error: $*" >&2; exit 2; }

[ $# -gt 0 ] || fail "no command given; usage: role.sh COMMAND ..."
for name in DMLC_NUM_SERVER DMLC_NUM_WORKER DMLC_PS_ROOT_URI DMLC_PS_ROOT_PORT; do
  [ -n "${!name:-}" ] || fail "$name is not set"
done

# MPI's variables come first: inside a Slurm job, mpirun passes on the job script's own SLURM_PROCID.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-}}}}
size=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-${SLURM_NTASKS:-}}}
processes=$((1 + DMLC_NUM_SERVER + DMLC_NUM_WORKER))
[ -n "$rank" ] || fail "no rank found; start it with mpirun or srun"
[ "${size:-$processes}" = "$processes" ] || fail "$size processes were started, but the job has $processes: 1 scheduler, $DMLC_NUM_SERVER servers, $DMLC_NUM_WORKER workers"

if [ "$rank" = 0 ]; then
  export DMLC_ROLE=scheduler
elif [ "$rank" -le "$DMLC_NUM_SERVER" ]; then
  export DMLC_ROLE=server
  export MXNET_ENGINE_TYPE=${MXNET_ENGINE_TYPE:-NaiveEngine}    # servers wait for each operation in any case: fewer hand-overs
else
  export DMLC_ROLE=worker
fi
unset PORT    # every process would listen on it
exec "$@"
