// Implements foreshock report: reads records and writes the report as JSON, Markdown or an HTML page.
// ReportBuilder makes a Report from the lines of records; this file writes the Report in these three formats
// (the page contains the JSON). An episode is a period in which a detector's level was above quiet. A sign is
// an episode before a loss event. An attempt is a series of steps that ends when the run goes back to a
// checkpoint.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/condition_list.h"
#include "agent/detection.h"
#include "agent/publish.h"
#include "agent/text.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/report_builder.h"
#include "cli/report_text.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "detect/detector.h"
#include "exporters/record.h"

namespace foreshock::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostPoints = 160;    // points of a curve, besides its two ends
constexpr size_t kMostEpisodes = 600;  // further episodes are left out of the JSON
constexpr size_t kLongestText = 400;   // longest name or text that comes from a trainer, in bytes

// Rounds to six digits, which is more than a chart can show.
Json short_number(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *value);
  return std::strtod(text, nullptr);
}

std::string cut(const std::string& text) {
  return text.size() > kLongestText ? text.substr(0, kLongestText) + "..." : text;
}

Json name_or_null(const std::string& name) { return text_or_null(cut(name)); }

// Returns the indexes of the points to keep: both ends, and the smallest and the largest value of each of
// kMostPoints / 2 intervals of equally many points.
template <class Points, class Value>
std::vector<size_t> kept_indexes(const Points& points, const Value& value) {
  std::vector<size_t> indexes;
  if (!points.empty()) indexes.push_back(0);
  const size_t intervals = kMostPoints / 2;
  for (size_t interval = 0; interval < intervals; ++interval) {
    const size_t begin = interval * points.size() / intervals,
                 end = (interval + 1) * points.size() / intervals;
    if (begin == end) continue;
    size_t least = begin, largest = begin;
    for (size_t n = begin; n < end; ++n) {
      if (value(points[n]) < value(points[least])) least = n;
      if (value(points[n]) > value(points[largest])) largest = n;
    }
    for (const size_t n : {std::min(least, largest), std::max(least, largest)})
      if (n > indexes.back()) indexes.push_back(n);
  }
  if (!points.empty() && indexes.back() < points.size() - 1) indexes.push_back(points.size() - 1);
  return indexes;
}

Json points_json(const std::vector<SignalPoint>& points) {
  Json list = Json::array();
  for (const size_t n : kept_indexes(points, [](const SignalPoint& point) { return point.value; }))
    list.push_back({points[n].step, short_number(points[n].value)});
  return list;
}

// Returns the curve of one member of the steps, without the steps where it is unknown. A value that is not
// finite becomes null, which the page draws as a gap.
Json curve_json(const std::vector<TrailStep>& steps, std::optional<double> TrailStep::*member) {
  std::vector<SignalPoint> points;
  for (const TrailStep& step : steps)
    if (step.*member) points.push_back({step.step, *(step.*member), /*score=*/0});
  const bool finite = std::all_of(points.begin(), points.end(),
                                  [](const SignalPoint& each) { return std::isfinite(each.value); });
  if (finite) return points_json(points);
  // All points: kept_indexes() needs finite values. An event has at most kBefore + 1 + kAfter = 353 steps.
  Json list = Json::array();
  for (const SignalPoint& point : points) list.push_back({point.step, short_number(point.value)});
  return list;
}

const char* name_of(ReportFact::Mark mark) {
  return mark == ReportFact::Mark::kQuiet     ? "quiet"
         : mark == ReportFact::Mark::kNotable ? "notable"
                                              : "unknown";
}

Json facts_json(const std::vector<ReportFact>& facts) {
  Json list = Json::array();
  for (const ReportFact& fact : facts)
    list.push_back({{"name", fact.name}, {"text", cut(fact.text)}, {"mark", name_of(fact.mark)}});
  return list;
}

// Returns how many steps before `since_step` the sign may have started without being seen: the steps since
// the detector's previous value; -1 without one. But a detector may react only after several values. So if
// one of the last kMostValues values before `since_step` is followed by a gap of more than kLongUnseen steps,
// the result is the number of steps since the start of the latest such gap.
int64_t unseen_before(const ReportSign& sign) {
  constexpr int kMostValues = 4;
  int64_t next = sign.since_step, unseen = -1;
  int values = 0;
  for (auto point = sign.points.rbegin(); point != sign.points.rend() && values < kMostValues; ++point) {
    if (point->step >= sign.since_step) continue;
    const bool is_long = next - point->step - 1 > ReportSign::kLongUnseen;
    if (values == 0 || is_long) unseen = sign.since_step - point->step - 1;  // up to the start of this gap
    if (is_long) break;
    next = point->step;
    ++values;
  }
  return unseen;
}

