// libFuzzer target: the reader of records. What it reads it can write, and read again as the same kind.
#include <cstdlib>
#include <string_view>

#include "exporters/record_reader.h"
#include "tests/fuzz/memory_file.h"

namespace {

void read_back(const foreshock::RecordLine& line) {
  std::string text = std::visit([](const auto& each) { return foreshock::to_json_line(each); }, line);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  std::string why;
  const auto again = foreshock::parse_record_line(text, &why);
  if (!again || again->index() != line.index()) std::abort();
}

// As a file. A reader has a buffer of a MiB, which costs a thousand times what a short line does.
void read_file(const uint8_t* data, size_t size) {
  static const MemoryFile memory;
  std::string error;
  const auto reader = foreshock::RecordReader::open(memory.path_of(data, size), &error);
  if (reader == nullptr) return;
  while (const auto line = reader->next()) read_back(*line);
  if (reader->bad_lines() > reader->lines()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[size - 1] == '#') read_file(data, size);
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    std::string why;
    if (const auto line = foreshock::parse_record_line(text.substr(0, end), &why)) read_back(*line);
    text.remove_prefix(end + 1);
  }
  return 0;
}
