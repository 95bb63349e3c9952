// What is in a TensorBoard event file: scalars by step, as SummaryWriter.add_scalar would write them.
#ifndef FORESHOCK_EXPORTERS_EVENT_FILE_H_
#define FORESHOCK_EXPORTERS_EVENT_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace foreshock {

// The checksum of TFRecord: CRC-32C, rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(std::string_view bytes);

// One record of the file: length, its checksum, `payload`, its checksum.
std::string framed_record(std::string_view payload);

// The protocol buffers (tensorflow.Event), only what a scalar needs.
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value);

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_EVENT_FILE_H_
