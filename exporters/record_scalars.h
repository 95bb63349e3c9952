// The lines of a record as scalars by step, for tools that draw such.
#ifndef FORESHOCK_EXPORTERS_RECORD_SCALARS_H_
#define FORESHOCK_EXPORTERS_RECORD_SCALARS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "exporters/record_reader.h"

namespace foreshock {

struct Scalar {
  std::string run;
  int64_t rank;
  double time;  // seconds since 1970; 0: unknown
  int64_t step;
  std::string tag;  // "training/loss", "attention_forward/deviation_ratio", "layer_bias_ulp_forward/003", ...
  double value;     // may be NaN
};

// Thread-compatible. A step's samples become one value of the rank and one of each layer: means of the
// errors, the largest score, and for the bias the quotient of the sums. So they come out when a sample of a
// later step, or finish(), says that the step is complete. Lines without a rank or a step give nothing.
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
    Mean relative_error, deviation_ratio, entropy;
    double ratio_max = 0, logit_max = 0, bias_error = 0, bias_ulp = 0;
  };
  using Key = std::tuple<std::string, int64_t, std::string, std::string>;  // run, rank, pass, layer ("": all)

  void take_step(const StepLine& line, std::vector<Scalar>* out);
  void take_event(const EventLine& line, std::vector<Scalar>* out);
  void take_sample(const SampleLine& line, std::vector<Scalar>* out);
  void gather(const Key& key, const SampleLine& line, std::vector<Scalar>* out);
  static void give(const Key& key, const Gathered& of, std::vector<Scalar>* out);

  std::map<Key, Gathered> open_;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_RECORD_SCALARS_H_
