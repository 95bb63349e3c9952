// The tensors of a model by name, in whatever files they lie: one safetensors file, the shards that an index
// (model.safetensors.index.json) names, or the safetensors files of a directory.
#ifndef FORESHOCK_LAB_CHECKPOINT_H_
#define FORESHOCK_LAB_CHECKPOINT_H_

#include <map>
#include <string>
#include <vector>

#include "lab/safetensors.h"

namespace foreshock::lab {

struct Checkpoint {
  struct Place {
    size_t file = 0;                       // of `files`
    const StoredTensor* tensor = nullptr;  // owned by that file
  };

  std::string path;  // as given
  std::vector<Safetensors> files;
  std::map<std::string, Place> tensors;

  std::string read(const Place& place, uint64_t from, uint64_t count, char* to) const {
    return files[place.file].read(*place.tensor, from, count, to);
  }
};

// Fills `checkpoint`. An empty string, or one line that names the file and says what is wrong with it;
// nothing in files is trusted. An index may name files beside it only.
std::string open_checkpoint(const std::string& path, Checkpoint* checkpoint);

// Whether name `a` comes before `b` as people count: layers.2 before layers.10.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CHECKPOINT_H_
