// Lists known defects of attention kernels by the versions of the packages that have them. Each row cites its
// source: an issue or pull request, or a test or command of this project that measures the defect.
#ifndef FORESHOCK_CLI_KNOWN_BAD_H_
#define FORESHOCK_CLI_KNOWN_BAD_H_

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshock::cli {

// The versions v of a package with `from` <= v < `before`. An empty bound is unknown and does not limit v.
struct VersionRange {
  // torch, cudnn, cudnn-frontend, flash-attn or transformer-engine; empty: no condition
  std::string_view component;
  std::string_view from, before;
};

struct KnownBad {
  VersionRange versions, together_with;  // the row applies if the installed versions are in both ranges
  std::string_view inputs;  // the class of shapes and inputs; begins with "CPU" if it is not of a device
  std::string_view symptom;
  std::string_view remedy;
  std::string_view source;  // an address, a command, or the file in tests/ that measures the defect
};

std::span<const KnownBad> known_bad_table();

// The installed version of each component, such as "2.9.0+cu128", of which only 2.9.0 is compared.
using Versions = std::map<std::string, std::string, std::less<>>;

// Returns the rows whose ranges contain these versions. A component that is not installed is in no range.
// Without a device, only the defects of kernels for the CPU are returned.
std::vector<const KnownBad*> known_bad(const Versions& versions, bool has_device = true);

// Returns the rows as text for `foreshock doctor`, in lines of at most `columns` characters; "" without rows.
std::string known_bad_text(const std::vector<const KnownBad*>& rows, size_t columns = 80);

// Reads the versions from the package metadata of the interpreter `python`, without importing a package.
Versions installed_versions(const std::string& python);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_KNOWN_BAD_H_
