// What the command line tells people: whole lines on standard error, so that the output of the user's own
// command stays untouched and lines of several processes do not mix.
#ifndef FORESHOCK_CLI_SAY_H_
#define FORESHOCK_CLI_SAY_H_

#include <string>

namespace foreshock::cli {

// Without what a terminal would obey: it may come from a record, and that from anywhere.
std::string printable(std::string text);

// Writes "foreshock: <line>\n" with one call.
void say(const std::string& line);

// The exit status of wrong use.
inline constexpr int kWrongUse = 2;

// say(line) and kWrongUse, for `return wrong_use(...)`.
int wrong_use(const std::string& line);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_SAY_H_
