#include "cli/report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cli/report_json.h"
#include "cli/report_page.h"
#include "cli/say.h"
#include "cli/storyteller.h"
#include "cli/whole_file.h"

namespace foreshock::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "foreshock report RECORD.jsonl [RECORD.jsonl ...] [-o OUT.html] [--json]\n"
    "the story of a run as one page: each loss event, what moved before it and where, what that is "
    "consistent with\n\n"
    "  -o OUT.html         write it there, - for standard output; by default beside the first record, "
    "RECORD.html\n"
    "  --json              print the same as JSON instead\n\n"
    "Records of several nodes are told together. The page needs nothing from outside: attach it to the "
    "post-mortem.\n";

struct Request {
  std::vector<std::string> records;
  std::string out;
  bool wants_json = false;
};

bool is_report(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(1024, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin.find(kReportMark) != std::string::npos;
}

// Beside the record; nobody's file but a report is written over unasked.
std::string choose_place(Request* request) {
  std::error_code ignored;
  if (fs::exists(request->records[0], ignored) && fs::is_other(request->records[0], ignored))
    return request->records[0] + " is no file to put the page beside: choose a place with -o OUT.html";
  request->out = fs::path(request->records[0]).replace_extension(".html").string();
  if (fs::exists(request->out, ignored) && !is_report(request->out))
    return request->out + ": is there already and is no report; choose another with -o OUT.html";
  return "";
}

std::string parse(const std::vector<std::string>& words, Request* request) {
  for (size_t at = 0; at < words.size(); ++at) {
    if (words[at] == "-o") {
      if (++at == words.size() || words[at].empty()) return "give -o a file: -o OUT.html";
      request->out = words[at];
    } else if (words[at] == "--") {
      request->records.insert(request->records.end(), words.begin() + static_cast<ptrdiff_t>(at) + 1,
                              words.end());
      break;
    } else if (words[at] == "--json") {
      request->wants_json = true;
    } else if (words[at].starts_with("-")) {
      return "there is no option '" + words[at] + "': foreshock report --help";
    } else {
      request->records.push_back(words[at]);
    }
  }
  if (request->records.empty()) return "name a record: foreshock report RECORD.jsonl [-o OUT.html]";
  if (request->wants_json) return request->out.empty() ? "" : "choose one: --json prints, -o writes a page";
  std::error_code ignored;
  for (const std::string& record : request->records)
    if (!request->out.empty() && fs::equivalent(record, request->out, ignored))
      return "-o " + request->out + " is one of the records: name another file";
  if (request->out.empty())
    if (std::string problem = choose_place(request); !problem.empty()) return problem;
  return why_no_file(request->out);
}

// "" or one line that says what is wrong with the record; `*notes`: what a reader should know of it.
std::string read(const std::string& path, Storyteller* teller, std::vector<std::string>* notes) {
  std::string problem;
  const std::unique_ptr<RecordReader> reader = RecordReader::open(path, &problem);
  if (reader == nullptr) return problem;
  uint64_t taken = 0;
  while (const std::optional<RecordLine> line = reader->next()) {
    ++taken;
    if (problem = teller->take(*line); !problem.empty()) return path + ": " + problem;
  }
  const std::string name = fs::path(path).filename().string();
  if (taken == 0) return reader->why_nothing(path);
  if (reader->bad_lines() > 0)
    notes->push_back(std::to_string(reader->bad_lines()) + " lines of " + name + " could not be read (" +
                     reader->first_problem() + ").");
  if (reader->ends_torn())
    notes->push_back("The last line of " + name +
                     " was cut off when its writer ended: what came after is not told.");
  return "";
}

}  // namespace

int report(const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), "--help") != words.end() ||
      std::find(words.begin(), words.end(), "-h") != words.end())
    return std::fputs(kHelp, stdout), 0;
  Request request;
  if (const std::string problem = parse(words, &request); !problem.empty()) return wrong_use(problem);
  Storyteller teller;
  std::vector<std::string> notes;
  for (size_t n = 0; n < request.records.size(); ++n) {
    if (n > 0) teller.begin_record();
    if (const std::string problem = read(request.records[n], &teller, &notes); !problem.empty())
      return wrong_use(problem);
  }
  Story story = teller.finish();
  story.notes.insert(story.notes.begin(), notes.begin(), notes.end());
  const std::string json = report_json(story);
  if (request.wants_json) return std::puts(json.c_str()), 0;
  if (const std::string problem = write_whole_file(request.out, report_page(json)); !problem.empty())
    return say(problem), 1;
  say(story.verdict);
  say("page written to " + request.out);
  return 0;
}

}  // namespace foreshock::cli
