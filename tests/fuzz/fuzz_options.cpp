// libFuzzer target: the parsers of option values, which also run in the trainer. What they accept has its
// range; what they refuse leaves the result alone.
#include <cstdlib>
#include <string>

#include "libmonitor/options.h"

namespace {

void expect(bool truth) {
  if (!truth) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const char* words = text.c_str();
  double ratio = -1;
  expect(foreshock::parse_ratio(words, &ratio) ? ratio >= 0 && ratio <= 1 : ratio == -1);
  uint64_t bytes = 77;
  if (!foreshock::parse_bytes(words, &bytes)) expect(bytes == 77);
  uint64_t count = 77;
  if (foreshock::parse_count(words, &count)) {
    uint64_t again = 78;
    expect(foreshock::parse_count(std::to_string(count).c_str(), &again) && again == count);
  } else {
    expect(count == 77);
  }
  bool on = false;
  foreshock::parse_switch(words, &on);
  return 0;
}
