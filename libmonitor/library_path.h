// Finds files that are installed beside the library that contains this code.
#ifndef FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_
#define FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_

#include <cstddef>

namespace foreshock {

// Writes the path of `name` in the folder of the library. Returns false if the folder is unknown or the path
// is too long.
bool path_beside_library(const char* name, char* path, size_t capacity);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_
