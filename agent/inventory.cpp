// Joins the inventory of the model (segment::Layer::attention) with the judged slices of each layer. A layer
// is identified by its label, which its parameters and its calls share.
#include "agent/inventory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include "segment/layout.h"
#include "text/printable.h"

namespace foreshock {
namespace {

// Each sampled call is of a random layer. After so many samples per layer, the chance that a given layer had
// none is exp(-8) = 3e-4, and then calls of the layer do not reach a hook.
constexpr uint64_t kSamplesPerLayer = 8;
constexpr size_t kMostLayersNamed = 3;  // in one text
constexpr size_t kMostUnseenNamed = 2;  // in one text

// Reasons that pass with time, and calls that are sampled elsewhere.
constexpr uint32_t kPassingReasons =
    1u << 0 /* budget */ | 1u << 1 /* ring_full */ | 1u << 4 /* nested */ | 1u << 13 /* set_up */;

constexpr uint32_t kOff = 1u << 9;  // samples are switched off: of all calls, or of the math path

// The same for slices of key positions (dK and dV).
constexpr uint32_t kPassingColumns =
    1u << segment::kColumnsTaken | 1u << segment::kColumnsNotChosen | 1u << segment::kColumnsRingFull;

struct LayerChecks {
  bool is_in_model = false;        // in the inventory
  bool needs_backward = false;     // its calls or its parameters need a gradient
  bool is_annotated = false;       // the training named it (foreshock.tap)
  bool has_gradient = false;       // of its parameters, which the optimizer has
  bool lacks_gradient = false;     // they need one, and only other layers of the rank have one
  bool is_without_result = false;  // forward slices were judged, but no output could be compared
  bool seen[segment::kPasses] = {};
  uint32_t skipped[segment::kPasses] = {};            // bits, as segment::Layer::skipped
  uint32_t columns_skipped = 0;                       // bits, of segment::ColumnsSkip
  std::array<uint64_t, kJudgedTensors> decided = {};  // slices that say whether the result is right
  bool has_few_rows[segment::kPasses] = {};           // slices were compared that do not say it
  // On each rank with this layer, no more calls of the pass run in a step than layers were seen. So this
  // layer's calls, if it was not seen, do not reach a hook.
  bool is_excluded[segment::kPasses] = {true, true};
};

// Whether the layers of the rank's model are known. Calls in a model without attention show that its
// inventory is incomplete. A stage of a pipeline may have no attention, and no calls.
bool has_inventory(const RankStatistics& rank) {
  return rank.coverage.inventory_is_known != 0 &&
         (rank.coverage.attention_layers > 0 || rank.calls(0) + rank.calls(1) == 0);
}

// Whether the layers of the rank's calls are known only by the order of the calls in a step.
bool is_by_order(const RankStatistics& rank) {
  return rank.layer_source == segment::name_of(segment::LayerSource::kOrdinal);
}

uint64_t calls_per_step(const RankStatistics& rank, uint32_t pass) {
  const uint64_t steps = std::max<uint64_t>(rank.steps + rank.steps_lost, 1);
  return (rank.calls(pass) + steps - 1) / steps;
}

class Table {
 public:
  explicit Table(const Ranks& ranks) : ranks_(ranks) {
    for (const RankStatistics* rank : ranks) add_rank(*rank);
    for (const RankStatistics* rank : ranks)
      if (rank->current) exclude(*rank);
    if (std::any_of(ranks.begin(), ranks.end(), [](auto* rank) { return has_inventory(*rank); })) {
      is_known_ = std::none_of(ranks.begin(), ranks.end(), [](auto* rank) {
        return rank->current && rank->steps > 0 && !has_inventory(*rank);
      });
    }
    if (is_known_) match_other_labels();
    if (layers_.empty())
      for (const RankStatistics* rank : ranks) add_layer("", rank->unnamed, *rank);
  }

