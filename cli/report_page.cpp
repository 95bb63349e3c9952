#include "cli/report_page.h"

#include "exporters/record_line.h"

namespace foreshock::cli {
namespace {

// A source of a content security policy, which wants base64.
std::string source_of(std::string_view hexadecimal) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hexadecimal.size(); at += 2)
    bytes += static_cast<char>(std::stoi(std::string(hexadecimal.substr(at, 2)), nullptr, 16));
  return "'sha256-" + to_base64(bytes) + "'";
}

std::string policy() {
  return "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; script-src " +
         source_of(kReportChartHash) + " " + source_of(kReportJsHash) + "; style-src " +
         source_of(kReportCssHash);
}

// No character of it may close the element that it is in.
std::string inside_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

}  // namespace

std::string report_page(const std::string& json) {
  std::string page;
  const std::string data = inside_script(json), rules = policy();
  // What is put in is not searched for marks again.
  const std::pair<std::string_view, std::string_view> parts[] = {{"/*POLICY*/", rules},
                                                                 {"/*STYLE*/", kReportCss},
                                                                 {"/*DATA*/", data},
                                                                 {"/*CHART*/", kReportChart},
                                                                 {"/*SCRIPT*/", kReportJs}};
  size_t from = 0;
  for (const auto& [mark, text] : parts) {
    const size_t at = kReportHtml.find(mark, from);
    page.append(kReportHtml.substr(from, at - from)).append(text);
    from = at + mark.size();
  }
  return page.append(kReportHtml.substr(from));
}

}  // namespace foreshock::cli
