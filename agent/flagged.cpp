// Decides which checked slices (copied parts of attention calls) are unusual ("flagged"), and saves them, and
// ordinary ones for comparison ("controls"), as safetensors files from a separate thread. A slice has query
// rows (of output or dQ) or key columns (of dK and dV).
#include "agent/flagged.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "agent/directory.h"
#include "detect/detector.h"
#include "exporters/file_place.h"
#include "segment/layout.h"
#include "shadow/judgement.h"
#include "shadow/stored_slice.h"

namespace foreshock {
namespace {

// A slice is flagged without an alarm of its layer if its error ratio (error / error of a correct kernel)
// exceeds kFarBeyond times the alarm limit. The denominator may be small by chance if almost no value was
// rounded. So the error, relative to the norm of the row, must also exceed kFarBeyond times 2^-p, the largest
// error of one rounding to the p bits of the format.
constexpr double kFarBeyond = 4;

// An upper bound of the relative error of the fp64 reference. Ratios of errors below this are meaningless.
constexpr double kReferenceError = 1e-13;

using std::chrono::milliseconds;
constexpr milliseconds kMaxWaitAtEnd{3000};  // for the disk, in the destructor of FlaggedWriter

// Whether a slice has an error ratio (fused_ratio) above `limit`, and the error is not that of the reference.
bool is_above(const SliceDeviation& d, double limit) {
  return d.fused_ratio.value_or(0) > limit && d.relative_error_max.value_or(0) > kReferenceError;
}

// Whether a slice is above `times` its alarm limit. query_rows: as for ratio_limit().
bool is_beyond(const SliceDeviation& d, DType dtype, uint64_t query_rows, double times) {
  return is_above(
      d, times * ratio_limit(static_cast<uint32_t>(d.tensor), dtype, query_rows, d.unexplained_bias));
}

bool is_far_beyond(const JudgedSlice& judged) {
  const double rounding_error = std::ldexp(1.0, -format_of(judged.slice.dtype).precision);
  return is_beyond(judged.deviation, judged.slice.dtype, 0, kFarBeyond) &&
         judged.deviation.relative_error_max.value_or(0) > kFarBeyond * rounding_error;
}

// Returns the bias (mean signed error) in units in the last place.
double in_ulp(const BiasSums& sums) { return sums.denominator > 0 ? sums.numerator / sums.denominator : 0; }

// Whether the slice's bias exceeds both the bias of a correct algorithm and the bias of the rounded
// reference, computed on the same slice, by `limit` ulp in the direction (sign) of layer_bias.
bool has_bias_of_layer(const SliceDeviation& d, double layer_bias, double limit) {
  const double sign = layer_bias < 0 ? -1 : 1;
  return in_ulp(excess_bias(d.bias, d.floor_bias)) * sign > limit &&
         (in_ulp(d.bias) - in_ulp(d.rounded_bias)) * sign > limit;
}

// Whether every value of the output equals the value of the reference, rounded to the output's format.
bool is_rounded_reference(const JudgedSlice& judged) {
  const AttentionSlice& slice = judged.slice;
  const size_t count = static_cast<size_t>(slice.rows) * slice.value_dim;
  for (size_t n = 0; n < count; ++n)
    if (load_as_double(slice.out, slice.dtype, n) != round_to(slice.dtype, judged.reference.out[n]))
      return false;
  return true;
}

// Alarms, detector levels and bias over many slices of one layer, for one tensor: output, dQ, dK or dV.
class LayerContext {
 public:
  LayerContext(const std::string& label, uint32_t tensor, const RankStatistics& rank)
      : label_(label), watch_(rank.watch), tensor_(tensor) {
    const auto found = rank.layers.find(label_);
    if (label_.empty() || found == rank.layers.end()) return;
    layer_ = &found->second;
    alarms_ = alarms_of(*layer_, tensor_);
  }

