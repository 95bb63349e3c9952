// The part of a call's description that tells of sequences packed one after the other, and how one of them
// becomes a call of its own.
#ifndef FORESHOCK_LIBMONITOR_PACKED_CALL_H_
#define FORESHOCK_LIBMONITOR_PACKED_CALL_H_

#include "libmonitor/checked_call.h"

namespace foreshock {

// As far as the caller's struct goes.
bool is_packed_call(const foreshock_attention_call& call);

// The three steps of check_call: a batch of one for all tensors that have none, and what is to be true of a
// packed call besides (-1, or the FORESHOCK_SKIP_ reason). The offsets are not read.
void add_batch(const foreshock_attention_call& call, CheckedCall* checked);
int check_packed(const foreshock_attention_call& call, CheckedCall* checked);

// Of a packed call whose offsets lie on the host: *checked becomes the call of the one sequence that holds
// `place` (choose_place in sampler.h). Returns -1, or the FORESHOCK_SKIP_ reason.
int take_sequence(uint32_t place, CheckedCall* checked);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_PACKED_CALL_H_
