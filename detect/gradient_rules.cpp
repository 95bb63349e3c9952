// The rule over looks at gradients.
#include "detect/gradient_rules.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <set>
#include <utility>

namespace foreshock {
namespace {

// A finding needs so many looks in a row at the parameter with the same fate. A step that the training leaves
// out by itself may look like one.
constexpr uint64_t kGradientLooks = 2;

// Each of n additions and scalings rounds by at most `unit` of its result. The errors have random signs, so
// the vector e of their sum has a norm of at most about unit * sqrt(n) * the norm of the results. Its inner
// product with a vector of random signs has the standard deviation |e|. The mean of the squares of four
// products exceeds 10 |e|^2 with the probability P(chi^2_4 > 40) = 4e-8. kScalings: a mean over the ranks, an
// unscaling and a clipping.
constexpr double kMargin = 3.2;  // sqrt(10)
constexpr double kScalings = 3;
// A parameter stands apart if its distance from the law exceeds the tolerance by this factor. In between it
// is neither sound nor found.
constexpr double kApart = 3;
// Parameters of ranks count as copies of each other if they differ by less than this share of their norm.
// Parts of a tensor, which differ by all of it, need no sum over the ranks.
constexpr double kCopies = 0.25;
// Copies use different gradients if these differ by more than this share of their norm. A sum of 1000 terms
// in bf16, in another order on each rank, differs by sqrt(1000) 2^-8 = 0.12 at most. Copies that were equal
// have moved apart if they differ by more than this share of the way that they have moved since then.
constexpr double kDifferent = 0.25;
// Ranks whose framework does not say so hold copies if they were equal at so many looks, each with other
// values than the look before. Constants, such as the gains of norms, are equal without being copies.
constexpr uint64_t kEqualLooks = 3;
// Parameters with fewer elements may be equal by chance, under optimizers whose steps have one size.
constexpr double kFewElements = 16;
// The unit roundoff of bf16, and that of fp32.
constexpr double kCoarse = 0x1p-8, kFine = 0x1p-24;
// A gradient was rounded to bf16 if it differs by at least this share of the tolerance in bf16. Of n
// roundings counted, n / 3 at least are in bf16, with an error of 0.3 units each: sqrt(1 / 3) * 0.3 / kMargin
// = 0.05 of the tolerance. Sums in fp16, with an eighth of this error, stay below.
constexpr double kLikeRounding = 0.02;
// GradientFacts::mesh of tensors that all ranks of the job share.
constexpr uint64_t kAllRanks = 1;
// The number of values of which a sketch reads at most (kernels/sketch.h), for rounding errors near 0.
constexpr double kSketchedRoot = 128;  // sqrt(16384)

double distance(const Sketch& a, double factor_b, const Sketch& b, double factor_c = 0,
                const Sketch& c = {}) {
  double squares = 0;
  for (size_t k = 0; k < kSketchNumbers; ++k) {
    const double d = a.products[k] - factor_b * b.products[k] - factor_c * c.products[k];
    squares += d * d;
  }
  return std::sqrt(squares / kSketchNumbers);
}

double product(const Sketch& a, const Sketch& b) {
  double sum = 0;
  for (size_t k = 0; k < kSketchNumbers; ++k) sum += a.products[k] * b.products[k];
  return sum;
}

void add(const Sketch& from, Sketch* to) {
  for (size_t k = 0; k < kSketchNumbers; ++k) to->products[k] += from.products[k];
  to->norm += from.norm;
}

bool is_known(const Sketch& sketch) {
  double sum = sketch.norm;
  for (const double each : sketch.products) sum += each;
  return std::isfinite(sum);
}

double distance(const std::array<double, kSketchNumbers>& a, const std::array<double, kSketchNumbers>& b) {
  double squares = 0;
  for (size_t k = 0; k < kSketchNumbers; ++k) squares += (a[k] - b[k]) * (a[k] - b[k]);
  return std::sqrt(squares / kSketchNumbers);
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr char kAfterCoordinates = '/';
std::string key_of(const std::string& coordinates, const std::string& name) {
  return coordinates + kAfterCoordinates + name;
}

using Ranks = std::vector<const GradientFacts*>;

bool have_like_values(const GradientFacts& a, const GradientFacts& b) {
  return distance(a.value, 1, b.value) < kCopies * b.value.norm;
}

// Each rank may have experts of its own with the same names.
bool is_expert(const std::string& name) { return name.find("expert") != std::string::npos; }

// A parameter in one step, on the ranks that may share its gradient.
struct Parameter {
  std::string name;
  Ranks ranks;               // one, the sum of the parts, if the ranks hold parts
  Sketch total, last_total;  // sums over the ranks of what the passes, and the last pass, have contributed
  double roundings = kScalings;  // additions and scalings of the used gradient
  double sharers = 0;            // ranks, also if they hold parts
  double parts = 0;              // different parts that the ranks hold; 0: each rank holds the whole tensor
  bool is_coarse = false;        // the gradients are rounded to bf16

  // Whether all that the rule needs is known, and there is a gradient.
  bool is_judged() const {
    return total.norm > 0 && std::all_of(ranks.begin(), ranks.end(), [&](const GradientFacts* each) {
             return each->is_whole && each->shape == ranks[0]->shape && each->unit == ranks[0]->unit &&
                    is_known(each->local) && is_known(each->last) && is_known(each->before) &&
                    is_known(each->used) && is_known(each->value);
           });
  }
  // Whether the ranks hold copies of the parameter, and not parts or experts of their own.
  bool is_copied() const {
    return !is_expert(name) && std::all_of(ranks.begin(), ranks.end(), [&](const GradientFacts* each) {
      return have_like_values(*each, *ranks[0]);
    });
  }
};

// What the gradients of a step may consist of.
enum class Source { kSum, kOwn };

// Of which backward passes.
enum class Passes { kAll, kLast, kAllButLast };

// A hypothesis about all parameters of a step: used = factor * (contributions + piled * gradient before).
struct Law {
  Source source = Source::kSum;
  Passes passes = Passes::kAll;
  bool is_piled = false;             // the gradient of earlier steps too
  std::vector<double> factors = {};  // by rank
};

Sketch contribution(const Parameter& p, const Law& law, size_t rank) {
  const bool is_sum = law.source == Source::kSum || p.parts > 0;
  const Sketch& last = is_sum ? p.last_total : p.ranks[rank]->last;
  if (law.passes == Passes::kLast) return last;
  Sketch all = is_sum ? p.total : p.ranks[rank]->local;
  if (law.passes == Passes::kAllButLast) {
    for (size_t k = 0; k < kSketchNumbers; ++k) all.products[k] -= last.products[k];
    all.norm -= last.norm;
  }
  return all;
}

// The gradient of earlier steps is the same on all ranks that sum their gradients. The mean over the ranks
// keeps it, and divides the sum of the contributions by their number. With c copies of each part, the parts
// of all ranks add up to c times either.
double weight_of_before(const Parameter& p, const Law& law) {
  if (p.parts > 0) return p.parts;
  return law.source == Source::kSum ? p.sharers : 1;
}

// The norm of the partial sums is that of the used gradient, divided by its factor, or, if the contributions
// are independent of each other, the sum of their norms divided by the root of their number. It is at most
// the sum of their norms.
double tolerance(const Parameter& p, const Law& law, size_t rank, double factor) {
  const GradientFacts& own = *p.ranks[rank];
  const double before = law.is_piled ? weight_of_before(p, law) * own.before.norm : 0;
  const double most = contribution(p, {.source = law.source}, rank).norm + before;
  const double used = own.used.norm / std::max(std::fabs(factor), 1e-300);
  const double partial = std::max(most / std::sqrt(p.roundings), std::min(used, most));
  return kMargin * std::sqrt(p.roundings) *
         ((p.is_coarse ? kCoarse : own.unit) * std::fabs(factor) * partial + own.tiny * kSketchedRoot);
}

// Whether the used gradient of a rank is `multiple` times that of the law, within `margin` tolerances.
bool follows_on(const Parameter& p, const Law& law, size_t rank, double multiple = 1, double margin = 1) {
  const double factor = multiple * law.factors[rank];
  const double before = law.is_piled ? factor * weight_of_before(p, law) : 0;
  const double d =
      distance(p.ranks[rank]->used, factor, contribution(p, law, rank), before, p.ranks[rank]->before);
  return d <= margin * tolerance(p, law, rank, factor);
}

bool follows(const Parameter& p, const Law& law, double multiple = 1, double margin = 1) {
  for (size_t r = 0; r < p.ranks.size(); ++r)
    if (!follows_on(p, law, r, multiple, margin)) return false;
  return true;
}

// Sets the factors to the medians over the parameters. Returns whether more than half of these follow the
// law.
bool fit(const std::vector<Parameter>& parameters, size_t ranks, Law* law) {
  law->factors.clear();
  for (size_t r = 0; r < ranks; ++r) {
    std::vector<double> ratios;
    for (const Parameter& p : parameters) {
      Sketch expected = contribution(p, *law, r);
      if (law->is_piled)
        for (size_t k = 0; k < kSketchNumbers; ++k)
          expected.products[k] += weight_of_before(p, *law) * p.ranks[r]->before.products[k];
      const double squares = product(expected, expected);
      if (squares > 0) ratios.push_back(product(p.ranks[r]->used, expected) / squares);
    }
    if (ratios.empty()) return false;
    law->factors.push_back(median_of(std::move(ratios)));
    if (!(std::fabs(law->factors.back()) > 0)) return false;
  }
  const auto following = std::count_if(parameters.begin(), parameters.end(),
                                       [&](const Parameter& p) { return follows(p, *law); });
  return 2 * static_cast<size_t>(following) > parameters.size();
}

bool has_several_passes(const Parameter& p) {
  return std::any_of(p.ranks.begin(), p.ranks.end(),
                     [](const auto* each) { return each->contributions > 1; });
}

bool is_piled_on_something(const Parameter& p, const Law& law) {
  for (size_t r = 0; r < p.ranks.size(); ++r)
    if (std::fabs(law.factors[r]) * p.ranks[r]->before.norm > kApart * tolerance(p, law, r, law.factors[r]))
      return true;
  return false;
}

// The fate of a parameter if the others follow `law`, and the factor of kMultiplied.
std::pair<GradientFate, double> fate_of(const Parameter& p, const Law& law) {
  const double ranks = p.sharers;
  if (follows(p, law)) {
    if (law.is_piled && is_piled_on_something(p, law)) return {GradientFate::kPiledUp, 1};
    if (law.passes != Passes::kAll && has_several_passes(p))
      return {law.passes == Passes::kLast ? GradientFate::kLastPass : GradientFate::kLacksLast, 1};
    return {GradientFate::kSound, 1};
  }
  if (law.is_piled || law.passes != Passes::kAll || follows(p, law, 1, kApart))
    return {GradientFate::kOther, 1};
  // Dropped on some ranks. If each rank steps some of the parameters (ZeRO), one rank uses its gradient.
  bool is_dropped = true;
  for (size_t r = 0; r < p.ranks.size(); ++r)
    is_dropped = is_dropped &&
                 (p.ranks[r]->used.norm <= tolerance(p, law, r, law.factors[r]) || follows_on(p, law, r));
  if (is_dropped) return {GradientFate::kDropped, 0};
  for (const auto& [passes, fate] :
       {std::pair(Passes::kLast, GradientFate::kLastPass), {Passes::kAllButLast, GradientFate::kLacksLast}}) {
    Law some = law;
    some.passes = passes;
    if (has_several_passes(p) && follows(p, some)) return {fate, 1};
  }
  Law own = law;
  own.source = Source::kOwn;
  if (law.source == Source::kSum && p.ranks.size() > 1 && p.is_copied() &&
      (follows(p, own) || follows(p, own, ranks)))
    return {GradientFate::kOwnRank, 1};
  for (const double multiple : {2.0, 0.5, ranks, 1 / ranks})
    if (multiple != 1 && follows(p, law, multiple)) return {GradientFate::kMultiplied, multiple};
  Law piled = law;
  piled.is_piled = true;
  if (is_piled_on_something(p, piled) && follows(p, piled)) return {GradientFate::kPiledUp, 1};
  return {GradientFate::kOther, 1};
}

// The first law that the parameters follow. Not every job sums over its ranks: they may hold parts of the
// model.
std::optional<Law> law_of(const std::vector<Parameter>& parameters, size_t ranks) {
  for (const auto& [passes, is_piled] : {std::pair(Passes::kAll, false),
                                         {Passes::kAll, true},
                                         {Passes::kLast, false},
                                         {Passes::kAllButLast, false}})
    for (const Source source : {Source::kSum, Source::kOwn}) {
      Law law{.source = source, .passes = passes, .is_piled = is_piled};
      if (fit(parameters, ranks, &law)) return law;
    }
  return std::nullopt;
}

// Makes the sums of the parts that the ranks hold, as if one rank held the whole tensor.
GradientFacts joined(const Parameter& p) {
  GradientFacts all = *p.ranks[0];
  for (const GradientFacts* each : p.ranks) {
    if (each == p.ranks[0]) continue;
    add(each->local, &all.local);
    add(each->last, &all.last);
    all.is_whole &= each->is_whole && each->unit == all.unit && each->shape == all.shape;
    for (const auto& [from, to] :
         {std::pair(&each->before, &all.before), {&each->used, &all.used}, {&each->value, &all.value}}) {
      const double norm = std::hypot(from->norm, to->norm);  // the parts have no common elements
      add(*from, to);
      to->norm = norm;
    }
  }
  return all;
}

// Two ranks, with the kind of parallelism along which they differ: "the tensor-parallel ranks 0 and 1".
std::string text_of(const GradientFacts& a, const GradientFacts& b) {
  const auto [own, others] = std::ranges::mismatch(a.coordinates, b.coordinates);
  const bool is_equal = own == a.coordinates.end() && others == b.coordinates.end();
  const auto kind = std::count(a.coordinates.begin(), own, ' ');
  const char* axis = is_equal ? "data-" : kind == 0 ? "tensor-" : kind == 1 ? "pipeline-" : "expert-";
  if (a.coordinates.empty() || b.coordinates.empty()) axis = nullptr;
  return std::string("the ") + (axis != nullptr ? std::string(axis) + "parallel " : "") + "ranks " +
         std::to_string(a.rank) + " and " + std::to_string(b.rank);
}

// By how much the gradients of two copies differ, as a share of their norm, at most over all pairs of the
// first rank that holds a part with another one; and those two ranks. `are_compared`: there is such a pair.
struct Difference {
  double share = 0;
  std::string ranks = {};
  bool are_compared = false, have_like_values = true;
};

Difference difference_of_copies(const Ranks& ranks, bool are_on_one_mesh) {
  std::map<std::string, const GradientFacts*> first;  // by part
  Difference most;
  for (const GradientFacts* each : ranks) {
    const GradientFacts* other = first.emplace(each->shape + '|' + each->part, each).first->second;
    const double norm = std::max(each->used.norm, other->used.norm);
    const double d = distance(each->used, 1, other->used);
    if (each == other || (!are_on_one_mesh && each->mesh == other->mesh)) continue;
    if (!(norm > 0) || !(d >= 0)) continue;  // unknown ones are NaN
    most.are_compared = true;
    most.have_like_values &= have_like_values(*each, *other);
    if (d > most.share * norm) most.share = d / norm, most.ranks = text_of(*other, *each);
  }
  return most;
}

// By how much ranks that hold copies of a distributed tensor use different gradients, by key. Ranks of one
// mesh must use the same. Ranks of different meshes with equal coordinates, such as two tensor-parallel
// pairs, must if the training sums the gradients over them, so that most of their parameters have equal
// gradients.
std::map<std::string, Difference> differences_of_copies(
    const std::map<std::string, std::map<int64_t, GradientFacts>>& parameters) {
  std::map<std::string, Difference> within, between;
  size_t equal = 0, compared = 0;
  for (const auto& [name, by_rank] : parameters) {
    std::map<uint64_t, Ranks> meshes;
    std::map<std::string, Ranks> places;
    for (const auto& [rank, facts] : by_rank) {
      if (facts.mesh > 0) meshes[facts.mesh].push_back(&facts);
      const bool is_place_known =
          !facts.coordinates.empty() && facts.coordinates.find('-') == std::string::npos;
      if (facts.mesh > kAllRanks && is_place_known) places[facts.coordinates].push_back(&facts);
    }
    for (const auto& [mesh, ranks] : meshes)
      within.emplace(key_of("gradients of copies " + std::to_string(mesh), name),
                     difference_of_copies(ranks, /*are_on_one_mesh=*/true));
    for (const auto& [place, ranks] : places) {
      Difference found = difference_of_copies(ranks, /*are_on_one_mesh=*/false);
      if (!found.are_compared) continue;
      ++compared;
      equal += found.share <= kDifferent;
      if (!found.have_like_values || is_expert(name)) found.share = 0;
      between.emplace(key_of("gradients at " + place, name), found);
    }
  }
  if (2 * equal <= compared)
    for (auto& [key, found] : between) found.share = 0;
  within.merge(between);
  return within;
}

// Whether all ranks have the same contributions to each parameter, and there are some.
bool are_equal_over_ranks(const std::map<std::string, std::map<int64_t, GradientFacts>>& parameters,
                          size_t ranks) {
  bool is_any = false;
  for (const auto& [name, by_rank] : parameters) {
    const GradientFacts& first = by_rank.begin()->second;
    const bool are_equal = std::ranges::all_of(by_rank, [&](const auto& each) {
      const GradientFacts& own = each.second;
      return own.is_whole && own.coordinates == first.coordinates &&
             own.local.products == first.local.products && own.local.norm == first.local.norm;
    });
    if (!are_equal || by_rank.size() != ranks) return false;
    is_any = is_any || first.local.norm > 0;
  }
  return is_any && ranks > 1;
}

}  // namespace

void GradientRule::observe(const GradientFacts& facts, ConditionBoard* board) {
  constexpr size_t kLongestName = 256;  // the state of the detectors has no longer texts than 1024
  if (facts.world_size < 1 || facts.world_size > kMostRanks || facts.rank < 0 || facts.step < 0 ||
      facts.tensor.size() > kLongestName)
    return;
  Look& look = open_[facts.step];
  const std::string own = "rank" + std::to_string(facts.rank) + ".";
  const std::string name = facts.tensor.starts_with(own) ? facts.tensor.substr(own.size()) : facts.tensor;
  if (look.parameters.size() < kMostParameters && look.parameters[name].emplace(facts.rank, facts).second)
    ++look.of_rank[facts.rank];
  const bool is_complete = look.of_rank.size() == static_cast<size_t>(facts.world_size) &&
                           std::all_of(look.of_rank.begin(), look.of_rank.end(),
                                       [&](const auto& each) { return each.second == facts.parameters; });
  if (is_complete) {
    const auto node = open_.extract(facts.step);
    judge(node.key(), node.mapped(), board);
  } else if (open_.size() > kMostOpen) {
    counts_.without_ranks += open_.begin()->second.parameters.size();
    open_.erase(open_.begin());
  }
}

void GradientRule::begin_process(int64_t rank, int64_t pid) {
  if (pids_.size() >= static_cast<size_t>(kMostRanks) && !pids_.contains(rank)) return;
  const auto [known, is_first] = pids_.emplace(rank, pid);
  if (!is_first && known->second != pid) {
    open_.clear();
    copies_.clear();
  }
  known->second = pid;
}

void GradientRule::keep(const std::string& key, GradientFate fate, int64_t step, double factor,
                        const std::string& ranks) {
  if (fate == GradientFate::kSound || fate == GradientFate::kOther) {
    fates_.erase(key);
    return;
  }
  if (fates_.size() >= kMostParameters && !fates_.contains(key)) return;
  Fate& known = fates_[key];
  if (known.looks == 0 || known.fate != static_cast<int>(fate))
    known = {static_cast<int>(fate), step, 0, 1, ""};
  ++known.looks;
  known.factor = factor;
  known.ranks = ranks;
}

// Judges whether ranks that hold the same part of a parameter have equal values, whatever their coordinates.
void GradientRule::judge_values(const std::string& name, const std::map<int64_t, GradientFacts>& by_rank,
                                int64_t step) {
  std::map<std::pair<uint64_t, std::string>, Ranks> holders;  // by mesh and part; 0: whatever their mesh
  for (const auto& [rank, facts] : by_rank) {
    const std::string part = facts.shape + facts.part;
    if (facts.mesh > 0) holders[{facts.mesh, part}].push_back(&facts);
    if (facts.mesh != kAllRanks) holders[{0, part}].push_back(&facts);
  }
  for (const auto& [mesh_and_part, ranks] : holders) {
    const auto& [mesh, part] = mesh_and_part;
    const GradientFacts& first = *ranks[0];
    const bool is_on_one_mesh = mesh > 0;  // so that the ranks hold copies
    const bool are_known =
        std::ranges::all_of(ranks, [](const GradientFacts* each) { return is_known(each->value); });
    if (ranks.size() < 2 || !are_known || (!is_on_one_mesh && first.elements < kFewElements)) continue;
    const std::string key = key_of("values " + (mesh > 0 ? std::to_string(mesh) : "") + '|' + part, name);
    if (copies_.size() >= kMostParameters && !copies_.contains(key)) continue;
    Copies& known = copies_[key];
    double most = 0;
    std::string apart;
    for (const GradientFacts* each : ranks)
      if (const double d = distance(each->value, 1, first.value); d > most) {
        most = d;
        apart = text_of(first, *each);
      }
    const bool are_copies = known.equal >= (is_on_one_mesh ? 1 : kEqualLooks);
    GradientFate fate = GradientFate::kSound;
    if (most == 0) {
      if (known.equal == 0) known.first = first.value.products;
      if (known.equal == 0 || known.last != first.value.products) ++known.equal;
      known.last = first.value.products;
    } else if (are_copies && !known.are_unlike) {
      double way = 0;
      for (const GradientFacts* each : ranks)
        way = std::max(way, distance(each->value.products, known.first));
      most /= way;
      if (most > kDifferent) fate = GradientFate::kCopiesApart;
    } else {
      known.are_unlike = true;
    }
    keep(key, fate, step, most, apart);
  }
}

void GradientRule::judge(int64_t step, const Look& look, ConditionBoard* board) {
  // Parameters that may follow one law. Ranks with other coordinates have other parameters of the same name,
  // unless these are copies.
  std::map<std::string, std::vector<Parameter>> groups;
  std::list<GradientFacts> sums;
  const bool are_equal = are_equal_over_ranks(look.parameters, look.of_rank.size());
  equal_looks_ = are_equal ? equal_looks_ + 1 : 0;
  const auto place_of = [](const GradientFacts& facts) {
    return facts.mesh == kAllRanks ? "all ranks" : facts.coordinates;
  };
  for (const auto& [key, found] : differences_of_copies(look.parameters))
    keep(key, found.share > kDifferent ? GradientFate::kCopiesDiffer : GradientFate::kSound, step,
         found.share, found.ranks);
  std::map<std::string, std::set<int64_t>> ranks_of;  // by place: ranks that have any parameter there
  for (const auto& [name, by_rank] : look.parameters)
    for (const auto& [rank, facts] : by_rank) ranks_of[place_of(facts)].insert(rank);
  for (const auto& [name, by_rank] : look.parameters) {
    judge_values(name, by_rank, step);
    std::map<std::string, Parameter> by_place;
    std::map<std::string, std::set<std::string>> parts;
    for (const auto& [rank, facts] : by_rank) {
      const std::string place = place_of(facts);
      Parameter& p = by_place[place];
      p.name = name;
      p.ranks.push_back(&facts);
      add(facts.local, &p.total);
      add(facts.last, &p.last_total);
      p.roundings += static_cast<double>(facts.contributions) + 1;
      ++p.sharers;
      parts[place].insert(facts.part);
    }
    for (auto& [place, p] : by_place) {
      if (p.ranks.size() != ranks_of[place].size()) {  // some ranks do not have it
        ++counts_.without_ranks;
        continue;
      }
      const bool is_in_parts = parts[place].size() > 1;
      if (is_in_parts) {
        p.parts = static_cast<double>(parts[place].size());
        sums.push_back(joined(p));
        p.ranks = {&sums.back()};
      }
      if (p.is_judged())
        groups[place + (is_in_parts ? " in parts" : "")].push_back(std::move(p));
      else {
        ++counts_.not_whole;
        if (not_whole_.size() < kMostNamed) not_whole_.insert(name);
      }
    }
  }
  for (auto& [place, parameters] : groups) {
    const size_t ranks = parameters[0].ranks.size();
    std::optional<Law> law = law_of(parameters, ranks);
    bool is_coarse = false;
    // Ranks may sum gradients in another format than that in which they keep them.
    if (!law && parameters[0].ranks[0]->unit == kFine && parameters[0].sharers > 1) {
      for (Parameter& p : parameters) p.is_coarse = true;
      law = law_of(parameters, ranks);
      is_coarse = law && law->source == Source::kSum && law->passes == Passes::kAll && !law->is_piled;
    }
    (law ? counts_.judged : counts_.without_law) += parameters.size();
    if (!law) continue;
    for (Parameter& p : parameters) {
      auto [fate, factor] = fate_of(p, *law);
      if (is_coarse && fate == GradientFate::kSound && !follows(p, *law, 1, kLikeRounding))
        fate = GradientFate::kRounded;
      keep(key_of(place, p.name), fate, step, factor, "");
    }
  }
  report(ConditionId::kGradientNotSummed, GradientFate::kOwnRank, step, board);
  report(ConditionId::kGradientLastOnly, GradientFate::kLastPass, step, board);
  report(ConditionId::kGradientLacksLast, GradientFate::kLacksLast, step, board);
  report(ConditionId::kGradientDropped, GradientFate::kDropped, step, board);
  report(ConditionId::kGradientMultiplied, GradientFate::kMultiplied, step, board);
  report(ConditionId::kGradientPiledUp, GradientFate::kPiledUp, step, board);
  report(ConditionId::kGradientRounded, GradientFate::kRounded, step, board);
  report(ConditionId::kCopiesDiffer, GradientFate::kCopiesDiffer, step, board);
  report(ConditionId::kCopiesApart, GradientFate::kCopiesApart, step, board);
}

void GradientRule::report(ConditionId id, GradientFate fate, int64_t step, ConditionBoard* board) const {
  std::set<std::string> distinct;  // ranks with other coordinates may have a parameter of the same name
  int64_t since = step;
  double factor = 1;
  std::string ranks;
  for (const auto& [key, each] : fates_) {
    if (each.fate != static_cast<int>(fate) || each.looks < kGradientLooks) continue;
    distinct.insert(key.substr(key.find(kAfterCoordinates) + 1));
    since = std::min(since, each.since);
    factor = each.factor;
    ranks = each.ranks;
  }
  if (distinct.empty()) return board->end(id, -1);
  const std::vector<std::string> names(distinct.begin(), distinct.end());
  if (Condition* found = board->note(id, -1, since, step)) {
    found->count = names.size();
    found->value = factor;
    found->place = patterns_text(names) + (ranks.empty() ? "" : ": " + ranks);
  }
}

}  // namespace foreshock
