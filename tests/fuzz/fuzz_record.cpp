// libFuzzer target: the reader of records. What it reads it can write, and read again as the same.
#include <cstdlib>

#include "exporters/record_reader.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile memory;
  std::string error;
  const auto reader = foreshock::RecordReader::open(memory.path_of(data, size), &error);
  if (reader == nullptr) return 0;
  while (const auto line = reader->next()) {
    std::string text = std::visit([](const auto& each) { return foreshock::to_json_line(each); }, *line);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    std::string why;
    const auto again = foreshock::parse_record_line(text, &why);
    if (!again || again->index() != line->index()) std::abort();
  }
  if (reader->bad_lines() > reader->lines()) std::abort();
  return 0;
}
