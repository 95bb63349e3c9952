#include "agent/discovery.h"

#include <fcntl.h>

#include <algorithm>

#include "exporters/registry.h"

namespace foreshock {

std::vector<std::unique_ptr<segment::SegmentReader>> Discovery::look(size_t most,
                                                                     std::vector<Refusal>* refused) {
  std::vector<std::unique_ptr<segment::SegmentReader>> found;
  const std::vector<std::string> files = directory_.names("", ".seg");
  for (const std::string& file : files) {
    if (found.size() >= most) break;
    if (!known_.insert(file).second) continue;
    const std::string name = file.substr(0, file.size() - 4);
    std::string why;
    auto reader = segment::SegmentReader::adopt(name, directory_.open_file(file, O_RDONLY),
                                                directory_.open_file(name + ".ctl", O_RDWR), &why);
    if (reader != nullptr)
      found.push_back(std::move(reader));
    else
      refused->push_back({label_text(name), why});
  }
  std::erase_if(
      known_, [&](const std::string& name) { return !std::binary_search(files.begin(), files.end(), name); });
  return found;
}

}  // namespace foreshock
