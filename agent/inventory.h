// Computes which attention layers of a run's model were checked, and why the others were not. The layers come
// from the model itself (the trainer's inventory) if it is known, else from the calls that were seen.
#ifndef FORESHOCK_AGENT_INVENTORY_H_
#define FORESHOCK_AGENT_INVENTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/rank_state.h"
#include "agent/totals.h"

namespace foreshock {

// Why a tensor of an attention layer was never compared with the reference. The first that applies is given.
enum class GapCause {
  kNotHooked,       // no call of the layer reached a hook
  kMathPath,        // calls took torch's unfused path, which is only counted with --math-path off
  kNoGradient,      // the forward pass was seen; other layers have gradients, and this one has none
  kNoBackwardSeen,  // the forward pass was seen, but the backward pass of the layer reached no hook
  kUnattributed,    // calls were checked whose layer is unknown; some of them may belong to this layer
  kFewRows,         // slices were compared, and too few of their rows have an error to decide
  kSkipped,         // the layer's calls, or calls without a known layer, are skipped for a reason
  kFewSamples,      // too few samples yet
};

// A tensor that was not judged in some layers, for one cause.
struct CoverageGap {
  GapCause cause = GapCause::kFewSamples;
  uint32_t tensor = 0;              // the first JudgedTensor that was not judged
  std::string reasons;              // kSkipped: "mask, dropout", from kSkipReasonNames or kColumnsSkipNames
  std::vector<std::string> layers;  // labels
  size_t unnamed = 0;               // layers of the model whose label is unknown
  size_t count() const { return layers.size() + unnamed; }
};

struct AttentionInventory {
  bool is_known = false;  // the layers were counted from the model, not from the calls
  size_t layers = 0;      // with attention
  size_t seen = 0;        // layers of which a forward call reached a hook
  // Layers with a judged slice of each JudgedTensor, and layers that need it. A layer whose calls and
  // parameters need no gradient needs no backward pass.
  std::array<size_t, kJudgedTensors> judged = {}, needed = {};
  std::vector<CoverageGap> gaps;  // the most important one first
  size_t other_mixers = 0;        // modules of linear attention, state-space blocks
  std::string mixer_names;        // their classes
};

AttentionInventory inventory_of(const Ranks& ranks);

// Whether the run has used this attention, which no hook saw; else it was only imported.
bool was_used(const segment::UnseenName& unseen);
// Returns "layer 001: dQ not judged; foreshock did not see its backward pass. Do: ...", for example.
std::string text_of(const CoverageGap& gap);
// Returns the object "attention_layers" of a summary and of the page's state.
nlohmann::json inventory_json(const AttentionInventory& inventory);
// Returns the name of a cause as in the JSON of a summary: "not_hooked".
const char* name_of(GapCause cause);

}  // namespace foreshock

#endif  // FORESHOCK_AGENT_INVENTORY_H_
