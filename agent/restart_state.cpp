// Saves two files in a run's directory and reads them again, so that a new agent continues the run of a
// killed one. RankFacts: past alarms, events, counts of non-finite slices. WatchState: the detectors.
#include "agent/restart_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>

#include "agent/publish.h"
#include "agent/record_lines.h"
#include "exporters/record_reader.h"
#include "segment/layout.h"

namespace foreshock {
namespace {

using nlohmann::json;

// Any process of the trainer's user can write the file of RankFacts. Each entry is checked, and malformed
// entries are ignored. Texts must be shorter than kNameLimit bytes.
constexpr size_t kNameLimit = 64;

// Returns "" if the text is missing or null, and nullopt if it is malformed or too long.
std::optional<std::string> text_in(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || found->is_null()) return "";
  if (!found->is_string() || found->get_ref<const std::string&>().size() >= kNameLimit) return std::nullopt;
  return found->get<std::string>();
}

std::optional<int64_t> integer_in(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}
std::optional<double> number_in(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// Returns the index of an alarm's tensor in kJudgedTensorNames (out, grad_query, ...), or nullopt if invalid.
std::optional<uint32_t> tensor_in(const json& from) {
  const std::optional<std::string> name = text_in(from, "tensor"), pass = text_in(from, "pass");
  for (uint32_t tensor = 0; tensor < kJudgedTensors; ++tensor)
    if (name == kJudgedTensorNames[tensor]) return tensor;
  if (name && !name->empty()) return std::nullopt;
  // Older agents checked only out (forward, index 0) and grad_query (backward, 1), and wrote only the pass.
  for (uint32_t tensor = 0; tensor < segment::kPasses; ++tensor)
    if (pass == segment::kPassNames[tensor]) return tensor;
  return std::nullopt;
}

const json& list_in(const json& from, const char* name) {
  static const json kEmpty = json::array();
  const auto found = from.find(name);
  return found != from.end() && found->is_array() ? *found : kEmpty;
}

// Restores what past_alarms_json() wrote. "of": the kind of alarm. "most": its value furthest from 0, if any.
void restore_alarm(const json& alarm, RankStatistics* rank) {
  if (!alarm.is_object()) return;
  const auto label = text_in(alarm, "layer"), kind = text_in(alarm, "of");
  const std::optional<uint32_t> tensor = tensor_in(alarm);
  const auto first = integer_in(alarm, "first_step"), last = integer_in(alarm, "last_step");
  const auto* const known =
      std::find(std::begin(kAlarmKindNames), std::end(kAlarmKindNames), kind.value_or(""));
  if (!label || known == std::end(kAlarmKindNames) || !tensor || !first || !last) return;
  LayerStatistics* layer = label->empty() ? &rank->unnamed : rank->layer_of(*label);
  if (layer == nullptr) return;
  layer->label = *label;
  const int64_t slices = std::max<int64_t>(integer_in(alarm, "slices").value_or(1), 1);
  statistics_of(*tensor, layer).past[static_cast<AlarmKind>(known - std::begin(kAlarmKindNames))] = {
      *first,
      *last,
      number_in(alarm, "most"),
      number_in(alarm, "relative_error"),
      static_cast<uint64_t>(slices),
      integer_in(alarm, "sound_step").value_or(-1)};
}

void restore_event(const json& event, RankStatistics* rank) {
  if (!event.is_object() || rank->events.size() >= kMostEvents) return;
  const auto what = text_in(event, "event"), layer = text_in(event, "layer");
  const auto first = integer_in(event, "first_step"), last = integer_in(event, "last_step"),
             count = integer_in(event, "count");
  if (!what || what->empty() || !layer || !first || !last || !count || *count < 1) return;
  rank->events.push_back(
      {*what, *layer, *first, *last, static_cast<uint64_t>(*count), number_in(event, "value")});
}

// Whether a rank has an alarm or event to save. If no rank ever had one, the file is not written.
bool has_entries(const json& facts) { return !facts["past_alarms"].empty() || !facts["events"].empty(); }

json facts_of(const RankStatistics& rank) {
  json facts = {{"past_alarms", past_alarms_json(rank)}, {"events", events_json(rank)}};
  for (uint32_t pass = 0; pass < segment::kPasses; ++pass)
    facts["nonfinite_slices"].push_back(rank.pass[pass].nonfinite);
  return facts;
}

constexpr uint64_t kNoRecord = UINT64_MAX;  // stands for the record's size if the run has no record

// Whether two events are equal in everything but time, value, score and detail.
bool is_same(const EventLine& a, const EventLine& b) {
  return a.run == b.run && a.rank == b.rank && a.step == b.step && a.event == b.event && a.layer == b.layer &&
         a.detector == b.detector && a.level == b.level;
}

// Passes the remaining lines of `reader` to the detectors, and adds these lines to `already_written`.
// Returns the events that the detectors find and the record lacks. Agents write an event after the line that
// caused it, so an event is missing if the earlier agent was killed between the two writes.
std::deque<EventLine> replay(RecordReader& reader, Watches* watches, WrittenLines* already_written) {
  std::deque<EventLine> missing;
  while (const std::optional<RecordLine> line = reader.next()) {
    if (const auto* event = std::get_if<EventLine>(&*line)) {
      const auto found = std::find_if(missing.begin(), missing.end(),
                                      [&](const EventLine& each) { return is_same(each, *event); });
      if (found != missing.end()) missing.erase(found);
    }
    std::visit(
        [&](const auto& each) {
          already_written->note(each);
          for (const EventLine& event : watches->observe(each)) missing.push_back(event);
        },
        *line);
  }
  return missing;
}

}  // namespace

json past_alarms_json(const RankStatistics& rank) {
  json alarms = json::array();
  rank.each_tensor([&](const LayerStatistics& layer, uint32_t tensor, const PassStatistics& statistics) {
    for (const auto& [kind, past] : statistics.past)
      alarms.push_back({{"layer", text_or_null(layer.label)},
                        {"pass", segment::kPassNames[pass_of(tensor)]},
                        {"tensor", kJudgedTensorNames[tensor]},
                        {"of", name_of(kind)},
                        {"first_step", past.first_step},
                        {"last_step", past.last_step},
                        {"most", number_or_null(past.most)},
                        {"relative_error", number_or_null(past.relative_error)},
                        {"slices", past.slices},
                        {"sound_step", count_or_null(past.sound_step)}});
  });
  return alarms;
}

json events_json(const RankStatistics& rank) {
  json events = json::array();
  for (const RankEvent& event : rank.events)
    events.push_back({{"event", event.what},
                      {"layer", text_or_null(event.layer)},
                      {"first_step", event.first_step},
                      {"last_step", event.last_step},
                      {"count", event.count},
                      {"value", number_or_null(event.value)}});
  return events;
}

void RankFacts::restore(const Directory& directory) {
  const std::optional<std::string> text = directory.read(kFile, kMostBytes);
  json found = json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (found.is_object()) known_ = std::move(found);
}

void RankFacts::restore_rank(const std::string& segment, RankStatistics* rank) const {
  const auto found = known_.find(segment);
  if (found == known_.end() || !found->is_object()) return;
  for (const json& alarm : list_in(*found, "past_alarms")) restore_alarm(alarm, rank);
  for (const json& event : list_in(*found, "events")) restore_event(event, rank);
  const json& slices = list_in(*found, "nonfinite_slices");
  for (size_t pass = 0; pass < std::min<size_t>(slices.size(), segment::kPasses); ++pass)
    if (slices[pass].is_number_unsigned()) rank->pass[pass].nonfinite = slices[pass];
}

void RankFacts::note(const std::string& segment, const RankStatistics& rank) {
  json facts = facts_of(rank);
  const auto known = known_.find(segment);
  const bool is_known = known != known_.end();
  if (is_known && *known == facts) return;
  if (!is_known && !has_entries(facts)) return;
  known_[segment] = std::move(facts);
  has_unsaved_changes_ = true;
}

void RankFacts::forget(const std::string& segment) {
  if (known_.erase(segment) > 0) has_unsaved_changes_ = true;
}

bool RankFacts::save(const Directory& directory) {
  if (!has_unsaved_changes_) return true;
  has_unsaved_changes_ = !directory.write(kFile, text_of(known_, -1));  // -1: in one line
  return !has_unsaved_changes_;
}

// Restores the saved detectors, and passes them the lines that were written to the record after the save.
void WatchState::restore(const Directory& directory, const std::string& run, const std::string& path,
                         RecordWriter* record, Watches* watches, WrittenLines* already_written) {
  const auto status = directory.status_of(kFile);
  const auto size = status ? static_cast<size_t>(std::max<off_t>(status->st_size, 0)) : 0;
  const std::optional<std::string> bytes =
      size > 0 && size <= kMostBytes ? directory.read(kFile, size) : std::nullopt;
  uint64_t offset = kNoRecord;  // the record's size at the save; the state covers the lines before `offset`
  const bool restored = bytes && watches->restore(*bytes, &offset);
  if (size > 0 && !restored)
    spdlog::warn("{}: the state of its detectors cannot be read; they learn again", run);
  if (record == nullptr || record->size() == 0) return;
  if (!restored) {  // `foreshock detect`, which replays a record, resets its detectors at this event too
    EventLine reset_event;
    reset_event.run = run;
    reset_event.time = seconds_since_1970();
    reset_event.event = kDetectorsBeginAnew;
    return record->write(reset_event);
  }
  std::string error;  // unused: if the record cannot be read, its last lines are not replayed
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &error, /*with_older_part=*/false);
  if (reader == nullptr || offset == kNoRecord || !reader->seek(offset)) return;
  for (EventLine& event : replay(*reader, watches, already_written)) {
    event.time = seconds_since_1970();
    record->write(event);
  }
}

bool WatchState::save(const Directory& directory, const RecordWriter* record, const Watches& watches,
                      bool is_last) {
  const Clock::time_point now = Clock::now();
  if (watches.lines() == saved_lines_ || (now < next_save_ && !is_last)) return true;
  const std::string bytes = watches.save(record != nullptr ? record->size() : kNoRecord);
  // The next save waits until the mean rate is at most kBytesPerSecond. A wait of 0.25 s or less is left out.
  const double wait_seconds = static_cast<double>(bytes.size()) / kBytesPerSecond;
  if (wait_seconds > 0.25)
    next_save_ =
        now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_seconds));
  if (!directory.write(kFile, bytes)) return false;
  saved_lines_ = watches.lines();
  return true;
}

}  // namespace foreshock
