// Attention kernels that are known to be wrong, by the versions that have them. Data with its source: a row
// says what its issue says, or what our own measurement found, and no more.
#ifndef FORESHOCK_CLI_KNOWN_BAD_H_
#define FORESHOCK_CLI_KNOWN_BAD_H_

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock::cli {

// Versions `from` <= v < `before` of a component; empty: no bound known.
struct VersionRange {
  std::string_view
      component;  // torch, cudnn, cudnn-frontend, flash-attn, transformer-engine; empty: no condition
  std::string_view from, before;
};

struct KnownBad {
  VersionRange versions, together_with;  // both must hold
  std::string_view inputs;               // the class of shapes and inputs
  std::string_view symptom;
  std::string_view remedy;
  std::string_view source;  // an address, a command, or the file of tests/ that measures it
};

std::span<const KnownBad> known_bad_table();

// Component to version, as far as known. Local parts ("2.9.0+cu128") and pre-release letters are ignored.
using Versions = std::map<std::string, std::string, std::less<>>;

// The rows that apply. A component that is not installed matches nothing.
std::vector<const KnownBad*> known_bad(const Versions& versions);

// The rows for people, as `doctor` shows them; "" without rows. `run` ends with their number.
std::string known_bad_text(const std::vector<const KnownBad*>& rows, size_t columns = 80);

// What the interpreter has installed, from its package metadata; nothing is imported.
Versions installed_versions(const std::string& python);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_KNOWN_BAD_H_
