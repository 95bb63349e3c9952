// Where the parts of foreshock lie, relative to its executable: the build tree and an installation look the
// same.
#ifndef FORESHOCK_CLI_INSTALLATION_H_
#define FORESHOCK_CLI_INSTALLATION_H_

#include <string>

namespace foreshock::cli {

struct Installation {
  std::string executable;       // <root>/bin/foreshock
  std::string library;          // <root>/lib/libforeshock.so, what is preloaded
  std::string python_helper;    // <root>/share/foreshock/python, what goes on PYTHONPATH
  std::string adapter_sources;  // <root>/share/foreshock/torch
  std::string headers;          // <root>/include
};

Installation find_installation();

// "" when everything is in place and may be preloaded, else what is missing.
std::string installation_problem(const Installation& installation);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_INSTALLATION_H_
