// The files off.<pid>.<reason> that trainers leave when they cannot be monitored.
#ifndef FORESHOCK_CLI_OFF_FILES_H_
#define FORESHOCK_CLI_OFF_FILES_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace foreshock::cli {

// Name and time of each. Times are only compared for equality: the clock may jump.
using OffFiles = std::map<std::string, std::filesystem::file_time_type>;
OffFiles off_files(const std::string& directory);

// One line per reason found in `directory` that is not in `earlier`: what is off, in how many processes, what
// to do. Processes that belong to another launcher than `launcher_id` are left to it.
std::vector<std::string> off_lines(const std::string& directory, const OffFiles& earlier,
                                   uint64_t launcher_id);

// What to do about `reason`; a general hint for an unknown one.
std::string advice_for(const std::string& reason);

// Said when only another launcher of the run had trainers.
std::string other_ranks_line();

// Said when a command ended without any sign of a trainer in the run's directory.
std::string no_segment_line(const std::string& directory);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_OFF_FILES_H_