// A missing step is -1, and null in the JSON.
Json sign_json(const ReportSign& sign, const ReportEvent& event) {
  const auto lead = [&](int64_t step) {  // steps before the onset of the event
    return step < 0 ? Json(nullptr) : Json(steps_between(step, event.onset_step));
  };
  const DetectorInfo& info = info_of(sign.detector);
  return {{"detector", info.name},
          {"plain", text_of(sign.detector).plain},
          {"layer", name_or_null(sign.layer)},
          {"rank", sign.rank},
          {"level", foreshock::name_of(sign.most)},
          {"since_step", sign.since_step},
          {"lead_steps", lead(sign.since_step)},
          {"unseen_steps", count_or_null(unseen_before(sign))},
          {"warn_step", count_or_null(sign.warn_step)},
          {"warn_lead_steps", lead(sign.warn_step)},
          {"end_step", count_or_null(sign.end_step)},
          {"sure", how_sure(measured_of(info.name))},  // what the benchmark measured of this detector
          {"points", points_json(sign.points)}};
}

Json event_json(const ReportEvent& event, size_t number) {
  Json before = Json::array();
  for (const ReportSign& sign : event.signs) before.push_back(sign_json(sign, event));
  return {{"number", number},
          {"event", foreshock::name_of(event.kind)},
          {"step", event.onset_step},
          {"declared_step", event.declared_step},
          {"attempt", event.attempt},
          {"ranks", event.ranks},
          {"title", event.title},
          {"text", event.text},
          {"first_sign", first_sign_of(event)},
          {"detailed", !event.steps.empty()},
          {"before", before},
          {"loss", curve_json(event.steps, &TrailStep::loss)},
          {"gradient_norm", curve_json(event.steps, &TrailStep::gradient_norm)},
          {"learning_rate", curve_json(event.steps, &TrailStep::learning_rate)},
          {"facts", facts_json(event.facts)},
          {"consistent_with", event.consistent_with},
          {"not_excluded", event.not_excluded},
          {"to_try", event.to_try}};
}

Json detector_json(const ReportDetector& totals) {
  const DetectorInfo& info = info_of(totals.detector);
  return {{"detector", info.name},
          {"plain", text_of(totals.detector).plain},
          {"values", totals.values},
          {"layers", totals.layers},
          {"watches", totals.watches},
          {"warnings", totals.warnings},
          {"last_warn_step", count_or_null(totals.last_warn_step)},
          {"sure", how_sure(measured_of(info.name))},
          {"why_not", totals.values == 0 ? Json(why_without_values(totals.detector)) : Json(nullptr)}};
}

Json episode_json(const RankEpisode& each) {
  return {{"detector", info_of(each.detector).name},    {"experimental", !is_proven(each.detector)},
          {"layer", name_or_null(each.layer)},          {"rank", each.rank},
          {"level", foreshock::name_of(each.most)},     {"since_step", each.since_step},
          {"warn_step", count_or_null(each.warn_step)}, {"end_step", count_or_null(each.end_step)}};
}

// Returns the columns of the table, by name. Value n covers the steps_per_point steps that begin with
// first_step + n * steps_per_point.
Json table_json(const HistoryTable& table) {
  Json json = {{"first_step", table.first_step}, {"steps_per_point", table.steps_per_point}};
  for (const auto& [name, values] : table.columns) {
    Json& list = json[std::string(name)] = Json::array();
    for (const float value : values) list.push_back(short_number(static_cast<double>(value)));
  }
  return json;
}

Json timeline_json(const Report& report) {
  Json timeline = table_json(report.timeline);
  timeline["rank"] = report.timeline.rank;
  timeline["last_step"] = report.timeline_last_step;
  return timeline;
}

Json attention_json(const Report& report) {
  Json json = table_json(report.attention), layers = Json::array();
  for (const HistoryTable& table : report.attention_layers) {
    layers.push_back(table_json(table));
    layers.back()["layer"] = name_or_null(table.layer);
  }
  json["text"] = report.attention_text;
  json["layers"] = layers;
  return json;
}

