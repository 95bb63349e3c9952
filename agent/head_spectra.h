// What training does to the scores of attention heads: from the rows of query and key projections that
// records of tensors carry to the spectra of a run on this node.
#ifndef FORESHOCK_AGENT_HEAD_SPECTRA_H_
#define FORESHOCK_AGENT_HEAD_SPECTRA_H_

#include <map>
#include <optional>
#include <string>

#include "agent/attempt_watch.h"
#include "agent/tensor_key.h"
#include "segment/parser.h"
#include "shadow/layer_spectra.h"

namespace foreshock {

class HeadSpectra {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;  // of rows kept; layers beyond are not followed

  // Takes the rows of one record, if it has any. A value when they complete a second look at a layer.
  // Replicas show the same rows of the same step: they count once. `why`: what is wrong with the rows, if
  // anything.
  std::optional<LayerSpectrum> take(const segment::TensorView& tensor, const segment::Identity& identity,
                                    const char** why);

  // Over all layers that have a spectrum, each head counting once.
  std::optional<LayerSpectrum> all_layers() const;
  // Layers by label, and the smallest effective rank of a head of each.
  std::map<std::string, double> smallest_effective_ranks() const;

 private:
  AttemptWatch attempt_;
  LayerSpectra rows_{kMostBytes};
  std::map<TensorKey, LayerSpectrum> spectra_;  // the name is the label of a layer
};

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_HEAD_SPECTRA_H_