  AttentionInventory inventory() const {
    AttentionInventory result;
    result.is_known = is_known_;
    std::map<std::tuple<GapCause, uint32_t, std::string>, CoverageGap> gaps;
    for (const auto& [label, layer] : layers_) {
      add_gap(label, layer, &gaps);
      if (label.empty()) continue;  // calls without a layer
      ++result.layers;
      result.seen += layer.seen[0];
      for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) {
        result.needed[tensor] += tensor == 0 || layer.needs_backward;
        result.judged[tensor] += layer.decided[tensor] > 0;
      }
    }
    add_unnamed(&result, &gaps);
    for (auto& [key, gap] : gaps) result.gaps.push_back(std::move(gap));
    for (const RankStatistics* rank : ranks_) {
      if (!rank->current || rank->coverage.inventory_is_known == 0) continue;
      result.other_mixers = std::max<size_t>(result.other_mixers, rank->coverage.other_mixers);
      if (result.mixer_names.empty()) result.mixer_names = segment::text_of(rank->coverage.mixer_names);
    }
    return result;
  }

 private:
  using Gaps = std::map<std::tuple<GapCause, uint32_t, std::string>, CoverageGap>;

  void add_rank(const RankStatistics& rank) {
    const bool has_gradient_norms = std::ranges::any_of(
        rank.layers, [](const auto& layer) { return layer.second.gradient_norm.has_value(); });
    for (const LayerName& record : rank.layer_names) {
      constexpr uint32_t kOfCalls = segment::kForwardSeen | segment::kBackwardSeen;
      // If the calls are known only by their order, layers_ has calls, and add_unnamed() compares the
      // numbers.
      const bool is_in_model =
          has_inventory(rank) && !is_by_order(rank) && (record.attention & segment::kHasAttention) != 0;
      if (!is_in_model && (record.attention & kOfCalls) == 0) continue;
      LayerChecks& layer = layers_[record.label];
      layer.is_in_model |= is_in_model;
      layer.needs_backward |=
          (record.attention & (segment::kTrainsAttention | segment::kForwardNeedsGradient)) != 0;
      layer.seen[0] |= (record.attention & segment::kForwardSeen) != 0;
      layer.seen[1] |= (record.attention & segment::kBackwardSeen) != 0;
      for (uint32_t n = 0; n < segment::kPasses; ++n) layer.skipped[n] |= record.skipped[n];
      const auto statistics = rank.layers.find(record.label);
      const bool has_norm = statistics != rank.layers.end() && statistics->second.gradient_norm.has_value();
      layer.has_gradient |= has_norm;
      layer.lacks_gradient |=
          !has_norm && (record.attention & segment::kTrainsAttention) != 0 && has_gradient_norms;
    }
    for (const auto& [label, statistics] : rank.layers) {
      // Calls before the names were known were counted by their order in the step.
      const bool is_superseded =
          statistics.source == segment::name_of(segment::LayerSource::kOrdinal) && !is_by_order(rank);
      if (!is_superseded) add_layer(label, statistics, rank);
    }
  }

  void add_layer(const std::string& label, const LayerStatistics& statistics, const RankStatistics& rank) {
    if (statistics.pass[0].judged + statistics.pass[1].judged == 0) return;
    LayerChecks& layer = layers_[label];
    layer.is_annotated |= statistics.source == segment::name_of(segment::LayerSource::kAnnotation);
    layer.needs_backward |= statistics.pass[1].judged > 0 || is_by_order(rank) || label.empty();
    const bool has_result = statistics.pass[0].relative_error_mean.size() > 0;
    layer.is_without_result |=
        statistics.pass[0].judged > 0 && statistics.pass[0].partial == 0 && !has_result;
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
      layer.has_few_rows[pass] |= (pass == 1 || has_result) && statistics.pass[pass].judged > 0;
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
      layer.seen[pass] |= statistics.pass[pass].judged > 0;
    for (uint32_t why = 0; why < segment::kColumnsSkips; ++why)
      if (statistics.columns_skipped[why] > 0) layer.columns_skipped |= uint32_t{1} << why;
    for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor)
      if (const PassStatistics* of_tensor = statistics_of(statistics, tensor))
        layer.decided[tensor] += of_tensor->decided;
  }

