// Writes a file so that it is either the old one or the new one, whole, whenever the process is stopped.
#ifndef FORESHOCK_CLI_WHOLE_FILE_H_
#define FORESHOCK_CLI_WHOLE_FILE_H_

#include <string>

namespace foreshock::cli {

// Whether what stands at `path` is written to and not replaced: a device, a pipe, or what is our own standard
// output or error (/dev/stdout).
bool is_stream(const std::string& path);

// An empty string, or why no file can be written at `path`: to be told before the work is done.
std::string why_no_file(const std::string& path);

// An empty string, or what went wrong. Signals that would end the process wait until the file is in place; a
// stream is merely written to.
std::string write_whole_file(const std::string& path, const std::string& content);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_WHOLE_FILE_H_
