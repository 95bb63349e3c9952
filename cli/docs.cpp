// foreshock docs: the pages of docs/ that come from tables, so that they cannot say anything else.
#include <cstdio>

#include "cli/commands.h"
#include "cli/say.h"
#include "exporters/catalog.h"
#include "exporters/record.h"

namespace foreshock::cli {

int docs(const std::vector<std::string>& words) {
  const std::string page = words.size() == 1 ? words[0] : "";
  std::string text;
  if (page == "options") text = options_markdown();
  if (page == "metrics") text = metrics_markdown();
  if (page == "record") text = record_markdown();
  if (text.empty()) return wrong_use("say which page: foreshock docs metrics|options|record");
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace foreshock::cli
