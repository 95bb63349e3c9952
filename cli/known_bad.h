// A table of known defects of attention kernels, by version. A row repeats what its source says (an issue, or
// a test of ours that measures the defect), nothing else.
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
  VersionRange versions, together_with;  // the row applies if both ranges match
  std::string_view inputs;               // the class of shapes and inputs
  std::string_view symptom;
  std::string_view remedy;
  std::string_view source;  // an address, a command, or the file of tests/ that measures it
};

std::span<const KnownBad> known_bad_table();

// The installed version of each component. Local parts ("2.9.0+cu128") and pre-release letters are ignored.
using Versions = std::map<std::string, std::string, std::less<>>;

// The rows that apply to these versions. A range of a component that is not installed does not match.
std::vector<const KnownBad*> known_bad(const Versions& versions);

// The rows as text for `foreshock doctor`; "" if there are none.
std::string known_bad_text(const std::vector<const KnownBad*>& rows, size_t columns = 80);

// The versions that the interpreter's package metadata names; no package is imported.
Versions installed_versions(const std::string& python);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_KNOWN_BAD_H_