// Returns the expression by which a content security policy allows a script or style with this SHA-256.
std::string source_of(std::string_view hexadecimal) {
  std::string bytes;
  for (size_t digit = 0; digit + 1 < hexadecimal.size(); digit += 2)
    bytes += static_cast<char>(std::stoi(std::string(hexadecimal.substr(digit, 2)), nullptr, 16));
  return "'sha256-" + to_base64(bytes) + "'";
}

// The page's content security policy: only its two scripts (Chart.js and kReportJs) and its style, nothing
// from a network.
std::string policy() {
  return "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; script-src " +
         source_of(kReportChartHash) + " " + source_of(kReportJsHash) + "; style-src " +
         source_of(kReportCssHash);
}

// Escapes '<', so that text in the JSON cannot close the script element that contains the JSON.
std::string escape_for_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

// Limits of the Markdown: loss events, signs of each event, lines of each list. More signs are not mentioned.
constexpr size_t kMostShownFindings = 6, kMostShownEvents = 3, kMostSigns = 5, kMostLines = 6;

void append_lines(std::string* text, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  if (!title.empty()) *text += title + "\n";
  for (size_t n = 0; n < std::min(lines.size(), kMostLines); ++n) *text += "- " + lines[n] + "\n";
  if (lines.size() > kMostLines) *text += "- " + std::to_string(lines.size() - kMostLines) + " more\n";
}

std::vector<std::string> lines_of(const std::vector<ReportFact>& facts, ReportFact::Mark mark) {
  std::vector<std::string> lines;
  for (const ReportFact& fact : facts)
    if (fact.mark == mark) lines.push_back(fact.name + ": " + fact.text);
  return lines;
}

std::string line_of(const ReportSign& sign, int64_t onset) {
  std::string text = std::string(info_of(sign.detector).name) + " (" + text_of(sign.detector).plain + ")";
  if (!sign.layer.empty()) text += ", layer " + sign.layer;
  text += ", rank " + std::to_string(sign.rank) + ": " + name_of(sign.most) + " from step " +
          std::to_string(sign.since_step) + ", " + steps_text(steps_between(sign.since_step, onset)) +
          " before";
  if (!sign.points.empty()) text += ", last value " + formatted("%.4g", sign.points.back().value);
  return text + (is_proven(sign.detector) ? "" : " (experimental detector)");
}

std::string markdown_of(const ReportEvent& event, size_t number) {
  std::string text = "\n## " + std::to_string(number) + ". " + event.title + "\n\n" + event.text + "\n\n";
  std::vector<std::string> signs;
  for (size_t n = 0; n < std::min(event.signs.size(), kMostSigns); ++n)
    signs.push_back(line_of(event.signs[n], event.onset_step));
  append_lines(&text, "Before it:", signs);
  if (signs.empty()) text += "No detector warned before it.\n";
  append_lines(&text, "Notable:", lines_of(event.facts, ReportFact::Mark::kNotable));
  append_lines(&text, "Consistent with:", event.consistent_with);
  append_lines(&text, "Not excluded:", event.not_excluded);
  append_lines(&text, "What to try:", event.to_try);
  return text;
}

namespace fs = std::filesystem;

constexpr WordOption kReportOptions[] = {
    {"-o", "OUT.html", "write the page there, - for standard output [RECORD.html beside the first record]"},
    {"--json", nullptr, "print the report as JSON instead"},
    {"--markdown", nullptr,
     "print the report as text of at most two screens, for a pull request, a chat or a coding agent"},
};

constexpr WordsHelp kHelp = {"report RECORD.jsonl [RECORD.jsonl ...] [-o OUT.html] [--json|--markdown]",
                             "write the post-mortem page of a run: each loss event and what moved before it",
                             kReportOptions,
                             "Example: foreshock report run.jsonl\n\n"
                             "Records of several nodes are combined. The page is one file without outside "
                             "resources."};

struct Request {
  std::vector<std::string> records;  // paths
  std::string out;                   // path of the page; "-": standard output; "": no page
  bool wants_json = false, wants_markdown = false;
};

// Whether the file is an HTML page that `foreshock report` has written.
bool is_report(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(1024, '\0');  // every page has kReportMark in its first 1024 bytes
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin.find(kReportMark) != std::string::npos;
}