  bool warns(DetectorId detector) const {
    return !label_.empty() && watch_ != nullptr && watch_->level_of(detector, label_) == Level::kWarn;
  }
  bool has_alarm(AlarmKind kind) const {
    return std::any_of(alarms_.begin(), alarms_.end(), [&](const LayerAlarm& a) { return a.kind == kind; });
  }
  uint32_t tensor() const { return tensor_; }
  double pooled_bias() const {
    const PassStatistics* known = layer_ != nullptr ? statistics_of(*layer_, tensor_) : nullptr;
    const std::optional<Bias> bias = known != nullptr ? known->bias.bias() : std::nullopt;
    return bias ? bias->ulp : 0;
  }

 private:
  const std::string& label_;
  const RankWatch* watch_;  // the detectors of the rank; may be null
  const uint32_t tensor_;
  const LayerStatistics* layer_ = nullptr;  // null: the layer is unknown
  std::vector<LayerAlarm> alarms_;
};

bool is_flagged(FlagReason reason, const JudgedSlice& judged, const LayerContext& context) {
  const SliceDeviation& d = judged.deviation;
  switch (reason) {
    case FlagReason::kNonfinite:
      return is_nonfinite(d);
    case FlagReason::kDeviationRatio:
      return is_far_beyond(judged) ||
             (is_beyond(d, judged.slice.dtype, 0, 1) && context.has_alarm(AlarmKind::kFusedRatio));
    case FlagReason::kBias:
      return (context.has_alarm(AlarmKind::kBias) || (!d.backward && context.warns(DetectorId::kBias))) &&
             has_bias_of_layer(d, context.pooled_bias(), bias_limit(0, judged.slice.dtype));
    case FlagReason::kOutputErrorDrift:  // the error is in the output, which a backward slice also holds
      return d.backward && context.warns(DetectorId::kOutputErrorDrift) && !is_rounded_reference(judged);
    case FlagReason::kLogit:
      return !d.backward && (context.warns(DetectorId::kMaxLogit) || context.warns(DetectorId::kLogitGrowth));
    case FlagReason::kControl:
      break;  // chosen by FlaggedSlices::consider()
  }
  return false;
}

// Overload for FlaggedSlices::consider(), which passes a JudgedSlice or JudgedColumns.
bool is_fit_as_control(const JudgedSlice& judged) { return foreshock::is_fit_as_control(judged.deviation); }

bool is_key_beyond(const JudgedColumns& judged, const SliceDeviation& d, double times) {
  return is_beyond(d, judged.columns.dtype, judged.columns.rows(), times);
}

// Returns the reason to flag the slice for one of its tensors, dK or dV, whose deviation is `d`.
std::optional<FlagReason> flag_reason(const JudgedColumns& judged, const SliceDeviation& d,
                                      const RankStatistics& rank) {
  const LayerContext context(judged.layer, static_cast<uint32_t>(d.tensor), rank);
  const double rounding_error = std::ldexp(1.0, -format_of(judged.columns.dtype).precision);
  if (is_nonfinite(d) || d.nonfinite_grad_query) return FlagReason::kNonfinite;
  if ((is_key_beyond(judged, d, kFarBeyond) &&
       d.relative_error_max.value_or(0) > kFarBeyond * rounding_error) ||
      (is_key_beyond(judged, d, 1) && context.has_alarm(AlarmKind::kFusedRatio)))
    return FlagReason::kDeviationRatio;
  if (context.has_alarm(AlarmKind::kBias) &&
      has_bias_of_layer(d, context.pooled_bias(), bias_limit(context.tensor(), judged.columns.dtype)))
    return FlagReason::kBias;
  return std::nullopt;
}

// Returns at most 64 characters of `text`, with '_' for those that a file system may not accept in a name.
std::string name_part(const std::string& text) {
  std::string name = text.substr(0, 64);
  for (char& c : name) {
    const bool is_allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                            c == '_' || c == '-' || c == '.';
    if (!is_allowed) c = '_';
  }
  if (name.empty() || name[0] == '.') name.insert(0, "_");
  return name;
}

// Returns the name of the slice's file. It is unique: the last 8 digits of the segment's name differ between
// processes, and the ticket differs between the slices of a segment.
std::string name_of_file(FlagReason reason, const segment::Slot& slot, const LayerOfCall& layer,
                         const RankStatistics& rank, const std::string& segment) {
  char middle[64], end[40];
  std::snprintf(middle, sizeof middle, ".rank%04d.step%08lld.%s.", rank.identity.rank,
                static_cast<long long>(slot.step), segment::kPassNames[slot.pass]);
  std::snprintf(end, sizeof end, "-%llu", static_cast<unsigned long long>(slot.ticket));
  const std::string nonce = segment.size() > 8 ? segment.substr(segment.size() - 8) : segment;
  const std::string label = layer.label.empty() ? "unknown" : name_part(layer.label);
  return name_part(rank.run) + middle + label + "." + kFlagReasonNames[static_cast<int>(reason)] + "." +
         name_part(nonce) + end + kFlaggedSuffix;
}

// Returns the causal mask of the call, in PyTorch's words: "none": every query sees every key; "top-left":
// query q sees keys 0 to q; "bottom-right": keys 0 to q + keys - queries. "window": a narrower one.
const char* causal_of(const segment::KeyWindow& window) {
  if (window.left >= 0 || window.right > 0) return "window";
  if (window.right < 0) return "none";
  return window.is_bottom_right != 0 ? "bottom-right" : "top-left";
}

std::map<std::string, std::string> facts_of_slot(const segment::Slot& slot) {
  const auto text = [](auto number) { return std::to_string(number); };
  std::map<std::string, std::string> facts = {{"step", text(slot.step)},
                                              {"call", text(slot.call)},
                                              {"ticket", text(slot.ticket)},
                                              {"pass", segment::kPassNames[slot.pass]},
                                              {"dtype", name_of(static_cast<DType>(slot.dtype))},
                                              {"batch", text(slot.batch)},
                                              {"kv_head", text(slot.kv_head)},
                                              {"heads_in_slice", text(slot.heads_in_slice)},
                                              {"query_length", text(slot.query_length)},
                                              {"key_length", text(slot.key_length)},
                                              {"scale", exact_text(slot.scale)},
                                              {"causal", causal_of(slot.window)},
                                              {"time", exact_text(1e-9 * static_cast<double>(slot.time_ns))}};
  if (slot.window.left >= 0 || slot.window.right > 0) {
    facts["window_left"] = text(slot.window.left);
    facts["window_right"] = text(slot.window.right);
  }
  if (slot.soft_cap != 0) facts["soft_cap"] = exact_text(slot.soft_cap);
  if (slot.kept_dtype != 0) facts["dropout"] = exact_text(slot.dropout);
  return facts;
}

void add_facts_of_rank(const segment::Slot& slot, const RankStatistics& rank,
                       std::map<std::string, std::string>* facts) {
  const segment::Identity& id = rank.identity;
  (*facts)["run"] = rank.run;
  (*facts)["rank"] = std::to_string(id.rank);
  (*facts)["attempt"] = std::to_string(id.attempt);
  (*facts)["host"] = segment::text_of(id.host);
  (*facts)["framework"] = segment::text_of(id.framework);
  (*facts)["op"] = rank.operation_of(slot);
  (*facts)["instruction_set"] = reference_target_name();
  (*facts)["foreshock_version"] = FORESHOCK_VERSION;
  (*facts)["reference_version"] = std::to_string(kReferenceVersion);
}

// Adds the statistics of the slice's layer, because a bias is rarely visible in a single slice.
void add_figures_of_layer(uint32_t tensor, const std::string& label, const RankStatistics& rank,
                          std::map<std::string, std::string>* facts) {
  const auto found = rank.layers.find(label);
  if (label.empty() || found == rank.layers.end()) return;
  const PassStatistics* statistics = statistics_of(found->second, tensor);
  if (statistics == nullptr) return;
  (*facts)["layer.judged"] = std::to_string(statistics->judged);
  if (const auto most = max_of(statistics->deviation_ratio))
    (*facts)["layer.deviation_ratio_max"] = exact_text(*most);
  const std::optional<Bias> bias = statistics->bias.bias();
  if (!bias) return;
  (*facts)["layer.bias_ulp"] = exact_text(bias->ulp);
  if (bias->z) (*facts)["layer.bias_z"] = exact_text(*bias->z);
}

FlaggedSlice::Array array_of(const std::string& name, const StoredArray& from) {
  return {name, from.type, from.shape,
          from.bytes > 0 ? std::string(static_cast<const char*>(from.data), from.bytes) : ""};
}

StoredArray words_of(const uint32_t* words, uint32_t count) {
  return {"U32", {count}, words, uint64_t{count} * sizeof *words};
}

// Returns the bytes of an element. Types that are not named here are BF16 and F16.
uint64_t alignment_of(const std::string& type) {
  return type == "F64" ? 8 : type == "F32" || type == "U32" ? 4 : type == "BOOL" ? 1 : 2;
}

// Returns a flagged slice with its name, most metadata and the array of positions; the caller adds the rest.
FlaggedSlice begin_flagged_slice(FlagReason reason, const segment::Slot& slot, const LayerOfCall& layer,
                                 const RankStatistics& rank, const std::string& segment) {
  FlaggedSlice flagged;
  flagged.name = name_of_file(reason, slot, layer, rank, segment);
  flagged.reason = reason;
  flagged.metadata = facts_of_slot(slot);
  flagged.metadata["format"] = "foreshock slice";
  flagged.metadata["schema"] = slot.columns == 1 ? kSchemaOfColumns : kSchemaOfRows;
  flagged.metadata["reason"] = kFlagReasonNames[static_cast<int>(reason)];
  flagged.metadata["layer"] = layer.label;
  flagged.metadata["layer_name"] = layer.name;
  flagged.metadata["layer_source"] = layer.source;
  add_facts_of_rank(slot, rank, &flagged.metadata);
  flagged.arrays.push_back(array_of("position", words_of(slot.position, slot.rows)));
  return flagged;
}

}  // namespace

std::optional<FlagReason> flag_reason(const JudgedSlice& judged, const RankStatistics& rank) {
  const LayerContext context(judged.layer, judged.deviation.backward, rank);  // tensor 0: out, 1: dQ
  for (size_t n = 0; n < kFlagReasons; ++n)
    if (const auto reason = static_cast<FlagReason>(n); is_flagged(reason, judged, context)) return reason;
  return std::nullopt;
}

bool is_fit_as_control(const SliceDeviation& d) {
  return d.rows_compared > 0 && !is_above(d, ratio_limit(0, DType::kNone, 0));  // the narrowest limit
}

std::optional<FlagReason> flag_reason(const JudgedColumns& judged, const RankStatistics& rank) {
  const std::optional<FlagReason> of_key = flag_reason(judged, judged.deviation.grad_key, rank);
  return of_key ? of_key : flag_reason(judged, judged.deviation.grad_value, rank);
}

bool is_fit_as_control(const JudgedColumns& judged) {
  const ColumnDeviation& d = judged.deviation;
  return d.grad_key.rows_compared > 0 && d.grad_value.rows_compared > 0 &&
         !is_key_beyond(judged, d.grad_key, 1) && !is_key_beyond(judged, d.grad_value, 1);
}

uint64_t FlaggedSlice::bytes() const {
  uint64_t sum = 0;
  for (const Array& array : arrays) sum += array.bytes.size();
  return sum;
}

FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedColumns& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment) {
  FlaggedSlice flagged = begin_flagged_slice(reason, slot, layer, rank, segment);
  const SliceDeviation* dk_and_dv[] = {&judged.deviation.grad_key, &judged.deviation.grad_value};
  // The cause is the tensor that has the reason: dK if both tensors have it, and for a control.
  const bool is_dk = reason == FlagReason::kControl || flag_reason(judged, *dk_and_dv[0], rank) == reason;
  const SliceDeviation& cause = *dk_and_dv[is_dk ? 0 : 1];
  flagged.metadata["tensor"] = kJudgedTensorNames[static_cast<uint32_t>(cause.tensor)];
  flagged.metadata["first_head"] = std::to_string(slot.head[0]);
  add_figures_of_layer(static_cast<uint32_t>(cause.tensor), layer.label, rank, &flagged.metadata);
  for (const SliceDeviation* deviation : dk_and_dv)
    for (const Figure& figure : figures_of(*deviation))
      flagged.metadata[figure_key(deviation->tensor, figure)] = figure.text;
  std::vector<double> sums;  // arrays_of() stores the data of the array key_sums here
  for (const auto& [name, array] : arrays_of(judged.columns, judged.reference, &sums))
    flagged.arrays.push_back(array_of(name, array));
  return flagged;
}

