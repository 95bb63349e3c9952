// Reads a record of a tensor that a trainer left: as segment/parser.h, nothing in it is trusted.
#ifndef FORESHOCK_SEGMENT_TENSOR_PARSER_H_
#define FORESHOCK_SEGMENT_TENSOR_PARSER_H_

#include "segment/parser.h"
#include "segment/tensor_record.h"

namespace foreshock::segment {

// Steps between two snapshots: more than this is no interval, but something that a trainer did not write.
inline constexpr uint64_t kMostTensorInterval = uint64_t{1} << 32;

struct TensorView {
  TensorRecord record;
  Bytes payload[kTensorPayloads];
};

// The first 16 bytes of what lies at the cursor: how long it is, and whether it is a filler. `left`: bytes
// that were written from there on; `to_end`: up to the end of the ring.
const char* parse_tensor_length(Bytes bytes, uint64_t left, uint64_t to_end, uint64_t* length,
                                bool* is_filler);

// A whole record. Shapes fit each other and the number of elements, payloads lie inside and have the sizes
// that the form asks for; what is in them is for whoever unpacks it. The spans borrow from `bytes`.
const char* parse_tensor(Bytes bytes, TensorView* view);

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_TENSOR_PARSER_H_
