// Finds functions in the libraries that are mapped into this process.
#ifndef FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
#define FORESHOCK_LIBMONITOR_BOOTSTRAP_H_

namespace foreshock {

// Returns the address of `function` in the mapped libraries whose file name is `library` ("libtorch_cpu.so";
// a version may follow it) or begins with it ("libcupti"), or null if it is not found. dlsym(RTLD_DEFAULT)
// would not find libraries that were loaded with RTLD_LOCAL, as Python loads torch. The library that defines
// the result stays mapped. Slow: reads the list of libraries.
void* find_in_mapped(const char* library, const char* function);

// Gets the path of a mapped library (`library` as in find_in_mapped()). Returns false if none is found.
bool find_mapped_path(const char* library, char (&path)[512]);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_BOOTSTRAP_H_
