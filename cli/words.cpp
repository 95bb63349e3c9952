// Parses command lines of options and files (words.h), suggests similar words, and formats --help.
#include "cli/words.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "cli/terminal.h"

namespace foreshock::cli {
namespace {

// Returns the Damerau-Levenshtein distance: the least number of insertions, deletions, replacements and swaps
// of neighbours that turn a into b. distance[i][j] is that of the first i letters of a and the first j of b.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      const size_t changed = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 64;  // a longer word was not typed by hand
  if (word.size() > kLongestWord) return "";
  const std::string* best = nullptr;
  // A similar word differs by at most 2 edits, and by at most one for every three letters of `word`.
  size_t limit = 1 + std::min<size_t>(2, word.size() / 3);  // the next `best` must have a smaller distance
  for (const std::string& each : known) {
    const size_t distance = edit_distance(word, each);
    if (distance < limit) {
      limit = distance;
      best = &each;
    }
  }
  return best == nullptr ? "" : ", did you mean " + *best + "?";
}

std::string wrapped(const std::string& text, size_t indent, size_t columns) {
  const size_t width = columns > indent + 20 ? columns - indent : 20;
  std::string result, line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  return result + line;
}

std::string Words::parse(const std::vector<std::string>& words, const std::string& command,
                         std::span<const WordOption> options) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--help" || word == "-h") {
      wants_help_ = true;
      return "";
    }
    if (word == "--") {
      files_.insert(files_.end(), words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-') {  // "-" alone is a file
      files_.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const WordOption& each) { return flag == each.flag; });
    if (option == options.end()) {
      std::vector<std::string> flags;
      for (const WordOption& each : options) flags.emplace_back(each.flag);
      return "unknown option '" + flag + "'" + did_you_mean(flag, flags) + "; see foreshock " + command +
             " --help";
    }
    Given given = {flag, {}};
    if (option->value_name == nullptr) {
      if (equals != word.npos) return flag + " takes no value";
    } else {
      if (equals != word.npos) given.values.push_back(word.substr(equals + 1));
      while (given.values.size() < option->value_count && i + 1 < words.size()) {
        ++i;
        given.values.push_back(words[i]);
      }
      const bool is_empty = std::any_of(given.values.begin(), given.values.end(),
                                        [](const std::string& value) { return value.empty(); });
      if (given.values.size() < option->value_count || is_empty)
        return "give " + flag + " a value: " + flag + " " + option->value_name;
    }
    given_.push_back(std::move(given));
  }
  return "";
}

const Words::Given* Words::find(std::string_view flag) const {
  const auto last =
      std::find_if(given_.rbegin(), given_.rend(), [&](const Given& given) { return given.flag == flag; });
  return last == given_.rend() ? nullptr : &*last;
}

std::string Words::value(std::string_view flag) const {
  const Given* given = find(flag);
  return given == nullptr || given->values.empty() ? "" : given->values[0];
}

std::string words_help(std::span<const WordOption> options, size_t columns) {
  constexpr size_t kIndent = 24;  // column at which the help texts begin
  std::string text;
  for (const WordOption& option : options) {
    std::string left = "  ";
    left += option.flag;
    if (option.value_name != nullptr) {
      left += ' ';
      left += option.value_name;
    }
    if (left.size() + 2 > kIndent) {  // 2: blanks between the columns
      text += left + "\n";
      left.clear();
    }
    left.resize(kIndent, ' ');
    text += left + wrapped(option.help, kIndent, columns) + "\n";
  }
  return text;
}

void print_help(const WordsHelp& help) {
  const size_t columns = terminal_columns(80);  // 80 if the output is not a terminal
  std::string text;
  std::string_view usage = help.usage;
  while (!usage.empty()) {
    const std::string_view line = usage.substr(0, usage.find('\n'));
    usage.remove_prefix(std::min(usage.size(), line.size() + 1));
    text += "foreshock ";
    text += wrapped(std::string(line), 4, columns - 10);  // 10: "foreshock "
    text += '\n';
  }
  text += wrapped(help.purpose, 0, columns) + "\n\n" + words_help(help.options, columns);
  std::string_view notes = help.notes;
  while (!notes.empty()) {
    const std::string_view paragraph = notes.substr(0, notes.find("\n\n"));
    notes.remove_prefix(std::min(notes.size(), paragraph.size() + 2));
    text += '\n';
    text += wrapped(std::string(paragraph), 0, columns);
    text += '\n';
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace foreshock::cli
