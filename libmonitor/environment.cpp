#include "libmonitor/environment.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace foreshock {
namespace {

// The first of the named variables that holds a whole number, else `fallback`.
int first_number(const Variables& variables, std::initializer_list<const char*> names, int fallback) {
  for (const char* name : names) {
    const char* text = variables.find(name);
    uint64_t value = 0;
    if (text != nullptr && parse_count(text, &value) && value <= 10'000'000) return static_cast<int>(value);
  }
  return fallback;
}

// Tasks of this node, from Slurm's list for all of them: "4(x2),3" is 4, 4, 3. -1 where it cannot be read.
int tasks_of_node(const char* list, int node) {
  for (int first = 0; list != nullptr && *list >= '0' && *list <= '9';) {
    char* end = nullptr;
    const long tasks = std::strtol(list, &end, 10);
    long nodes = 1;
    if (end[0] == '(' && end[1] == 'x') nodes = std::strtol(end + 2, &end, 10);
    if (*end == ')') ++end;
    if (nodes < 1 || tasks > 10'000'000) return -1;
    if (node < first + nodes) return static_cast<int>(tasks);
    first += static_cast<int>(std::min<long>(nodes, 10'000'000));
    list = *end == ',' ? end + 1 : nullptr;
  }
  return -1;
}

int slurm_local_ranks(const Variables& variables) {
  const int node = first_number(variables, {"SLURM_NODEID"}, 0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const int tasks = tasks_of_node(variables.find(name), node); tasks > 0) return tasks;
  return 1;
}

}  // namespace

const char* option_value(const Variables& variables, OptionId id) {
  const Option& row = option(id);
  const char* given = row.variable != nullptr ? variables.find(row.variable) : nullptr;
  return given != nullptr && *given != '\0' ? given : row.fallback;
}

bool read_environment(const Variables& variables, Settings* settings) {
  const auto value = [&](OptionId id) { return option_value(variables, id); };
  const auto number = [&](std::initializer_list<const char*> names, int fallback) {
    return first_number(variables, names, fallback);
  };
  bool enabled = true;
  if (parse_switch(value(OptionId::kEnabled), &enabled) && !enabled) return false;
  const char* base = value(OptionId::kBaseDirectory);
  const char* run_id = value(OptionId::kRunId);
  if (*base == '\0' || *run_id == '\0') return false;
  Settings& s = *settings;
  s = {};
  if (std::snprintf(s.directory, sizeof s.directory, "%s/%s", base, run_id) >= int(sizeof s.directory))
    return false;
  if (std::snprintf(s.run_id, sizeof s.run_id, "%s", run_id) >= int(sizeof s.run_id)) return false;

  // A value that cannot be read leaves the default: `run` has checked them, and here nobody could be told.
  parse_ratio(option(OptionId::kMaxSlowdown).fallback, &s.max_slowdown);
  parse_bytes(option(OptionId::kMemory).fallback, &s.memory);
  s.slices = true;
  parse_count(value(OptionId::kLauncher), &s.launcher_id);
  parse_count(value(OptionId::kEvery), &s.every);
  parse_ratio(value(OptionId::kMaxSlowdown), &s.max_slowdown);
  parse_bytes(value(OptionId::kMemory), &s.memory);
  parse_switch(value(OptionId::kSlices), &s.slices);
  parse_count(value(OptionId::kSeed), &s.seed);
  parse_count(value(OptionId::kCountKernels), &s.count_kernels);
  s.weights = true;
  if (parse_count(value(OptionId::kWeights), &s.weights_every))
    s.weights = s.weights_every > 0;
  else
    parse_switch(value(OptionId::kWeights), &s.weights);

  s.rank = number({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  s.local_rank = number({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, -1);
  // A step may have fewer tasks than its job: the step's number goes first.
  s.world_size =
      number({"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1);
  s.local_ranks =
      number({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"},
             slurm_local_ranks(variables));
  s.attempt = number({"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}, 0);
  return true;
}

}  // namespace foreshock
