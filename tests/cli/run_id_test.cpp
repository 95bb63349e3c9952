#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/options.h"

namespace foreshock::cli {
namespace {

class RunId : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"WANDB_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"})
      unsetenv(name);
  }
  void TearDown() override { SetUp(); }
};

TEST_F(RunId, PlainNamesOnly) {
  EXPECT_EQ(run_id_problem("gpt-2_small.7"), "");
  EXPECT_EQ(run_id_problem(std::string(63, 'a')), "");
  for (const char* bad : {"", ".", "..", ".hidden", "lock", "a/b", "a b", "a\nb", "\xc3\xa4", "a:b"}) {
    EXPECT_NE(run_id_problem(bad), "") << bad;
  }
  EXPECT_NE(run_id_problem(std::string(64, 'a')), "");
}

TEST_F(RunId, DefaultFollowsTheOrderOfSources) {
  setenv("TORCHELASTIC_RUN_ID", "elastic", 1);
  EXPECT_EQ(default_run_id(), "elastic");
  setenv("SLURM_JOB_ID", "123", 1);
  EXPECT_EQ(default_run_id(), "123");
  setenv("SLURM_STEP_ID", "4", 1);
  EXPECT_EQ(default_run_id(), "123.4");
  setenv("WANDB_RUN_ID", "fresh-sky", 1);
  EXPECT_EQ(default_run_id(), "fresh-sky");
}

TEST_F(RunId, TorchrunsPlaceholderIsNoName) {
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  EXPECT_EQ(default_run_id().size(), 8u);
  EXPECT_EQ(run_id_problem(default_run_id()), "");
  EXPECT_NE(default_run_id(), default_run_id());
}

TEST_F(RunId, ForeignTextIsMadeToFit) {
  for (const std::string& foreign :
       {std::string("../../etc"), std::string("a b\n{}"), std::string(200, 'x'), std::string("lock")}) {
    setenv("WANDB_RUN_ID", foreign.c_str(), 1);
    EXPECT_EQ(run_id_problem(default_run_id()), "") << foreign;
  }
}

}  // namespace
}  // namespace foreshock::cli
