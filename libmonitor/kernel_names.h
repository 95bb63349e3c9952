// Which kernels are one attention call each, by the names that their makers give them.
#ifndef FORESHOCK_LIBMONITOR_KERNEL_NAMES_H_
#define FORESHOCK_LIBMONITOR_KERNEL_NAMES_H_

namespace foreshock {

// The pass (0 forward, 1 backward) of the call that the kernel `symbol` is, mangled or not; -1: it is none,
// or only a helper beside one (sums of dO * O, conversions, what combines parts of a split).
int attention_pass_of_kernel(const char* symbol);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_KERNEL_NAMES_H_