FlaggedSlice flagged_slice(FlagReason reason, const segment::Slot& slot, const JudgedSlice& judged,
                           const LayerOfCall& layer, const RankStatistics& rank, const std::string& segment) {
  FlaggedSlice flagged = begin_flagged_slice(reason, slot, layer, rank, segment);
  add_figures_of_layer(slot.pass /* tensor 0: out, 1: dQ */, layer.label, rank, &flagged.metadata);
  for (const Figure& figure : figures_of(judged.deviation))
    flagged.metadata[figure_key(judged.deviation.tensor, figure)] = figure.text;
  for (const auto& [name, array] : arrays_of(judged.slice, judged.reference))
    flagged.arrays.push_back(array_of(name, array));
  flagged.arrays.push_back(array_of("head", words_of(slot.head, slot.rows)));
  return flagged;
}

namespace {

// Returns the bytes of the slice's file in the safetensors format: the length of the header, the header in
// JSON, padded with spaces to a multiple of 8 bytes, and the arrays.
std::string flagged_file(const FlaggedSlice& slice) {
  // Wider elements come first, so that arrays are aligned without gaps, which other readers reject.
  std::vector<const FlaggedSlice::Array*> order;
  for (const FlaggedSlice::Array& array : slice.arrays) order.push_back(&array);
  std::stable_sort(order.begin(), order.end(),
                   [](auto a, auto b) { return alignment_of(a->type) > alignment_of(b->type); });
  nlohmann::json header = {{"__metadata__", slice.metadata}};
  header["__metadata__"]["checksum"] = kNoChecksum;  // replaced below, once the file is complete
  uint64_t offset = 0;
  for (const FlaggedSlice::Array* array : order) {
    const uint64_t end = offset + array->bytes.size();
    header[array->name] = {{"dtype", array->type}, {"shape", array->shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text =
      header.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string file(sizeof length, '\0');
  file.reserve(sizeof length + length + offset);
  std::memcpy(file.data(), &length, sizeof length);
  file += text;
  const size_t header_end = file.size();
  for (const FlaggedSlice::Array* array : order) file += array->bytes;
  const size_t checksum = checksum_offset(file, header_end);
  return file.replace(checksum, kNoChecksum.size(), checksum_of(file, checksum));
}

struct Usage {
  uint64_t files = 0, bytes = 0;
};

// Counts the slices in a folder, finished or being written. Removes unfinished files older than
// kAbandonedSeconds, which a killed agent has left. Returns false with errno if the folder cannot be read.
bool read_usage(int folder, Usage* usage) {
  const int reopened = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // closed by closedir()
  DIR* list = reopened >= 0 ? fdopendir(reopened) : nullptr;
  if (list == nullptr) {
    if (reopened >= 0) close(reopened);
    return false;
  }
  while (const dirent* entry = readdir(list)) {
    const std::string_view name = entry->d_name;
    const bool is_unfinished = name.ends_with(std::string(kFlaggedSuffix) + kUnfinishedSuffix);
    struct stat status = {};
    if ((!is_unfinished && !name.ends_with(kFlaggedSuffix)) ||
        fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (is_unfinished && time(nullptr) - status.st_mtime > FlaggedFolder::kAbandonedSeconds &&
        unlinkat(folder, entry->d_name, 0) == 0)
      continue;
    ++usage->files;
    usage->bytes += static_cast<uint64_t>(status.st_size);
  }
  closedir(list);
  return true;
}

// Creates the folder if it is missing. Returns its descriptor, or -1 with errno.
int open_folder(const FilePlace& place) {
  const bool is_found = place.refusal().empty() && place.folder() >= 0;
  if (is_found && mkdirat(place.folder(), place.name().c_str(), 0700) != 0 && errno != EEXIST) return -1;
  return place.open(O_RDONLY | O_DIRECTORY);
}

}  // namespace

FlaggedFolder::Outcome FlaggedFolder::write(const std::string& name, const std::string& bytes,
                                            std::string* error) const {
  const FilePlace place(path_);
  const int folder = open_folder(place);
  Usage usage;
  Outcome outcome = Outcome::kFailed;
  if (folder >= 0 && read_usage(folder, &usage)) {
    const bool fits =
        usage.files < kMostFiles && usage.bytes <= most_bytes_ && bytes.size() <= most_bytes_ - usage.bytes;
    outcome = !fits                               ? Outcome::kFull
              : replace_file(folder, name, bytes) ? Outcome::kWritten
                                                  : Outcome::kFailed;
  }
  if (outcome == Outcome::kFailed)
    *error = place.refusal().empty() ? path_ + ": " + std::strerror(errno) : place.refusal();
  if (outcome == Outcome::kFull)
    *error = path_ + " holds " + std::to_string(usage.files) + " slices of " + std::to_string(usage.bytes) +
             " bytes; no more are kept there";
  if (folder >= 0) close(folder);
  return outcome;
}

// Owned by a FlaggedWriter and its thread together, since a thread whose disk hangs outlives the writer.
struct FlaggedWriter::Shared {
  explicit Shared(std::unique_ptr<const FlaggedFolder> destination) : folder(std::move(destination)) {}

  const std::unique_ptr<const FlaggedFolder> folder;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<FlaggedSlice> waiting;  // to be written, in this order
  uint64_t waiting_bytes = 0;
  bool is_writing = false, is_ending = false;
  FlaggedCounts counts;
  // Outcome of the previous write. If the next one has the same outcome, nothing is reported.
  FlaggedFolder::Outcome previous = FlaggedFolder::Outcome::kWritten;

  bool is_idle() const { return waiting.empty() && !is_writing; }
};

FlaggedWriter::FlaggedWriter(std::unique_ptr<const FlaggedFolder> folder)
    : shared_(std::make_shared<Shared>(std::move(folder))) {}

FlaggedWriter::~FlaggedWriter() {
  const bool is_done = wait(kMaxWaitAtEnd);  // false: the disk may hang, and then the thread does not end
  {
    const std::unique_lock lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (is_done) {
    thread_.join();
  } else {
    spdlog::error("--save-flagged: {} does not answer; slices that wait for it are lost", path());
    thread_.detach();
  }
}

void FlaggedWriter::offer(FlaggedSlice slice) {
  const uint64_t bytes = slice.bytes();
  const std::unique_lock lock(shared_->mutex);
  // A slice larger than kMostWaitingBytes is still accepted if the queue is empty.
  if (!shared_->waiting.empty() && shared_->waiting_bytes + bytes > kMostWaitingBytes) {
    ++shared_->counts.dropped[static_cast<size_t>(FlaggedDrop::kBusy)];
    return;
  }
  if (!thread_.joinable()) {
    sigset_t all, before;  // the new thread blocks all signals, so that the main thread receives them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread(work, shared_);
    } catch (const std::system_error&) {
      ++shared_->counts.dropped[static_cast<size_t>(FlaggedDrop::kError)];
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread_.joinable()) return;
  }
  shared_->waiting_bytes += bytes;
  shared_->waiting.push_back(std::move(slice));
  shared_->changed.notify_all();
}

void FlaggedWriter::drop(FlaggedDrop why) {
  const std::unique_lock lock(shared_->mutex);
  ++shared_->counts.dropped[static_cast<size_t>(why)];
}

bool FlaggedWriter::wait(milliseconds max_wait) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, max_wait, [&] { return shared_->is_idle(); });
}

FlaggedCounts FlaggedWriter::counts() const {
  const std::unique_lock lock(shared_->mutex);
  return shared_->counts;
}

const std::string& FlaggedWriter::path() const { return shared_->folder->path(); }

void FlaggedWriter::work(const std::shared_ptr<Shared>& shared) {
  using Outcome = FlaggedFolder::Outcome;
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return !shared->waiting.empty() || shared->is_ending; });
    if (shared->waiting.empty()) return;
    const FlaggedSlice slice = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    shared->waiting_bytes -= slice.bytes();
    shared->is_writing = true;
    lock.unlock();
    std::string error;
    const Outcome outcome = shared->folder->write(slice.name, flagged_file(slice), &error);
    lock.lock();
    if (outcome != shared->previous)
      shared->counts.problem =
          outcome == Outcome::kWritten ? shared->folder->path() + ": slices can be written again" : error;
    shared->previous = outcome;
    if (outcome == Outcome::kWritten) ++shared->counts.saved[static_cast<size_t>(slice.reason)];
    if (outcome == Outcome::kFull) ++shared->counts.dropped[static_cast<size_t>(FlaggedDrop::kQuota)];
    if (outcome == Outcome::kFailed) ++shared->counts.dropped[static_cast<size_t>(FlaggedDrop::kError)];
    shared->is_writing = false;
    shared->changed.notify_all();
  }
}

