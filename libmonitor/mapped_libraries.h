// Finds libraries that are mapped into this process, and functions in them. dlsym(RTLD_DEFAULT) does not find
// functions of libraries that were loaded with RTLD_LOCAL, as Python loads torch.
#ifndef FORESHOCK_LIBMONITOR_MAPPED_LIBRARIES_H_
#define FORESHOCK_LIBMONITOR_MAPPED_LIBRARIES_H_

namespace foreshock {

// Gets the path of a mapped library, the first one after `skip` others. `library` is a file name
// ("libtorch_cpu.so"; a version may follow it) or the beginning of one ("libcupti"). Returns false if none is
// found.
bool find_mapped_path(const char* library, char (&path)[512], int skip = 0);

// Returns the address of `function` in the mapped libraries with this name (`library` as above), or null if
// it is not found. The library that defines the result stays mapped. Slow: reads the list of libraries.
void* find_in_mapped(const char* library, const char* function);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_MAPPED_LIBRARIES_H_