  void exclude(const RankStatistics& rank) {
    std::set<std::string> labels;
    uint64_t seen[segment::kPasses] = {};
    for (const auto& [label, layer] : layers_) {
      // clang 14 cannot capture a structured binding.
      const auto has_label = [&name = label](const LayerName& record) { return record.label == name; };
      const bool is_here = rank.layers.contains(label) ||
                           std::any_of(rank.layer_names.begin(), rank.layer_names.end(), has_label);
      if (!is_here) continue;
      labels.insert(label);
      for (uint32_t pass = 0; pass < segment::kPasses; ++pass) seen[pass] += layer.seen[pass];
    }
    for (uint32_t pass = 0; pass < segment::kPasses; ++pass) {
      if (rank.steps > 0 && calls_per_step(rank, pass) <= seen[pass]) continue;
      for (const std::string& label : labels) layers_[label].is_excluded[pass] = false;
    }
  }

  // A training may have named the calls of foreshock.tap() otherwise than its parameters. Such names stand
  // for as many layers of the model that were not seen.
  void match_other_labels() {
    size_t others = 0;
    for (const auto& [label, layer] : layers_) others += !layer.is_in_model && layer.is_annotated;
    for (auto it = layers_.begin(); it != layers_.end() && others > 0;) {
      const bool is_unseen = it->second.is_in_model && !it->second.seen[0] && !it->second.seen[1];
      others -= is_unseen;
      it = is_unseen ? layers_.erase(it) : std::next(it);
    }
  }

  // Layers of the model without a label in layers_: their parameters have no name, or the calls are known
  // only by their order, so that the labels are those of calls.
  void add_unnamed(AttentionInventory* result, Gaps* gaps) const {
    size_t in_model = 0;
    for (const RankStatistics* rank : ranks_)
      if (rank->current) in_model = std::max<size_t>(in_model, rank->coverage.attention_layers);
    if (!is_known_ || in_model <= result->layers) return;
    const size_t missing = in_model - result->layers;
    LayerChecks unseen;
    unseen.needs_backward = true;
    for (const RankStatistics* rank : ranks_)
      if (rank->current)
        for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
          unseen.is_excluded[pass] &= calls_per_step(*rank, pass) <= result->seen;
    result->layers += missing;
    for (size_t& needed : result->needed) needed += missing;
    const auto [cause, reasons] = cause_of(unseen, 0);
    CoverageGap& gap = (*gaps)[{cause, 0, reasons}];
    gap.cause = cause;
    gap.reasons = reasons;
    gap.unnamed += missing;
  }

  void add_gap(const std::string& label, const LayerChecks& layer, Gaps* gaps) const {
    const uint32_t tensors = layer.needs_backward ? kJudgedTensors : 1;
    uint32_t tensor = 0;
    while (tensor < tensors && layer.decided[tensor] > 0) ++tensor;
    if (tensor == tensors) return;
    const auto [cause, reasons] = cause_of(layer, tensor);
    CoverageGap& gap = (*gaps)[{cause, tensor, reasons}];
    gap.cause = cause;
    gap.tensor = tensor;
    gap.reasons = reasons;
    gap.layers.push_back(label);
  }

