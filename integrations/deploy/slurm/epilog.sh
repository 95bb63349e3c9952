#!/bin/sh
# Epilog of slurm.conf: takes away what the tasks of a job have left below the tree, when the last one on this node has
# ended. The agent has these files open and reads them to the end.
tree=${FORESHOCK_TREE:-/run/foreshock}
case ${SLURM_JOB_ID:-none}${SLURM_JOB_UID:-none} in *[!0-9]*) exit 0 ;; esac

# As the user, whose directory it is: where his links lead, root must not remove anything.
set --
if [ "$(id -u)" -eq 0 ]; then
    set -- setpriv "--reuid=$SLURM_JOB_UID" "--regid=${SLURM_JOB_GID:-$SLURM_JOB_UID}" --clear-groups --
fi
for user in "$(id -un "$SLURM_JOB_UID" 2>/dev/null)" "$SLURM_JOB_UID"; do
    [ -z "$user" ] || "$@" rm -rf -- "$tree/$user/$SLURM_JOB_ID" "$tree/$user/$SLURM_JOB_ID".* 2>/dev/null
done
exit 0
