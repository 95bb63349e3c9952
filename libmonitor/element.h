// Arrays whose elements are as large as whoever filled them knew: structs of hook.h grow at their end.
#ifndef FORESHOCK_LIBMONITOR_ELEMENT_H_
#define FORESHOCK_LIBMONITOR_ELEMENT_H_

#include <cstddef>

namespace foreshock {

template <class T>
const T& element(const T* first, size_t n) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + n * first->size);
}

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ELEMENT_H_