  // Returns the cause of a gap; for kSkipped the reasons, for kNotHooked what the run used.
  std::pair<GapCause, std::string> cause_of(const LayerChecks& layer, uint32_t tensor) const {
    const uint32_t pass = pass_of(tensor);
    if (is_key_gradient(tensor)) {  // dQ was judged, so backward calls were sampled
      const uint32_t lasting = layer.columns_skipped & ~kPassingColumns;
      return lasting != 0 ? std::pair(GapCause::kSkipped, names_of(lasting, segment::kColumnsSkipNames))
                          : std::pair(GapCause::kFewSamples, std::string());
    }
    if (layer.has_few_rows[pass]) return {GapCause::kFewRows, ""};
    if (layer.seen[pass]) {
      const uint32_t lasting = layer.skipped[pass] & ~kPassingReasons;
      // A forward call with dropout is sampled, but only its scores are compared.
      if (lasting == 0 && tensor == 0 && layer.is_without_result) return {GapCause::kSkipped, "dropout"};
      return lasting != 0 ? std::pair(GapCause::kSkipped, names_of(lasting, segment::kSkipReasonNames))
                          : std::pair(GapCause::kFewSamples, std::string());
    }
    uint64_t sampled = 0, unattributed = 0, math_path = 0;
    uint32_t skipped = 0;
    for (const RankStatistics* rank : ranks_) {
      sampled += rank->judged[pass];
      unattributed += rank->unnamed.pass[pass].judged;
      for (uint32_t n = 0; n < segment::kSkipReasons; ++n)
        if (rank->totals.skipped[pass][n] > 0) skipped |= uint32_t{1} << n;
      for (size_t op = 0; op < rank->ops.size(); ++op)
        if (rank->ops[op].pass == pass && rank->totals.calls[op] > 0 &&
            segment::text_of(rank->ops[op].name) == "_scaled_dot_product_attention_math")
          math_path += rank->totals.calls[op];
    }
    if (pass == 0 && math_path > 0 && (skipped & kOff) != 0) return {GapCause::kMathPath, ""};
    const bool is_without_gradient = layer.lacks_gradient && !layer.has_gradient;
    const auto unseen =
        pass == 0 ? std::pair(GapCause::kNotHooked, unseen_names())
                  : std::pair(is_without_gradient ? GapCause::kNoGradient : GapCause::kNoBackwardSeen,
                              std::string());
    if (layer.is_excluded[pass]) return unseen;
    if (unattributed > 0) return {GapCause::kUnattributed, ""};
    // Calls that an adapter does not describe are skipped without a layer.
    if (const uint32_t lasting = skipped & ~kPassingReasons; lasting != 0)
      return {GapCause::kSkipped, names_of(lasting, segment::kSkipReasonNames)};
    return sampled < kSamplesPerLayer * layers_.size() ? std::pair(GapCause::kFewSamples, std::string())
                                                       : unseen;
  }

  // Names of attention that the run used and no hook saw.
  std::string unseen_names() const {
    std::set<std::string> names;
    for (const RankStatistics* rank : ranks_)
      for (const segment::UnseenName& unseen : rank->unseen)
        if (was_used(unseen)) names.insert(printable(segment::text_of(unseen.name)));
    std::string text;
    size_t count = 0;
    for (const std::string& name : names)
      if (count++ < kMostUnseenNamed) text += (text.empty() ? "" : "; ") + name;
    return text + (count > kMostUnseenNamed ? "; and others" : "");
  }

  static std::string names_of(uint32_t reasons, const char* const* all_names) {
    std::string names;
    for (; reasons != 0; reasons &= reasons - 1) {
      std::string name = all_names[std::countr_zero(reasons)];
      std::replace(name.begin(), name.end(), '_', ' ');
      names += (names.empty() ? "" : ", ") + name;
    }
    return names;
  }

  const Ranks& ranks_;
  std::map<std::string, LayerChecks> layers_;  // by label
  bool is_known_ = false;
};

}  // namespace

AttentionInventory inventory_of(const Ranks& ranks) { return Table(ranks).inventory(); }

const char* name_of(GapCause cause) {
  constexpr const char* kNames[] = {"not_hooked",   "math_path", "no_gradient", "no_backward_seen",
                                    "unattributed", "few_rows",  "skipped",     "few_samples"};
  return kNames[static_cast<size_t>(cause)];
}

nlohmann::json inventory_json(const AttentionInventory& inventory) {
  nlohmann::json judged, needed, gaps = nlohmann::json::array();
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor) {
    judged[kJudgedTensorNames[tensor]] = inventory.judged[tensor];
    needed[kJudgedTensorNames[tensor]] = inventory.needed[tensor];
  }
  for (const CoverageGap& gap : inventory.gaps)
    gaps.push_back({{"cause", name_of(gap.cause)},
                    {"reasons", gap.reasons},
                    {"tensor", kJudgedTensorNames[gap.tensor]},
                    {"layers", gap.layers},
                    {"layers_without_label", gap.unnamed},
                    {"text", text_of(gap)}});
  return {{"source", inventory.is_known ? "model" : "calls"},
          {"layers", inventory.layers},
          {"seen", inventory.seen},
          {"judged", judged},
          {"needed", needed},
          {"gaps", gaps},
          {"other_mixers", inventory.other_mixers},
          {"other_mixer_names", inventory.mixer_names}};
}

