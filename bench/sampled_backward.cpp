// Measures what a sampled backward call costs the trainer. In such a call foreshock copies a slice of query
// rows ("rows", with dQ). Calls that takes_columns() selects (at most every second call; fewer if
// --max-slowdown leaves little time, as assumed here) also copy a slice of key positions ("columns" or
// "keys", with dK and dV, whose sums over all keys are computed). Prints the median times of both kinds of
// slices over calls of different heads, the mean cost of a sampled call (aim: at most 1.3 times a slice of
// rows), and the agent's CPU time for judging either kind.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <span>
#include <vector>

#include "agent/pipeline.h"
#include "kernels/gather.h"
#include "kernels/key_sums.h"
#include "libmonitor/call.h"
#include "segment/reader.h"
#include "shadow/judgement.h"

namespace {

using namespace foreshock;

constexpr int kCalls = 300, kJudged = 5, kBatch = 4;  // measured calls, judged slices, batch elements
constexpr int kSeed = 1, kStep = 2;                   // from which foreshock chooses heads and positions
constexpr double kAim = 1.3;

struct Shape {
  int64_t heads, kv_heads, queries, keys, dim;
  enum Mask { kNone, kPadding, kPerQuery } mask = kNone;  // bool: one line for all queries, or one for each
};

// A bf16 call laid out as PyTorch's: (batch, position, head, dimension) in memory. The values are arbitrary.
class BackwardCall {
 public:
  explicit BackwardCall(const Shape& shape) : shape_(shape) {
    call_.size = sizeof call_;
    call_.version = FORESHOCK_ABI_VERSION;
    call_.scale = 0.125;
    call_.causal = shape.mask == Shape::kNone ? FORESHOCK_CAUSAL_TOP_LEFT : FORESHOCK_CAUSAL_NONE;
    for (foreshock_tensor* tensor : {&call_.query, &call_.out, &call_.grad_out, &call_.grad_query})
      *tensor = filled(shape.heads, shape.queries);
    for (foreshock_tensor* tensor : {&call_.key, &call_.value, &call_.grad_key, &call_.grad_value})
      *tensor = filled(shape.kv_heads, shape.keys);
    if (shape.mask != Shape::kNone) call_.mask = mask();
    log_sum_exp_.assign(static_cast<size_t>(kBatch * shape.heads * shape.queries), 8.0f);
    call_.log_sum_exp = {log_sum_exp_.data(),
                         {kBatch, shape.heads, shape.queries, 1},
                         {shape.heads * shape.queries, shape.queries, 1, 0},
                         FORESHOCK_FP32,
                         3,  // dimensions
                         FORESHOCK_DEVICE_CPU,
                         0};  // index of the device
  }
  // Returns the call in the form that the functions of call.h take. validate_call() returns -1 if it is
  // valid.
  ValidatedCall validated() const {
    ValidatedCall checked;
    if (validate_call(call_, FORESHOCK_BACKWARD, &checked) >= 0) std::abort();
    return checked;
  }

 private:
  foreshock_tensor mask() {
    const int64_t lines = shape_.mask == Shape::kPadding ? 1 : shape_.queries;
    visible_.assign(static_cast<size_t>(kBatch * lines * shape_.keys), 1);
    return {visible_.data(),
            {kBatch, 1, lines, shape_.keys},
            {lines * shape_.keys, 0, shape_.keys, 1},
            FORESHOCK_BOOL,
            4,  // dimensions
            FORESHOCK_DEVICE_CPU,
            0};  // index of the device
  }
  foreshock_tensor filled(int64_t heads, int64_t length) {
    std::vector<uint16_t>& values =
        storage_.emplace_back(static_cast<size_t>(kBatch * length * heads * shape_.dim));
    for (uint16_t& x : values) x = static_cast<uint16_t>(0x3d00 + (random_() & 0x80ff));  // +-2^-5 to +-2^-3
    return {values.data(),
            {kBatch, heads, length, shape_.dim},
            {length * heads * shape_.dim, shape_.dim, heads * shape_.dim, 1},
            FORESHOCK_BF16,
            4,  // dimensions
            FORESHOCK_DEVICE_CPU,
            0};  // index of the device
  }

