// The name of a run. It becomes a directory name and a metric label, so it is short and plain:
// 1 to 63 characters of [A-Za-z0-9_.-], not starting with a dot, and not "lock", which lies beside the runs.
#ifndef FORESHOCK_CLI_RUN_ID_H_
#define FORESHOCK_CLI_RUN_ID_H_

#include <string>

namespace foreshock::cli {

// "" when `run_id` may be used, else what to do.
std::string run_id_problem(const std::string& run_id);

// From the environment: WANDB_RUN_ID, SLURM_JOB_ID (with .SLURM_STEP_ID), TORCHELASTIC_RUN_ID unless it is
// "none", else 8 random hex digits. Foreign text is made to fit.
std::string default_run_id();

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_RUN_ID_H_