namespace {

// What makes compiled attention visible, by the names of written_graph.py.
const char* other_way(const std::string& unseen) {
  if (unseen.find("fused by Inductor") != std::string::npos)
    return "train without torch.compile or with its backend aot_eager, or ";
  return unseen.find("compiled: ") != std::string::npos ? "train without torch.compile, or " : "";
}

// Replaces those reasons that one word does not explain.
std::string words_of(const std::string& reasons) {
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"mask", "a mask, window or soft cap that is not supported"},
      {"layout", "shapes, strides or formats that are not supported"},
      {"capture", "they are in a CUDA graph"},
      {"off", "samples are switched off"},
      {"unknown", "not understood"}};
  std::string words;
  for (size_t begin = 0; begin <= reasons.size();) {
    const size_t end = std::min(reasons.find(", ", begin), reasons.size());
    const std::string_view name = std::string_view(reasons).substr(begin, end - begin);
    const auto* known = std::ranges::find(kWords, name, &std::pair<std::string_view, const char*>::first);
    words += (words.empty() ? "" : "; ") + (known != std::end(kWords) ? known->second : std::string(name));
    begin = end + 2;
  }
  return words;
}

}  // namespace

bool was_used(const segment::UnseenName& unseen) {
  return std::string_view(segment::unseen_evidence_name(unseen.evidence)) == "used";
}

std::string text_of(const CoverageGap& gap) {
  std::string text;
  if (gap.layers.size() == 1 && gap.layers.front().empty())
    text = "calls without a layer";
  else if (gap.layers.empty())
    text = std::to_string(gap.unnamed) + (gap.unnamed == 1 ? " layer" : " layers");
  else
    text = gap.layers.size() == 1 ? "layer " : "layers ";
  for (size_t n = 0; n < std::min(gap.layers.size(), kMostLayersNamed); ++n)
    text += (n > 0 ? ", " : "") + gap.layers[n];
  if (!gap.layers.empty())
    if (const size_t more = gap.count() - std::min(gap.layers.size(), kMostLayersNamed); more > 0)
      text += " and " + std::to_string(more) + " more";
  constexpr const char* kTensors[kJudgedTensors] = {"forward", "dQ", "dK and dV", "dV"};
  text += ": " + std::string(kTensors[gap.tensor]) + " not judged; ";
  const char* of_pass = gap.tensor == 0 ? "forward" : "backward";
  switch (gap.cause) {
    case GapCause::kNotHooked:
      return text + "no call reached a hook" +
             (gap.reasons.empty() ? "" : ", and the run used " + gap.reasons) +
             ". Do: " + other_way(gap.reasons) + "add foreshock.tap to this attention (docs/coverage.md)";
    case GapCause::kMathPath:
      return text + "calls take PyTorch's unfused path. Do: leave --math-path on";
    case GapCause::kNoGradient:
      return text + "no gradient of its parameters was seen. Do: check whether the loss uses its output";
    case GapCause::kNoBackwardSeen:
      // Calls under torch.no_grad() and those of a frozen model have no layer and no backward pass.
      if (gap.layers.size() == 1 && gap.layers.front().empty())
        return text +
               "no backward call reached a hook. Do: nothing if no gradient passes through them (frozen, or "
               "torch.no_grad()); else add foreshock.tap in their backward (docs/coverage.md)";
      return text + "foreshock did not see its backward pass. Do: add foreshock.tap there (docs/coverage.md)";
    case GapCause::kUnattributed:
      return text + of_pass +
             " calls were checked whose layer is unknown, and its calls may be among them. Do: add "
             "foreshock.tap with its argument layer to this attention (docs/coverage.md)";
    case GapCause::kFewRows:
      return text + "the error of each slice is that of too few rows. Do: train longer, or give --every 1";
    case GapCause::kSkipped:
      if (gap.reasons == "device")
        return text +
               "foreshock does not read its device. It needs CUDA, driver 525 or later; not ROCm, XPU, MPS: "
               "foreshock doctor";
      return text + (is_key_gradient(gap.tensor) ? "no key is judged: " : "its calls are not sampled: ") +
             (is_key_gradient(gap.tensor) ? gap.reasons : words_of(gap.reasons)) +
             ". Do: look up this reason in docs/coverage.md";
    case GapCause::kFewSamples:
      break;
  }
  return text + "too few samples yet. Do: train longer, or give --every 1";
}

}  // namespace foreshock