// Sets request->out to RECORD.html beside the first record. Returns "" or an error. Since the user has not
// named that file, it is only overwritten if it is a report.
std::string choose_page(Request* request) {
  std::error_code ignored;
  // is_other(): for example a pipe, as in `foreshock report <(zcat run.jsonl.gz)`.
  if (fs::exists(request->records[0], ignored) && fs::is_other(request->records[0], ignored))
    return request->records[0] + " is not a file; name the page with -o OUT.html";
  request->out = fs::path(request->records[0]).replace_extension(".html").string();
  if (fs::exists(request->out, ignored) && !is_report(request->out))
    return request->out + " exists and is not a report; name another with -o OUT.html";
  return "";
}

// Fills and checks the request. Returns "" or an error.
std::string fill_request(const Words& words, Request* request) {
  request->records = words.files();
  request->out = words.value("-o");
  request->wants_json = words.has("--json");
  request->wants_markdown = words.has("--markdown");
  if (request->records.empty()) return "name a record: foreshock report RECORD.jsonl [-o OUT.html]";
  if (request->wants_json && request->wants_markdown) return "choose one of --json and --markdown";
  if (request->wants_json || request->wants_markdown)
    return request->out.empty() ? "" : "choose one: --json and --markdown print, -o writes a page";
  std::error_code ignored;
  for (const std::string& record : request->records)
    if (!request->out.empty() && fs::equivalent(record, request->out, ignored))
      return "-o " + request->out + " is one of the records: name another file";
  if (request->out.empty())
    if (std::string problem = choose_page(request); !problem.empty()) return problem;
  return why_no_file(request->out);
}

// Passes the lines of a record to the builder. Returns "" or one line that says why there can be no report.
// Appends defects of the record that do not prevent a report to `*notes`.
std::string add_record(const std::string& path, ReportBuilder* builder, std::vector<std::string>* notes) {
  std::string problem;
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &problem);
  if (reader == nullptr) return problem;
  uint64_t lines = 0;
  while (const std::optional<RecordLine> line = reader->next()) {
    ++lines;
    if (problem = builder->take(*line); !problem.empty()) return path + ": " + problem;
  }
  const std::string name = fs::path(path).filename().string();
  if (lines == 0) return reader->no_valid_line_error(path);
  if (reader->bad_lines() > 0)
    notes->push_back(std::to_string(reader->bad_lines()) + " lines of " + name + " could not be read (" +
                     reader->first_problem() + ").");
  if (reader->ends_torn())
    notes->push_back("The last line of " + name +
                     " was truncated when its writer ended; what came after is missing.");
  return "";
}

Json findings_json(const std::vector<FindingLine>& findings) {
  Json list = Json::array();
  for (const FindingLine& line : findings) {
    const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
    list.push_back({{"finding", line.finding},
                    {"headline", line.headline},
                    {"text", line.text},
                    {"action", line.action},
                    {"layer", name_or_null(line.layer)},
                    {"tensor", name_or_null(line.tensor)},
                    {"rank", or_null(line.rank)},
                    {"since_step", or_null(line.since_step)},
                    {"last_step", or_null(line.last_step)},
                    {"largest", short_number(line.largest)},
                    {"unit", name_or_null(line.unit)},
                    {"relative_error", short_number(line.relative_error)}});
  }
  return list;
}

}  // namespace

