#!/bin/sh
# TaskProlog of slurm.conf: what it prints as `export NAME=value` becomes the environment of the task. It runs as the
# user of the job, before every task. Whatever is missing: it prints nothing, and the task runs as if it were not there.
foreshock=${FORESHOCK_PREFIX:-/opt/foreshock}
tree=${FORESHOCK_TREE:-/run/foreshock}

case ${FORESHOCK-} in 0 | off | no | false) exit 0 ;; esac
[ -n "${SLURM_JOB_ID-}" ] && [ -d "$tree" ] && [ -r "$foreshock/lib/libforeshock.so" ] || exit 0
# `foreshock run` in the job does all this itself.
[ -z "${FORESHOCK_LAUNCHER-}" ] || exit 0

# The newest adapters that the administrator has prepared.
# shellcheck disable=SC2012 # our own names
adapters=$(ls -td "$foreshock"/cache/adapters-*/ 2>/dev/null | head -n 1)
[ -n "$adapters" ] || exit 0

# Of another alphabet than labels have: by number.
user=${SLURM_JOB_USER:-$(id -un)}
case $user in *[!A-Za-z0-9_.-]*) user=$(id -u) ;; esac
# The batch script and an interactive shell are steps without a number of their own.
case ${SLURM_STEP_ID-} in '' | -* | 42949672??) run=$SLURM_JOB_ID ;; *) run=$SLURM_JOB_ID.$SLURM_STEP_ID ;; esac
(umask 077 && mkdir -p "$tree/$user/$run") 2>/dev/null
[ -w "$tree/$user/$run" ] || exit 0

# `import torch` finds the helper here, which loads the library. A step may have inherited this from the batch script.
helper=$foreshock/share/foreshock/python
case :${PYTHONPATH-}: in *":$helper:"*) ;; *) PYTHONPATH=$helper${PYTHONPATH:+:$PYTHONPATH} ;; esac

echo "export FORESHOCK_DIR=$tree/$user"
echo "export FORESHOCK_RUN_ID=$run"
echo "export FORESHOCK_ADAPTERS=${adapters%/}"
echo "export PYTHONPATH=$PYTHONPATH"
