// Where the library that this code is in lies, for what is installed beside it.
#ifndef FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_
#define FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_

#include <cstddef>

namespace foreshock {

// The path of `name` in the folder of the library; false: that folder is not known, or the path too long.
bool path_beside_library(const char* name, char* path, size_t capacity);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LIBRARY_PATH_H_
