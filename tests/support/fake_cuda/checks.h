// What the real driver finds fault with, or a trainer would suffer from. All of it under the lock.
#ifndef FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_CHECKS_H_
#define FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_CHECKS_H_

#include "tests/support/fake_cuda/world.h"

namespace fake_cuda {

// Of the calling thread, or null.
Context* current();

// Counts the call and tells whether it shall fail.
int enter(const char* name, void* stream = nullptr, uint64_t bytes = 0);

// A handle of a context that is gone.
int check(const Context* context);

// What a capture elsewhere forbids, and would be spoilt by.
int check_unsafe(const char* name);

// A stream that work of ours may be given to.
int check_stream(const char* name, Stream* stream);

bool is_inside(const std::map<uint64_t, size_t>& ranges, uint64_t at, size_t bytes);
bool is_on_device(uint64_t at, size_t bytes);

}  // namespace fake_cuda

#endif  // FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_CHECKS_H_
