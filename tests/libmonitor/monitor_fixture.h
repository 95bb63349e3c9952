// The ABI as an adapter uses it, with the segment read back by the agent's reader. The monitor is one object
// per process, so every case runs in a child of its own.
#ifndef FORESHOCK_TESTS_LIBMONITOR_MONITOR_FIXTURE_H_
#define FORESHOCK_TESTS_LIBMONITOR_MONITOR_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "foreshock/hook.h"
#include "segment/reader.h"
#include "tests/support/reported_step.h"

namespace foreshock {

namespace fs = std::filesystem;
using segment::SegmentReader;

class MonitorTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/dev/shm/foreshock-test-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no tmpfs at /dev/shm";
    base_ = pattern;
    fs::create_directory(base_ + "/r");
  }
  void TearDown() override { fs::remove_all(base_); }

  template <class Body>
  void in_child(std::vector<std::pair<const char*, const char*>> variables, Body body) {
    const pid_t child = fork();
    if (child == 0) {
      unsetenv("FORESHOCK");
      setenv("FORESHOCK_DIR", base_.c_str(), 1);
      setenv("FORESHOCK_RUN_ID", "r", 1);
      setenv("FORESHOCK_EVERY", "1", 1);
      setenv("FORESHOCK_MAX_SLOWDOWN", "100%", 1);
      for (const auto& [name, value] : variables) setenv(name, value, 1);
      body();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "the child failed";
  }

  std::vector<std::string> files(const std::string& ending) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(base_ + "/r"))
      if (entry.path().string().ends_with(ending)) names.push_back(entry.path().stem());
    return names;
  }

  std::unique_ptr<SegmentReader> open() {
    const auto names = files(".seg");
    if (names.size() != 1) return nullptr;
    std::string why;
    auto reader = SegmentReader::open(base_ + "/r", names[0], &why);
    EXPECT_NE(reader, nullptr) << why;
    return reader;
  }
  std::string base_;
};

// A training of `layers` attention calls each way.
struct Trainer {
  int32_t forward_op = foreshock_register_op("test::forward", FORESHOCK_FORWARD);
  int32_t backward_op = foreshock_register_op("test::backward", FORESHOCK_BACKWARD);
  std::vector<float> data = std::vector<float>(2 * 4 * 8 * 16, 0.5f);
  std::vector<float> lse = std::vector<float>(2 * 4 * 8, 1.f);
  int described = 0;
  bool gives_key_gradients = false;

  foreshock_attention_call call(int32_t op, bool backward) {
    foreshock_attention_call call = {};
    call.size = sizeof call;
    call.version = FORESHOCK_ABI_VERSION;
    call.op = op;
    call.scale = 0.25;
    const foreshock_tensor tensor = {data.data(), {2, 4, 8, 16}, {512, 128, 16, 1}, FORESHOCK_FP32, 4, 0, 0};
    call.query = call.key = call.value = call.out = tensor;
    call.log_sum_exp = {lse.data(), {2, 4, 8, 1}, {32, 8, 1, 0}, FORESHOCK_FP32, 3, 0, 0};
    if (backward) call.grad_out = call.grad_query = tensor;
    if (backward && gives_key_gradients) call.grad_key = call.grad_value = tensor;
    return call;
  }
  void attention(bool backward, uint32_t flags = 0) {
    const int32_t op = backward ? backward_op : forward_op;
    if (foreshock_attention_enter(op, flags) == 0) return;
    ++described;
    const foreshock_attention_call description = call(op, backward);
    foreshock_attention_leave(&description);
  }
  void step(int64_t number, int layers) {
    for (int n = 0; n < layers; ++n) attention(false, FORESHOCK_NEEDS_GRADIENT);
    for (int n = 0; n < layers; ++n) attention(true, FORESHOCK_IN_BACKWARD);
    end(number);
  }
  void end(int64_t number, uint32_t source = FORESHOCK_STEP_REPORTED) {
    foreshock_step record = reported_step(number);
    record.step_source = source;
    record.loss = 1.0 / static_cast<double>(number);
    record.given = FORESHOCK_GIVEN_LOSS;
    foreshock_step_end(&record);
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_MONITOR_FIXTURE_H_
