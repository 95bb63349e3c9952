// Writes a file so that it is either the old one or the new one, whole, whenever the process is stopped.
#ifndef FORESHOCK_CLI_WHOLE_FILE_H_
#define FORESHOCK_CLI_WHOLE_FILE_H_

#include <string>

namespace foreshock::cli {

// An empty string, or why no file can be written at `path`: to be told before the work is done.
std::string why_no_file(const std::string& path);

// An empty string, or what went wrong. Signals that would end the process wait until the file is in place.
std::string write_whole_file(const std::string& path, const std::string& content);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_WHOLE_FILE_H_