template <class Judged>
void FlaggedSlices::consider(const segment::Slot& slot, const Judged& judged, const LayerOfCall& layer,
                             const RankStatistics& rank, const std::string& segment) {
  // The key of a place: a rank, a layer and a kind of slice (pass + columns: 0 output, 1 dQ, 2 dK and dV).
  const std::string key = std::to_string(rank.identity.rank) + "\n" +
                          std::to_string(slot.pass + slot.columns) + "\n" + layer.label;
  const std::optional<FlagReason> reason = flag_reason(judged, rank);
  const auto found = places_.find(key);
  if (!reason) {
    // An ordinary slice is saved as a control, once, if a slice of the same place was flagged before.
    if (found == places_.end() || found->second.has_control || !is_fit_as_control(judged)) return;
    found->second.has_control = true;
    return writer_.offer(flagged_slice(FlagReason::kControl, slot, judged, layer, rank, segment));
  }
  if (found == places_.end() && places_.size() >= kMostPlaces) return writer_.drop(FlaggedDrop::kAlike);
  const uint64_t count = ++places_[key].flagged[static_cast<size_t>(*reason)];
  // For each place and reason, the 1st to 4th (kAlwaysSaved), 8th, 16th, ... flagged slices are saved.
  if (count > kAlwaysSaved && !std::has_single_bit(count)) return writer_.drop(FlaggedDrop::kAlike);
  writer_.offer(flagged_slice(*reason, slot, judged, layer, rank, segment));
}

template void FlaggedSlices::consider(const segment::Slot&, const JudgedSlice&, const LayerOfCall&,
                                      const RankStatistics&, const std::string&);
template void FlaggedSlices::consider(const segment::Slot&, const JudgedColumns&, const LayerOfCall&,
                                      const RankStatistics&, const std::string&);

}  // namespace foreshock
