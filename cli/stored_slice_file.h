// Reads the file of a flagged slice (agent/flagged.h). Nothing in it is trusted.
#ifndef FORESHOCK_CLI_STORED_SLICE_FILE_H_
#define FORESHOCK_CLI_STORED_SLICE_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "lab/safetensors.h"
#include "shadow/slice.h"

namespace foreshock::cli {

struct StoredSlice {
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<char>> data;  // of all arrays, by name
  AttentionSlice slice;                           // borrows from `data`
  bool is_unchanged = false;                      // the checksum is right

  // The text of a fact, made harmless for a terminal; "" where there is none.
  std::string fact(const std::string& name) const;
};

// Whether it says that it is one.
bool is_slice_file(const lab::Safetensors& file);

// An empty string, or in one line why this is no slice that can be judged.
std::string read_slice(const std::string& path, StoredSlice* stored);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_STORED_SLICE_FILE_H_
