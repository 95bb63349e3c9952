#include "agent/watch_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>

#include "agent/record_lines.h"
#include "exporters/record_reader.h"

namespace foreshock {
namespace {

constexpr uint64_t kNoRecord = UINT64_MAX;

bool is_same(const EventLine& a, const EventLine& b) {
  return a.run == b.run && a.rank == b.rank && a.step == b.step && a.event == b.event && a.layer == b.layer &&
         a.detector == b.detector && a.level == b.level;
}

// Every event of the detectors stands behind the line that brought it about. Those that do not are returned.
std::deque<EventLine> replay(RecordReader& reader, Watches* watches, ToldLines* told) {
  std::deque<EventLine> missing;
  while (const std::optional<RecordLine> line = reader.next()) {
    if (const auto* event = std::get_if<EventLine>(&*line)) {
      const auto found = std::find_if(missing.begin(), missing.end(),
                                      [&](const EventLine& each) { return is_same(each, *event); });
      if (found != missing.end()) missing.erase(found);
    }
    std::visit(
        [&](const auto& each) {
          told->note(each);
          for (const EventLine& event : watches->observe(each)) missing.push_back(event);
        },
        *line);
  }
  return missing;
}

}  // namespace

void WatchState::restore(const Directory& directory, const std::string& run, const std::string& path,
                         RecordWriter* record, Watches* watches, ToldLines* told) {
  const auto status = directory.status_of(kFile);
  const auto size = status ? static_cast<size_t>(std::max<off_t>(status->st_size, 0)) : 0;
  const std::optional<std::string> bytes =
      size > 0 && size <= kMostBytes ? directory.read(kFile, size) : std::nullopt;
  uint64_t offset = kNoRecord;
  const bool restored = bytes && watches->restore(*bytes, &offset);
  if (size > 0 && !restored)
    spdlog::warn("{}: what its detectors had learned cannot be read; they begin anew", run);
  if (record == nullptr || record->size() == 0) return;
  if (!restored) {
    EventLine anew;
    anew.run = run;
    anew.time = seconds_since_1970();
    anew.event = kDetectorsBeginAnew;
    return record->write(anew);
  }
  std::string error;
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &error);
  if (reader == nullptr || offset == kNoRecord || !reader->seek(offset)) return;
  for (EventLine& event : replay(*reader, watches, told)) {
    event.time = seconds_since_1970();
    record->write(event);
  }
}

bool WatchState::save(const Directory& directory, const RecordWriter* record, const Watches& watches) {
  if (watches.lines() == saved_lines_) return true;
  if (!directory.write(kFile, watches.save(record != nullptr ? record->size() : kNoRecord))) return false;
  saved_lines_ = watches.lines();
  return true;
}

}  // namespace foreshock
