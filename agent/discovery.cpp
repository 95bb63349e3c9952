#include "agent/discovery.h"

#include <dirent.h>

#include <algorithm>

namespace foreshock {

std::vector<std::string> names_in(const std::string& directory, const std::string& begin,
                                  const std::string& end) {
  std::vector<std::string> names;
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) return names;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name[0] != '.' && name.size() > begin.size() + end.size() && name.starts_with(begin) &&
        name.ends_with(end))
      names.push_back(name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::unique_ptr<segment::SegmentReader>> Discovery::look(std::vector<Refusal>* refused) {
  std::vector<std::unique_ptr<segment::SegmentReader>> found;
  for (const std::string& file : names_in(directory_, "", ".seg")) {
    const std::string name = file.substr(0, file.size() - 4);
    if (!known_.insert(name).second) continue;
    std::string why;
    auto reader = segment::SegmentReader::open(directory_, name, &why);
    if (reader != nullptr)
      found.push_back(std::move(reader));
    else
      refused->push_back({name, why});
  }
  return found;
}

}  // namespace foreshock
