// Whether words that were taken for arguments of TransformerEngine's fused attention can be those. A version
// names a signature, but what was built between two releases may say the version of the one and have the
// signature of the other: then a length stands where a handle is looked for.
#ifndef FORESHOCK_LIBMONITOR_NVTE_WORDS_H_
#define FORESHOCK_LIBMONITOR_NVTE_WORDS_H_

#include <cstddef>

#include "libmonitor/nvte_signature.h"
#include "libmonitor/passed_words.h"

namespace foreshock {

// True: the library may be asked about the handles among them. Nothing is read here but the words themselves.
bool are_words_plausible(const NvteWords& places, const Word* words, float scale, float dropout);

// Whether so many bytes at `address` can be read, by what the kernel says.
bool is_readable(Word address, size_t bytes);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_NVTE_WORDS_H_
