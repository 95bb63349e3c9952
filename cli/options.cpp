// Parses and checks command-line options (options.h). A row of the table kOptions (libmonitor/options.h) has
// a flag, an environment variable, a default, bounds, and a bit for each command that reads it (`reader` is
// one such bit). ..._problem() returns "" or what is wrong, ..._wanted() returns "" or what a value must be.
#include "cli/options.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <string_view>

#include "cli/words.h"
#include "exporters/file_place.h"
#include "exporters/http_routes.h"

namespace foreshock::cli {
namespace {

const Option* find_flag(const std::string& flag, uint32_t reader) {
  for (const Option& row : kOptions)
    if (row.flag != nullptr && flag == row.flag && (row.readers & reader) != 0) return &row;
  return nullptr;
}

bool is_listening_address(const std::string& address) {
  unsigned char bytes[sizeof(in6_addr)];
  // The kernel's address of a Unix socket has 108 bytes for the path with its final zero; "unix:" has 5.
  return address == "localhost" || (address.starts_with("unix:/") && address.size() <= 112) ||
         inet_pton(AF_INET, address.c_str(), bytes) == 1 || inet_pton(AF_INET6, address.c_str(), bytes) == 1;
}

// Whether `url` is http or https with a host, has at most 1024 characters, and only those of a URL without
// '@', '?' and '#'.
bool is_web_address(std::string_view url) {
  constexpr std::string_view kOthers = "-._~:/[]%!$&'()*+,;=";
  const size_t scheme_length = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  const auto is_allowed = [&](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || kOthers.find(static_cast<char>(c)) != kOthers.npos;
  };
  return scheme_length != 0 && url.size() > scheme_length && url.size() <= 1024 &&
         url[scheme_length] != '/' && std::all_of(url.begin(), url.end(), is_allowed);
}

std::vector<std::string> flags_of(uint32_t reader) {
  std::vector<std::string> flags;
  for (const Option& row : kOptions)
    if (row.flag != nullptr && (row.readers & reader) != 0) flags.push_back(row.flag);
  return flags;
}

std::string or_empty(const char* text) { return text == nullptr ? "" : text; }

// Returns `text` as code in a Markdown table. Escapes '|', which would end the cell.
std::string markdown_code(const std::string& text) {
  if (text.empty()) return "";
  std::string quoted(1, '`');
  for (char c : text) {
    if (c == '|') quoted += '\\';
    quoted += c;
  }
  return quoted + '`';
}

std::string flag_with_value(const Option& row) {
  std::string text = or_empty(row.flag);
  if (!text.empty() && row.value != nullptr) text += std::string(" ") + row.value;
  return text;
}

std::string size_text(uint64_t bytes) {
  return bytes % kMiB == 0 ? std::to_string(bytes / kMiB) + "MiB" : std::to_string(bytes / 1024) + "KiB";
}

// Returns "from 1 to 64" or "of 1MiB or more", for example; "" if every number is valid.
std::string bounds_text(const Option& row) {
  if (row.most != UINT64_MAX) return "from " + std::to_string(row.least) + " to " + std::to_string(row.most);
  return row.least > 0 ? "of " + size_text(row.least) + " or more" : "";
}

// Returns "" if `text` is a valid number for the option, else `what` and the bounds of the option.
std::string number_wanted(OptionId id, const std::string& text, const std::string& what) {
  uint64_t number = 0;
  if (parse_number(id, text.c_str(), &number)) return "";
  const std::string bounds = bounds_text(option(id));
  return bounds.empty() ? what : what + " " + bounds;
}

std::string help_text(const Option& row) {
  const std::string bounds = bounds_text(row);
  return bounds.empty() ? row.help : row.help + (" (" + bounds + ")");
}

constexpr size_t kLongestRunId = 63;  // the trainer's shared file stores the run id in 64 bytes

bool is_run_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

// Returns the value of the option's variable; null if it is not set. If a service is called "foreshock",
// Kubernetes sets FORESHOCK_PORT to its address (tcp://10.0.0.1:9464) in every pod. This value is ignored.
const char* value_of_variable(const Option& row) {
  const char* value = row.variable != nullptr ? std::getenv(row.variable) : nullptr;
  if (value == nullptr || *value == '\0') return nullptr;
  if (row.id == OptionId::kPort && std::string_view(value).find("://") != std::string_view::npos)
    return nullptr;
  return value;
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Makes a valid run id of `text`, which must not be empty: cuts it and replaces invalid characters by '_'.
std::string valid_run_id(std::string text) {
  if (text.size() > kLongestRunId) text.resize(kLongestRunId);
  for (char& c : text)
    if (!is_run_id_character(c)) c = '_';
  if (text[0] == '.' || text == "lock") text[0] = '_';  // the base directory has a file "lock"
  return text;
}

std::string random_id() {
  std::random_device device;
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", device());
  return digits;
}

std::string slurm_id() {
  const std::string job = from_environment("SLURM_JOB_ID"), step = from_environment("SLURM_STEP_ID");
  return job.empty() || step.empty() ? job : job + "." + step;
}

namespace fs = std::filesystem;

// Returns "" if the file (or, for --file-sd, the directory) that the option names can be written or created.
std::string output_problem(const Arguments& arguments, OptionId id) {
  const std::string given = arguments.text(id);
  if (given.empty() || (id == OptionId::kRecord && given == kNoRecord)) return "";
  const std::string path = absolute(given);
  if (const FilePlace place(path); !place.refusal().empty())
    return std::string(option(id).flag) + ": " + place.refusal();
  const std::string folder = fs::path(path).parent_path();
  const bool exists = access(path.c_str(), F_OK) == 0;
  // ENOENT: only the file is missing. With another errno, the name is too long, a file is used as a folder,
  // or links form a cycle.
  const bool has_bad_name = !exists && errno != ENOENT;
  std::error_code error;
  const bool is_directory = fs::is_directory(path, error);
  const bool takes_directory = id == OptionId::kFileSd;  // the agent writes one file per run into it
  if (has_bad_name || (is_directory && !takes_directory) ||
      access((exists ? path : folder).c_str(), is_directory ? W_OK | X_OK : W_OK) != 0)
    return std::string(option(id).flag) + ": " + given +
           " cannot be written; name a file in a directory you may write";
  return "";
}

// Creates the directory of --save-flagged if it is missing. Returns "" if it can be read and written.
std::string flagged_problem(const Arguments& arguments) {
  const std::string path = absolute(arguments.text(OptionId::kSaveFlagged));
  if (path.empty()) return "";
  if (const FilePlace place(path); !place.refusal().empty())
    return std::string(option(OptionId::kSaveFlagged).flag) + ": " + place.refusal();
  const bool is_there = mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  std::error_code error;
  if (is_there && fs::is_directory(path, error) && access(path.c_str(), R_OK | W_OK | X_OK) == 0) return "";
  return std::string(option(OptionId::kSaveFlagged).flag) + ": " + path +
         " is not a writable directory; name one, or a new one in a directory you may write";
}

std::string token_problem(const Arguments& arguments) {
  const std::string path = absolute(arguments.text(OptionId::kTokenFile));
  if (path.empty()) return "";
  struct stat status = {};
  std::string problem;
  read_token(path, &status, &problem);
  return problem.empty() ? "" : std::string(option(OptionId::kTokenFile).flag) + ": " + problem;
}

// Returns "" if a socket can be made at `path`. A socket that exists is accepted: the agent removes it if it
// has no listener, and otherwise reports the problem.
std::string socket_problem(const std::string& path) {
  struct stat there = {};
  const bool is_other_file = lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode);
  const std::string folder = fs::path(path).parent_path();
  return !is_other_file && access(folder.c_str(), W_OK | X_OK) == 0
             ? ""
             : "name a socket in a directory you may write";
}

// Returns "" if this machine has the address. Binds to any free port; the agent checks the wanted one.
template <class Address>
std::string bind_problem(const Address& address) {
  const int probe = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string problem;
  if (probe < 0 || bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    problem = std::string(std::strerror(errno)) + "; name an address of this machine, or 127.0.0.1";
  if (probe >= 0) close(probe);
  return problem;
}

std::string address_problem(const std::string& text) {
  sockaddr_storage address = {};
  auto* of_v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* of_v6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (inet_pton(AF_INET, text.c_str(), &of_v4->sin_addr) == 1)
    address.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, text.c_str(), &of_v6->sin6_addr) == 1)
    address.ss_family = AF_INET6;
  else
    return "";  // localhost, which every machine has
  return bind_problem(address);
}

}  // namespace

