// Converts the lines of a record (record.h) to scalars by step, and scalars to the bytes of a
// TensorBoard event file in the format of SummaryWriter.add_scalar. The file is a sequence of events, each in
// a framed_record(): one version_event(), then one scalar_event() per scalar.
#ifndef FORESHOCK_EXPORTERS_TENSORBOARD_H_
#define FORESHOCK_EXPORTERS_TENSORBOARD_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "exporters/record_reader.h"

namespace foreshock {

// The checksum of TFRecord: CRC-32C, rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(std::string_view bytes);

// One TFRecord: length of `payload`, checksum of the length, `payload`, checksum of `payload`.
std::string framed_record(std::string_view payload);

// tensorflow.Event protocol buffers with the fields that a scalar needs. Times are seconds since 1970.
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value);

struct Scalar {
  std::string run;
  int64_t rank;
  double time;  // seconds since 1970; 0: unknown
  int64_t step;
  std::string tag;  // "training/loss", "attention_forward/fused_ratio", "layer_bias_ulp_forward/003", ...
  double value;     // may be NaN
};

// Converts lines to scalars. Combines the samples (compared attention calls) of one step and pass, by rank
// and by layer: the mean error, ratio and entropy, the largest ratio and logit, and as bias the sum of the
// errors divided by the sum of their ulps. Returns these when the step is complete: from take() of a sample
// of another step, or from finish(). Ignores lines without rank or step. Thread-compatible.
class RecordScalars {
 public:
  std::vector<Scalar> take(const RecordLine& line);
  std::vector<Scalar> finish();

 private:
  struct Mean {
    double sum = 0, count = 0;
  };
  struct Gathered {
    int64_t step = 0;
    double time = 0;
    Mean relative_error, fused_ratio, entropy;
    double ratio_max = 0, logit_max = 0;
    double bias_error = 0, bias_ulp = 0;  // sums of the errors and of their ulps
  };
  // Run; rank; pass, or "grad_key" or "grad_value"; layer ("": all layers).
  using Key = std::tuple<std::string, int64_t, std::string, std::string>;

  void take_step(const StepLine& line, std::vector<Scalar>* out);
  void take_event(const EventLine& line, std::vector<Scalar>* out);
  void take_sample(const SampleLine& line, std::vector<Scalar>* out);
  void gather(const Key& key, const SampleLine& line, std::vector<Scalar>* out);
  static void append_scalars(const Key& key, const Gathered& gathered, std::vector<Scalar>* out);

  std::map<Key, Gathered> open_;  // steps that may get more samples
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_TENSORBOARD_H_
