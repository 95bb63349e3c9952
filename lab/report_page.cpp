#include "lab/report_page.h"

#include "lab/build_info.h"

namespace foreshock::lab {
namespace {

void replace(std::string& page, const std::string& marker, const std::string& text) {
  for (size_t at = page.find(marker); at != std::string::npos; at = page.find(marker, at + text.size()))
    page.replace(at, marker.size(), text);
}

// JSON inside a script element: no character may close the element.
std::string inside_script(const std::string& json) {
  std::string text;
  for (char c : json) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const char* script, const std::string& json) {
  std::string page = kPageHtml;
  // Data last: whatever it holds is not searched for markers again.
  replace(page, "/*TITLE*/", title);
  replace(page, "/*STYLE*/", kPageStyle);
  replace(page, "/*SCRIPT*/", std::string(kPageScript) + script);
  replace(page, "/*CHART*/", kChartLibrary);
  const std::string marker = "/*DATA*/";
  page.replace(page.find(marker), marker.size(), inside_script(json));
  return page;
}

}  // namespace foreshock::lab