bool parse_ports(const std::string& text, int* port, int* last_port) {
  const size_t dash = text.find('-');
  uint64_t first = 0, last = 0;
  if (!parse_number(OptionId::kPort, text.substr(0, dash).c_str(), &first)) return false;
  // 0 (any free port) cannot begin a range.
  if (dash != std::string::npos &&
      (!parse_number(OptionId::kPort, text.substr(dash + 1).c_str(), &last) || first == 0 || last < first))
    return false;
  *port = static_cast<int>(first);
  *last_port = static_cast<int>(last);  // 0: a single port
  return true;
}

namespace {

// Whether Kubernetes may have set the variable for a service whose name begins with "foreshock".
bool may_be_of_kubernetes(const std::string& name) {
  constexpr const char* kParts[] = {"_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_UDP", "_SCTP"};
  return name.ends_with("_PORT") ||
         std::any_of(std::begin(kParts), std::end(kParts),
                     [&name](const char* part) { return name.find(part) != std::string::npos; });
}

}  // namespace

std::string unknown_variable() {
  std::vector<std::string> known = {"FORESHOCK_BUILD", "FORESHOCK_PYTHON",  // for tests and benches
                                    "FORESHOCK_PREFIX", "FORESHOCK_TREE"};  // for the scripts for Slurm
  for (const Option& row : kOptions)
    if (row.variable != nullptr) known.push_back(row.variable);
  constexpr std::string_view kPrefix = "FORESHOCK_";
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with(kPrefix) || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (name.starts_with("FORESHOCK_ALERT_") || may_be_of_kubernetes(name)) continue;  // for --on-alert
    return "ignored: unknown environment variable " + name + did_you_mean(name, known);
  }
  return "";
}

