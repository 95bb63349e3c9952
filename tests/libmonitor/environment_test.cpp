#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "libmonitor/options.h"

namespace foreshock {
namespace {

void unset_all() {
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID",
        "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
        "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT",
        "FORESHOCK_DIR", "FORESHOCK_RUN_ID"})
    unsetenv(name);
}

// What a process knows of itself that has just these variables. The tests of other files have none of them.
Settings settings_of(const std::map<std::string, std::string>& variables) {
  unset_all();
  setenv("FORESHOCK_DIR", "/dev/shm/x", 1);
  setenv("FORESHOCK_RUN_ID", "r", 1);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  Settings settings = {};
  EXPECT_TRUE(read_environment(&settings));
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  unset_all();
  return settings;
}

TEST(Environment, Torchrun) {
  const Settings s = settings_of({{"RANK", "5"},
                                  {"LOCAL_RANK", "1"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"},
                                  {"SLURM_PROCID", "1"},  // torchrun under srun: torchrun's own go first
                                  {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(s.rank, 5);
  EXPECT_EQ(s.local_rank, 1);
  EXPECT_EQ(s.world_size, 8);
  EXPECT_EQ(s.local_ranks, 4);
  EXPECT_EQ(s.attempt, 2);
}

TEST(Environment, WeightsAreFollowedUnlessTheyAreOff) {
  const auto weights = [](const char* given) {
    const Settings s = settings_of({{"FORESHOCK_WEIGHTS", given}});
    unsetenv("FORESHOCK_WEIGHTS");
    return std::pair(s.weights, s.weights_every);
  };
  EXPECT_EQ(weights("auto"), std::pair(true, uint64_t{0}));
  EXPECT_EQ(weights("32"), std::pair(true, uint64_t{32}));
  EXPECT_EQ(weights("1"), std::pair(true, uint64_t{1}));
  for (const char* off : {"0", "off", "no"}) EXPECT_FALSE(weights(off).first) << off;
}

TEST(Environment, IntervalIsAPromiseUnlessALimitIsGiven) {
  const auto is_promised = [](const char* every, const char* limit) {
    const Settings s = settings_of({{"FORESHOCK_EVERY", every}, {"FORESHOCK_MAX_SLOWDOWN", limit}});
    EXPECT_EQ(s.max_slowdown, *limit == '\0' ? 0.01 : 0.02);
    for (const char* name : {"FORESHOCK_EVERY", "FORESHOCK_MAX_SLOWDOWN"}) unsetenv(name);
    return s.every_ignores_cost;
  };
  EXPECT_TRUE(is_promised("1", ""));
  EXPECT_FALSE(is_promised("1", "2%"));
  EXPECT_FALSE(is_promised("0", ""));
  EXPECT_FALSE(is_promised("", ""));
}

TEST(Environment, Srun) {
  const Settings s = settings_of({{"SLURM_PROCID", "9"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_NTASKS", "16"},
                                  {"SLURM_STEP_NUM_TASKS", "11"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                                  {"SLURM_TASKS_PER_NODE", "8(x2)"},
                                  {"SLURM_NODEID", "2"},
                                  {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(s.rank, 9);
  EXPECT_EQ(s.local_rank, 1);
  EXPECT_EQ(s.world_size, 11);
  EXPECT_EQ(s.local_ranks, 3);
  EXPECT_EQ(s.attempt, 1);
}

TEST(Environment, TasksOfANode) {
  const auto tasks = [](const char* list, const char* node) {
    return settings_of({{"SLURM_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}}).local_ranks;
  };
  EXPECT_EQ(tasks("4(x2),3", "0"), 4);
  EXPECT_EQ(tasks("4(x2),3", "1"), 4);
  EXPECT_EQ(tasks("2,8(x1000),1", "1000"), 8);
  EXPECT_EQ(tasks("2,8(x1000),1", "1001"), 1);
  for (const char* nonsense : {"", "x", "4(x", "4(x0)", "4(x-1)", "-3", "99999999999999999999", "4,", "4;3"})
    EXPECT_EQ(tasks(nonsense, "7"), 1) << nonsense;
}

TEST(Environment, NothingTold) {
  const Settings s = settings_of({});
  EXPECT_EQ(s.rank, 0);
  EXPECT_EQ(s.local_rank, -1);
  EXPECT_EQ(s.world_size, 1);
  EXPECT_EQ(s.local_ranks, 1);
  EXPECT_EQ(s.attempt, 0);
}

}  // namespace
}  // namespace foreshock
