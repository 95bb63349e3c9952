#include "cli/run_id.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace foreshock::cli {
namespace {

constexpr size_t kLongest = 63;  // the segment keeps 64 bytes

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string made_to_fit(std::string text) {
  if (text.size() > kLongest) text.resize(kLongest);
  for (char& c : text) {
    if (!is_plain(c)) c = '_';
  }
  if (text[0] == '.' || text == "lock") text[0] = '_';
  return text;
}

std::string random_id() {
  std::random_device device;
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", device());
  return digits;
}

std::string slurm_id() {
  const std::string job = from_environment("SLURM_JOB_ID"), step = from_environment("SLURM_STEP_ID");
  return job.empty() || step.empty() ? job : job + "." + step;
}

}  // namespace

std::string run_id_problem(const std::string& run_id) {
  if (run_id.empty() || run_id.size() > kLongest) return "give a run id of 1 to 63 characters";
  for (char c : run_id) {
    if (!is_plain(c)) return "use only letters, digits, '_', '.' and '-' in a run id, not '" + run_id + "'";
  }
  if (run_id[0] == '.' || run_id == "lock")
    return "choose another run id than '" + run_id + "', which is reserved";
  return "";
}

std::string default_run_id() {
  if (const std::string id = from_environment("WANDB_RUN_ID"); !id.empty()) return made_to_fit(id);
  if (const std::string id = slurm_id(); !id.empty()) return made_to_fit(id);
  if (const std::string id = from_environment("TORCHELASTIC_RUN_ID"); !id.empty() && id != "none") {
    return made_to_fit(id);
  }
  return random_id();
}

}  // namespace foreshock::cli
