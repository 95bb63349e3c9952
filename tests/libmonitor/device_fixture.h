// A training on a device of the fake driver, with the segment read back as the agent does.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_FIXTURE_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_FIXTURE_H_

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/libmonitor/device_trainer.h"
#include "tests/libmonitor/monitor_fixture.h"

namespace foreshock {

// The names of the calls that were given `stream`, or of all.
inline std::vector<std::string> names_of_calls(const void* stream = nullptr) {
  std::vector<std::string> names;
  for (const fake_cuda::Call& call : fake_cuda::calls())
    if (stream == nullptr || call.stream == stream) names.push_back(call.name);
  return names;
}

inline int count_of(const std::string& name) {
  const auto names = names_of_calls();
  return static_cast<int>(std::count(names.begin(), names.end(), name));
}

// What lies in a segment, by step and pass: headers and payloads.
struct Sample {
  segment::Slot header;
  std::vector<std::byte> payload[segment::kPayloads];
};
inline segment::SlotView view_of(const Sample& sample) {
  segment::SlotView view;
  view.header = sample.header;
  for (uint32_t n = 0; n < segment::kPayloads; ++n) view.payload[n] = sample.payload[n];
  return view;
}
using Samples = std::map<std::pair<int64_t, uint32_t>, Sample>;

class DeviceTest : public MonitorTest {
 protected:
  // A trainer in a child; what the fake driver objects to fails the test.
  template <class Body>
  void train(Body body, std::vector<std::pair<const char*, const char*>> variables = {},
             fake_cuda::Run run = fake_cuda::Run::kByHand, int devices = 1) {
    in_child(std::move(variables), [&] {
      fake_cuda::start(run, devices);
      DeviceTrainer trainer;
      body(trainer);
      EXPECT_EQ(fake_cuda::violations(), std::vector<std::string>());
    });
  }

  segment::Totals totals() {
    auto reader = open();
    return reader == nullptr ? segment::Totals{} : reader->totals();
  }

  // Every call is counted once, and so many calls that were to be sampled were left out for this reason.
  void expect_skipped(uint32_t reason, uint64_t count, uint64_t sampled) {
    const segment::Totals totals = this->totals();
    uint64_t skipped = 0, calls = 0;
    for (uint32_t pass : {0u, 1u}) {
      skipped += totals.skipped[pass][reason];
      calls += totals.calls[pass];
      for (uint64_t n : totals.skipped[pass]) calls -= n;
      calls -= totals.unsampled[pass] + totals.sampled[pass];
    }
    EXPECT_EQ(skipped, count) << segment::kSkipReasonNames[reason];
    EXPECT_EQ(totals.sampled[0] + totals.sampled[1], sampled);
    EXPECT_EQ(calls, 0u) << "calls that became nothing";
  }

  void clear() {
    for (const auto& entry : fs::directory_iterator(base_ + "/r")) fs::remove(entry.path());
  }

  // A call's slice of key columns takes the place of its slice of rows; without columns it is left out.
  Samples samples(bool with_columns = true) {
    Samples found;
    auto reader = open();
    SegmentReader::Ready ready;
    while (reader != nullptr && reader->next_ready(&ready)) {
      EXPECT_EQ(ready.why, nullptr) << ready.why;
      if (!with_columns && ready.view.header.columns == 1) {
        reader->consume_judged(ready);
        continue;
      }
      Sample& sample = found[{ready.view.header.step, ready.view.header.pass}];
      sample.header = ready.view.header;
      for (uint32_t n = 0; n < segment::kPayloads; ++n)
        sample.payload[n].assign(ready.view.payload[n].begin(), ready.view.payload[n].end());
      reader->consume_judged(ready);
    }
    return found;
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_FIXTURE_H_