  const Shape shape_;
  std::minstd_rand random_;
  std::vector<std::vector<uint16_t>> storage_;
  std::vector<float> log_sum_exp_;
  std::vector<char> visible_;
  foreshock_attention_call call_ = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class Work>
double microseconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double thread_cpu_milliseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Copies a slice into a slot (in the trainer a piece of shared memory), as foreshock does for the `number`-th
// call of a step. `by_columns`: a slice of key positions, not of query rows.
void copy_into_slot(const ValidatedCall& call, bool by_columns, uint64_t number, std::vector<char>* slot) {
  SlicePlan plan;
  Slice slice = by_columns ? choose_columns(call.shape, kSeed, kStep, number, /*rank=*/0)
                           : choose_slice(call.shape, kSeed, kStep, number, /*rank=*/0);
  const bool fits = by_columns ? plan_columns(call, slot->size(), /*most_slots=*/1, slice, &plan)
                               : plan_slice(call, slot->size(), /*most_slots=*/1, &slice, &plan);
  if (!fits) std::abort();
  const segment::Slot header = slot_of(plan, /*part=*/0);
  std::memcpy(slot->data(), &header, sizeof header);
  copy_slot(call, slice, header, slot->data());
}

// Returns the median CPU time of judging a slice.
double judging_milliseconds(const ValidatedCall& call, bool by_columns, std::vector<char>* slot) {
  DeviationWorkspace rows;
  ColumnReference columns;
  std::vector<double> spent;
  for (int n = 0; n < kJudged; ++n) {
    copy_into_slot(call, by_columns, static_cast<uint64_t>(n), slot);
    segment::SlotView view;
    // parse_slot() returns null, or what is wrong.
    if (segment::parse_slot(std::as_bytes(std::span(*slot)), &view) != nullptr) std::abort();
    const double begin = thread_cpu_milliseconds();
    if (by_columns)
      judge(columns_of(view), &columns);
    else
      judge(slice_of(view), &rows);
    spent.push_back(thread_cpu_milliseconds() - begin);
  }
  return median(spent);
}

// Measures one shape. Returns the mean cost of a sampled call relative to a slice of rows.
double measure(const Shape& shape) {
  const BackwardCall described(shape);
  const ValidatedCall call = described.validated();
  std::vector<char> slot(size_t{64} << 20);  // 64 MiB: room for the slices of all shapes
  std::vector<ColumnSum> sums(key_sum_count(static_cast<size_t>(shape.dim), static_cast<size_t>(shape.dim)));
  std::vector<double> rows, columns, summed, counted;  // microseconds
  for (uint64_t n = 0; n < kCalls; ++n) {
    rows.push_back(microseconds([&] { copy_into_slot(call, false, n, &slot); }));
    columns.push_back(microseconds([&] { copy_into_slot(call, true, n, &slot); }));
    // Parts of the work for columns. They use another slice, since the copied slices are in the cache now.
    const Slice slice = choose_columns(call.shape, kSeed, kStep, n + kCalls, /*rank=*/0);
    counted.push_back(microseconds([&] {
      if (count_nonfinite(call.out, slice.batch, slice.first_head) > 0) std::abort();
    }));
    summed.push_back(microseconds([&] {
      sum_over_keys(call.grad_query, call.grad_key, call.grad_value, slice.batch, slice.kv_head, sums.data());
    }));
  }
  constexpr int kChoices = 100000;  // calls from which the share that takes key positions is estimated
  int taken = 0;
  for (uint64_t n = 0; n < kChoices; ++n)
    taken += takes_columns(call, /*is_affordable=*/false, kSeed, kStep, n);
  const double share = static_cast<double>(taken) / kChoices;
  const double mean = median(rows) + share * median(columns), ratio = mean / median(rows);
  constexpr const char* kMasks[] = {"", "padding mask", "mask"};
  std::printf(
      "%2d heads, %d of keys, %d by %d x %-3d %-14s  rows %6.1f us   keys %6.1f us (sums %5.1f us, NaN of "
      "one head %4.1f "
      "us), 1 call in %-4.1f mean %6.1f us, %.2f times rows   agent: rows %.1f ms, keys %.1f ms\n",
      static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads), static_cast<int>(shape.queries),
      static_cast<int>(shape.keys), static_cast<int>(shape.dim), kMasks[shape.mask], median(rows),
      median(columns), median(summed), median(counted), 1 / share, mean, ratio,
      judging_milliseconds(call, false, &slot), judging_milliseconds(call, true, &slot));
  return ratio;
}

}  // namespace

int main() {
  double worst = 0;
  for (const Shape& shape :
       {Shape{8, 8, 1024, 1024, 64}, Shape{16, 4, 1024, 1024, 64}, Shape{16, 16, 2048, 2048, 128},
        Shape{8, 8, 1024, 1024, 64, Shape::kPadding}, Shape{8, 8, 1024, 1024, 64, Shape::kPerQuery},
        Shape{16, 4, 1024, 1024, 64, Shape::kPerQuery}, Shape{8, 8, 256, 7, 64}})
    worst = std::max(worst, measure(shape));
  std::printf("a sampled backward call: %.2f times a slice of rows, aim %.1f: %s\n", worst, kAim,
              worst <= kAim ? "met" : "missed");
}