std::string value_wanted(OptionId id, const std::string& text) {
  double ratio = 0;
  bool on = false;
  int port = 0, last_port = 0;
  switch (id) {
    case OptionId::kEvery:
    case OptionId::kCountKernels:
    case OptionId::kSeed:
      return number_wanted(id, text, "a whole number");
    case OptionId::kMaxSlowdown:
      return parse_ratio(text.c_str(), &ratio) && ratio > 0 ? "" : "a share above zero such as 1% or 0.01";
    case OptionId::kMemory:
    case OptionId::kRecordHistograms:
    case OptionId::kRecordSize:
    case OptionId::kFlaggedQuota:
      return number_wanted(id, text, "a size");
    case OptionId::kSlices:
    case OptionId::kMathPath:
    case OptionId::kEnabled:
      return parse_switch(text.c_str(), &on) ? "" : "on or off";
    case OptionId::kWeights:
      return text == "auto" || text == "off" ? ""
                                             : number_wanted(id, text, "auto, off, or a number of steps");
    case OptionId::kPort:
      // "" is never a valid number, so number_wanted() returns the bounds.
      return parse_ports(text, &port, &last_port) ? ""
                                                  : number_wanted(id, "", "a port number, or FIRST-LAST,");
    case OptionId::kBind:
      return is_listening_address(text) ? "" : "a numeric address such as 127.0.0.1, or unix:/PATH";
    case OptionId::kGrafana:
      return is_web_address(text) ? "" : "an address such as https://grafana.example.com";
    case OptionId::kForgetAfter:
      return number_wanted(id, text, "a number of seconds");
    case OptionId::kAgent:
      return text == "own" || text == "service" ? "" : "own or service";
    case OptionId::kRunId:
      return run_id_problem(text).empty()
                 ? ""
                 : "1 to 63 letters, digits, '_', '.' or '-', not starting with a dot";
    default:
      return "";
  }
}

