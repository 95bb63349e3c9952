// A TensorBoard event file: scalars by step, as SummaryWriter.add_scalar would write them.
#ifndef FORESHOCK_EXPORTERS_EVENT_FILE_H_
#define FORESHOCK_EXPORTERS_EVENT_FILE_H_

#include <cstdint>
#include <fstream>
#include <memory>
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

// Thread-compatible.
class EventFile {
 public:
  // Refuses a file that is there already. Null: *error is one line.
  static std::unique_ptr<EventFile> create(const std::string& path, double wall_time, std::string* error);

  // `wall_time`: seconds since 1970. TensorBoard shows NaN and infinities as such.
  void scalar(double wall_time, int64_t step, std::string_view tag, double value);

  // False when anything has not reached the file.
  bool flush();

 private:
  explicit EventFile(std::ofstream file) : file_(std::move(file)) {}
  std::ofstream file_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_EVENT_FILE_H_