std::string report_json(const Report& report) {
  Json episodes = Json::array(), events = Json::array(), detectors = Json::array(), notes = report.notes;
  for (const RankEpisode& each : report.episodes)
    if (episodes.size() < kMostEpisodes) episodes.push_back(episode_json(each));
  for (const ReportEvent& each : report.events) events.push_back(event_json(each, events.size() + 1));
  for (const ReportDetector& each : report.detectors) detectors.push_back(detector_json(each));
  const Json document = {{"schema", 1},
                         {"run", name_or_null(report.run)},
                         {"version", name_or_null(report.version)},
                         {"headline", cut(report.headline)},
                         {"verdict", report.verdict},
                         {"verdict_from", report.agent_verdicts.empty() ? "report" : "agent"},
                         {"healthy", report.is_healthy},
                         {"findings", findings_json(report.findings)},
                         {"conditions", conditions_json(report.conditions)},
                         {"facts", facts_json(report.facts)},
                         {"events_from", report.from_record ? "record" : "detectors"},
                         {"events_note", report.events_note},
                         {"timeline", timeline_json(report)},
                         {"attention", attention_json(report)},
                         {"episodes", episodes},
                         {"loss_events", events},
                         {"detectors", detectors},
                         {"coverage", facts_json(report.coverage)},
                         {"notes", notes},
                         {"limits", report.limits}};
  return printable_json(document.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string report_page(const std::string& json) {
  std::string page;
  const std::string data = escape_for_script(json), rules = policy();
  // In the order of the placeholders in page.html. Each placeholder is searched for in kReportHtml behind the
  // previous one, and not in the inserted parts: their text from a trainer may look like a placeholder.
  const std::pair<std::string_view, std::string_view> parts[] = {{"/*POLICY*/", rules},
                                                                 {"/*STYLE*/", kReportCss},
                                                                 {"/*DATA*/", data},
                                                                 {"/*CHART*/", kReportChart},
                                                                 {"/*SCRIPT*/", kReportJs}};
  size_t copied = 0;  // bytes of kReportHtml that were copied or replaced
  for (const auto& [placeholder, text] : parts) {
    const size_t position = kReportHtml.find(placeholder, copied);
    page.append(kReportHtml.substr(copied, position - copied)).append(text);
    copied = position + placeholder.size();
  }
  return page.append(kReportHtml.substr(copied));
}

std::string report_markdown(const Report& report, const std::vector<std::string>& records) {
  std::string text = "# " + report.headline + "\n\n" + report.verdict + "\n\n";
  std::vector<std::string> facts;
  for (const ReportFact& fact : report.facts) facts.push_back(fact.name + ": " + fact.text);
  append_lines(&text, "", facts);
  std::vector<std::string> findings;
  for (const FindingLine& line : report.findings)
    if (findings.size() < kMostShownFindings) findings.push_back(line.headline + ": " + line.text);
  if (findings.size() > 1) append_lines(&text, "Findings:", findings);
  std::vector<std::string> looks;
  for (const Condition& each : report.conditions)
    if (!is_fault(each)) looks.push_back(text_of(each));
  append_lines(&text, "Worth a look:", looks);
  for (size_t n = 0; n < std::min(report.events.size(), kMostShownEvents); ++n)
    text += markdown_of(report.events[n], n + 1);
  if (report.events.size() > kMostShownEvents)
    text += "\n" + std::to_string(report.events.size() - kMostShownEvents) +
            " further loss events are on the page.\n";
  text += "\n## Not judged\n\n";
  append_lines(&text, "", lines_of(report.coverage, ReportFact::Mark::kUnknown));
  append_lines(&text, "", report.notes);
  append_lines(&text, "Limits:", report.limits);
  std::string names;
  for (const std::string& record : records) names += " " + record;
  text +=
      "\n## Look further\n\n    foreshock report" + names + "\n    foreshock report --json" + names + "\n";
  if (records.size() == 1) text += "    foreshock detect" + names + "\n";
  std::string printed;  // each line is made printable on its own, since printable() replaces newlines
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) printed += printable(line) + "\n";
  return printed;
}

int report(const std::vector<std::string>& words) {
  Words parsed_words;
  if (const std::string problem = parsed_words.parse(words, "report", kReportOptions); !problem.empty())
    return wrong_use(problem);
  if (parsed_words.wants_help()) return print_help(kHelp), 0;
  Request request;
  if (const std::string problem = fill_request(parsed_words, &request); !problem.empty())
    return wrong_use(problem);
  ReportBuilder builder;
  std::vector<std::string> notes;
  for (size_t n = 0; n < request.records.size(); ++n) {
    if (n > 0) builder.begin_record();
    if (const std::string problem = add_record(request.records[n], &builder, &notes); !problem.empty())
      return wrong_use(problem);
  }
  Report report = builder.finish();
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  if (request.wants_markdown) return std::fputs(report_markdown(report, request.records).c_str(), stdout), 0;
  const std::string json = report_json(report);
  if (request.wants_json) return std::puts(json.c_str()), 0;
  if (const std::string problem = write_whole_file(request.out, report_page(json)); !problem.empty())
    return say(problem), 1;
  say(report.verdict);
  if (request.out != "-") say("page written to " + request.out);
  return 0;
}

}  // namespace foreshock::cli