std::string Arguments::parse(const std::vector<std::string>& words, uint32_t reader) {
  // After the options, `run` and `doctor` take a command, `export` and `detect` a record: all go to command_.
  const bool takes_command = (reader & (kReaderRun | kReaderDoctor | kReaderExport | kReaderDetect)) != 0;
  for (size_t index = 0; index < words.size(); ++index) {
    const std::string& word = words[index];
    if (word == "--help" || word == "-h") {
      wants_help_ = true;
      return "";
    }
    // "-" alone is a file name, and "--" ends the options.
    const bool is_option = word.size() > 1 && word[0] == '-' && word != "--";
    if (!is_option) {
      if (!takes_command)
        return "unexpected argument '" + word + "': this command takes only options (see --help)";
      command_.assign(words.begin() + index + (word == "--" ? 1 : 0), words.end());
      break;
    }
    if (std::string problem = take_flag(words, &index, reader); !problem.empty()) return problem;
  }
  return check_values(reader);
}

// Stores the option words[*index] in flags_. If its value is the next word, increments *index.
std::string Arguments::take_flag(const std::vector<std::string>& words, size_t* index, uint32_t reader) {
  const std::string& word = words[*index];
  const size_t equals = word.find('=');
  const std::string flag = word.substr(0, equals);
  const Option* row = find_flag(flag, reader);
  if (row == nullptr) return "unknown option " + flag + did_you_mean(flag, flags_of(reader)) + "; see --help";
  std::optional<std::string>& stored_value = flags_[static_cast<size_t>(row->id)];
  if (row->value == nullptr) {
    if (equals != std::string::npos) return flag + " takes no value";
    stored_value = "1";
  } else if (equals != std::string::npos) {
    stored_value = word.substr(equals + 1);
  } else if (*index + 1 < words.size() && !words[*index + 1].starts_with("--")) {  // an option is not a value
    ++*index;
    stored_value = words[*index];
  } else {
    stored_value.reset();  // a value from an earlier use of the option does not count
  }
  if (!stored_value || stored_value->empty()) return "give " + flag + " a value: " + flag + " " + row->value;
  return "";
}

std::string Arguments::check_values(uint32_t reader) const {
  for (const Option& row : kOptions) {
    if ((row.readers & reader) == 0) continue;
    const std::string value = text(row.id);
    if (value == row.fallback) continue;  // a default is valid, even if it is ""
    if (const std::string wanted = value_wanted(row.id, value); !wanted.empty())
      return std::string(has_flag(row.id) ? row.flag : row.variable) + " must be " + wanted + ", not '" +
             value + "'";
  }
  return "";
}

std::string listening_problem(const Arguments& arguments) {
  const std::string address = arguments.text(OptionId::kBind);
  const bool is_local =
      address == "127.0.0.1" || address == "::1" || address == "localhost" || address.starts_with("unix:");
  if (is_local || !arguments.text(OptionId::kTokenFile).empty()) return "";
  return "--bind " + address + " needs --token-file FILE: others can reach that address";
}

bool Arguments::is_given(OptionId id) const {
  return has_flag(id) || value_of_variable(option(id)) != nullptr;
}

std::string Arguments::text(OptionId id) const {
  const std::optional<std::string>& flag = flags_[static_cast<size_t>(id)];
  if (flag) return *flag;
  const char* value = value_of_variable(option(id));
  return value != nullptr ? value : option(id).fallback;
}

