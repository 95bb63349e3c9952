// libFuzzer target: the state of the detectors, which lies in a directory of the user's. What is taken is
// used, and saved again as bytes that are taken again.
#include <cstdlib>
#include <string>

#include "agent/detection.h"

namespace {

// Of every state: what it begins with.
std::string head() {
  const std::string empty = foreshock::Watches().save(0);
  return empty.substr(0, empty.size() - 2 * sizeof(uint64_t));
}

void use(foreshock::Watches& watches) {
  foreshock::StepLine step;
  foreshock::SampleLine sample;
  for (const auto& [key, watch] : std::map(watches.all())) {
    watch.states();
    step.run = sample.run = key.first;
    step.rank = sample.rank = key.second;
    step.loss = step.gradient_norm = sample.bias_ulp = sample.deviation_ratio = sample.logit_abs_max = 3;
    sample.grad_out_drift = sample.entropy_nats_mean = 1;
    for (int64_t n : {5, 6, 4}) {
      step.step = sample.step = n;
      for (const char* pass : {"forward", "backward"}) {
        sample.pass = pass;
        watches.observe(sample);
      }
      watches.observe(step);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string begin = head();
  const std::string bytes = begin + std::string(reinterpret_cast<const char*>(data), size);
  foreshock::Watches watches;
  uint64_t note = 0;
  if (!watches.restore(bytes, &note)) return 0;
  use(watches);
  foreshock::Watches again;
  if (!again.restore(watches.save(note), &note)) std::abort();
  return 0;
}