std::string options_help(uint32_t reader, size_t columns) {
  constexpr size_t kHelpColumn = 26;
  constexpr const char* kTitles[] = {"Basic", "Output", "Network", "Expert"};  // in the order of OptionGroup
  std::string text;
  for (size_t group = 0; group < std::size(kTitles); ++group) {
    std::string section;
    for (const Option& row : kOptions) {
      if (row.flag == nullptr || (row.readers & reader) == 0) continue;
      if (row.group != static_cast<OptionGroup>(group)) continue;
      std::string left = "  " + flag_with_value(row);
      if (left.size() + 2 > kHelpColumn) {
        section += left + "\n";
        left.clear();
      }
      left.resize(kHelpColumn, ' ');
      std::string help = help_text(row);
      if (*row.fallback != '\0') help += std::string(" [") + row.fallback + "]";
      section += left + wrapped(help, kHelpColumn, columns) + "\n";
    }
    if (!section.empty()) text += (text.empty() ? "" : "\n") + std::string(kTitles[group]) + "\n" + section;
  }
  return text;
}

std::string options_markdown() {
  constexpr struct {
    OptionReader reader;
    const char* name;
  } kReaders[] = {{kReaderRun, "run"},       {kReaderAgent, "agent"},
                  {kReaderStatus, "status"}, {kReaderSwitch, "pause, resume"},
                  {kReaderDoctor, "doctor"}, {kReaderExport, "export"},
                  {kReaderDetect, "detect"}, {kReaderTrainer, "the trainer"}};
  std::string text =
      "\n## Options\n\n"
      "A flag overrides its variable, a variable the default.\n\n"
      "| flag | variable | default | meaning | read by |\n| --- | --- | --- | --- | --- |\n";
  for (const Option& row : kOptions) {
    std::string readers;
    for (const auto& [reader, name] : kReaders) {
      if ((row.readers & reader) == 0) continue;
      if (!readers.empty()) readers += ", ";
      readers += name;
    }
    text += "| " + markdown_code(flag_with_value(row)) + " | " + markdown_code(or_empty(row.variable)) +
            " | " + markdown_code(row.fallback) + " | " + help_text(row) +
            (*row.details != '\0' ? ". " : "") + row.details + " | " + readers + " |\n";
  }
  return text;
}

std::string run_id_problem(const std::string& run_id) {
  if (run_id.empty() || run_id.size() > kLongestRunId) return "give a run id of 1 to 63 characters";
  for (char c : run_id)
    if (!is_run_id_character(c))
      return "use only letters, digits, '_', '.' and '-' in a run id, not '" + run_id + "'";
  if (run_id[0] == '.' || run_id == "lock")
    return "choose another run id than '" + run_id + "', which is reserved";
  return "";
}

std::string inherited_run_id() {
  if (const std::string id = from_environment("WANDB_RUN_ID"); !id.empty()) return valid_run_id(id);
  if (const std::string id = slurm_id(); !id.empty()) return valid_run_id(id);
  if (const std::string id = from_environment("TORCHELASTIC_RUN_ID"); !id.empty() && id != "none")
    return valid_run_id(id);
  return "";
}

std::string default_run_id() {
  const std::string id = inherited_run_id();
  return id.empty() ? random_id() : id;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  return path.empty() ? "" : fs::absolute(path, error).string();
}

std::string written_files_problem(const Arguments& arguments) {
  for (OptionId id : {OptionId::kSummary, OptionId::kRecord, OptionId::kFileSd})
    if (const std::string problem = output_problem(arguments, id); !problem.empty()) return problem;
  return flagged_problem(arguments);
}

// Returns "" if the agent can read the token file and serve at the address of --bind.
std::string page_address_problem(const Arguments& arguments) {
  if (const std::string problem = token_problem(arguments); !problem.empty()) return problem;
  constexpr std::string_view kUnix = "unix:";
  const std::string place = arguments.text(OptionId::kBind);
  const std::string problem =
      place.starts_with(kUnix) ? socket_problem(place.substr(kUnix.size())) : address_problem(place);
  return problem.empty() ? "" : "--bind " + place + ": " + problem;
}

}  // namespace foreshock::cli
