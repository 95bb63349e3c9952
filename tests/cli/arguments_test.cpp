#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <cstdlib>
#include <sstream>

#include "cli/options.h"
#include "cli/words.h"

namespace foreshock::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string problem_of(const std::vector<std::string>& words, uint32_t reader = kReaderRun) {
  Arguments arguments;
  return arguments.parse(words, reader);
}

TEST(Arguments, TakesValuesInBothFormsAndLeavesTheCommandAlone) {
  Arguments arguments;
  EXPECT_EQ(arguments.parse({"--port", "0", "--every=16", "--", "python", "--port", "7"}, kReaderRun), "");
  EXPECT_EQ(arguments.text(OptionId::kPort), "0");
  EXPECT_EQ(arguments.text(OptionId::kEvery), "16");
  EXPECT_EQ(arguments.text(OptionId::kMemory), "64MiB");
  EXPECT_THAT(arguments.command(), ElementsAre("python", "--port", "7"));
}

TEST(Arguments, TheCommandMayStartWithoutDashes) {
  Arguments arguments;
  EXPECT_EQ(arguments.parse({"--port", "0", "torchrun", "--help"}, kReaderRun), "");
  EXPECT_THAT(arguments.command(), ElementsAre("torchrun", "--help"));
  EXPECT_FALSE(arguments.wants_help());
}

TEST(Arguments, FlagWinsOverVariableWinsOverDefault) {
  Arguments arguments;
  setenv("FORESHOCK_EVERY", "4", 1);
  EXPECT_EQ(arguments.parse({"--", "true"}, kReaderRun), "");
  EXPECT_EQ(arguments.text(OptionId::kEvery), "4");
  EXPECT_EQ(arguments.parse({"--every", "2", "--", "true"}, kReaderRun), "");
  EXPECT_EQ(arguments.text(OptionId::kEvery), "2");
  unsetenv("FORESHOCK_EVERY");
}

TEST(Arguments, WrongValuesSayWhereTheyCameFrom) {
  EXPECT_THAT(problem_of({"--every", "x", "--", "true"}),
              HasSubstr("--every must be a whole number from 0 to 1048576, not 'x'"));
  setenv("FORESHOCK_MAX_SLOWDOWN", "much", 1);
  EXPECT_THAT(problem_of({"--", "true"}), HasSubstr("FORESHOCK_MAX_SLOWDOWN must be"));
  unsetenv("FORESHOCK_MAX_SLOWDOWN");
}

// What would be taken and then have no effect, or another than asked for.
TEST(Arguments, NumbersHaveBounds) {
  const auto is_fit = [](OptionId id, const std::string& text) { return value_wanted(id, text).empty(); };
  struct {
    OptionId id;
    std::vector<std::string> good, bad;
  } const kCases[] = {
      {OptionId::kCountKernels, {"0", "1", "64"}, {"65", "100", "18446744073709551615"}},
      {OptionId::kEvery, {"0", "1", "1048576"}, {"1048577", "18446744073709551615"}},
      {OptionId::kWeights, {"auto", "off", "1", "1048576"}, {"0", "1048577", "on"}},
      {OptionId::kMemory, {"1MiB", "1048576", "64MiB", "1000GiB"}, {"0", "1", "1MB", "1048575"}},
      {OptionId::kRecordHistograms, {"0", "1MiB", "2GiB"}, {"1", "64KiB"}},
      {OptionId::kFlaggedQuota, {"4KiB", "12KiB"}, {"0", "1", "4095"}},
      {OptionId::kPort,
       {"0", "65535", "9847-9946", "1-1"},
       {"65536", "9847-", "-9847", "2-1", "0-5", "1-65536"}},
      {OptionId::kForgetAfter, {"0", "604800"}, {"604801"}},
  };
  for (const auto& [id, good, bad] : kCases) {
    EXPECT_EQ(value_wanted(id, option(id).fallback), "") << option(id).flag;
    for (const std::string& text : good) EXPECT_TRUE(is_fit(id, text)) << option(id).flag << " " << text;
    for (const std::string& text : bad) EXPECT_FALSE(is_fit(id, text)) << option(id).flag << " " << text;
  }
  EXPECT_THAT(problem_of({"--count-kernels", "100", "--", "true"}),
              HasSubstr("--count-kernels must be a whole number from 0 to 64, not '100'"));
  EXPECT_THAT(problem_of({"--memory", "1", "--", "true"}),
              HasSubstr("--memory must be a size of 1MiB or more, not '1'"));
}

std::string joined(std::string text) {
  std::istringstream words(text);
  text.clear();
  for (std::string word; words >> word;) text += word + " ";
  return text;
}

TEST(Arguments, HelpAndTableContainTheBounds) {
  EXPECT_THAT(joined(options_help(kReaderRun, 80)), HasSubstr("0: never (from 0 to 64)"));
  EXPECT_THAT(options_markdown(), HasSubstr("0: never (from 0 to 64)"));
  EXPECT_THAT(joined(options_help(kReaderRun, 80)), HasSubstr("for samples (of 1MiB or more) [64MiB]"));
}

TEST(Arguments, HelpIsWrappedAndGrouped) {
  for (const OptionReader reader : {kReaderRun, kReaderAgent, kReaderStatus, kReaderSwitch, kReaderDoctor,
                                    kReaderExport, kReaderDetect}) {
    for (const size_t columns : {60, 80, 100}) {
      std::istringstream lines(options_help(reader, columns));
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
    }
  }
  const std::string help = options_help(kReaderRun, 80);
  EXPECT_THAT(help, testing::StartsWith("Basic\n  --run-id ID"));
  EXPECT_LT(help.find("\nOutput\n"), help.find("\nNetwork\n"));
  EXPECT_LT(help.find("\nNetwork\n"), help.find("\nExpert\n"));
  EXPECT_THAT(options_help(kReaderStatus, 80), testing::Not(HasSubstr("Expert")));
}

TEST(Arguments, SimilarWordsAreSuggested) {
  EXPECT_EQ(did_you_mean("statsu", {"run", "status"}), ", did you mean status?");
  EXPECT_EQ(did_you_mean("frobnicate", {"run", "status"}), "");
  EXPECT_EQ(did_you_mean("rn", {"run"}), "");  // too short to be sure
  EXPECT_THAT(problem_of({"--recrod", "x"}), HasSubstr("unknown option --recrod, did you mean --record?"));
}

TEST(Arguments, UnknownVariablesAreReported) {
  EXPECT_EQ(unknown_variable(), "");
  // Of the command of --on-alert, and of a service in Kubernetes.
  constexpr const char* kOfOthers[] = {
      "FORESHOCK_ALERT_STEP", "FORESHOCK_SERVICE_HOST",        "FORESHOCK_AGENT_PORT_80_TCP_ADDR",
      "FORESHOCK_AGENT_PORT", "FORESHOCK_PORT_9464_TCP_PROTO", "FORESHOCK_PORT_9464_SCTP"};
  for (const char* name : kOfOthers) setenv(name, "1", 1);
  EXPECT_EQ(unknown_variable(), "");
  for (const char* name : kOfOthers) unsetenv(name);
  setenv("FORESHOCK_XYZZY", "1", 1);
  EXPECT_EQ(unknown_variable(), "ignored: unknown environment variable FORESHOCK_XYZZY");
  unsetenv("FORESHOCK_XYZZY");
  setenv("FORESHOCK_RECROD", "x", 1);
  EXPECT_EQ(unknown_variable(),
            "ignored: unknown environment variable FORESHOCK_RECROD, did you mean FORESHOCK_RECORD?");
  unsetenv("FORESHOCK_RECROD");
}

// Kubernetes sets the variable in every pod if a service is called "foreshock".
TEST(Arguments, ThePortIsNotTheAddressOfAService) {
  setenv("FORESHOCK_PORT", "tcp://10.0.0.1:9464", 1);
  Arguments of_service;
  EXPECT_EQ(of_service.parse({"--", "true"}, kReaderRun), "");
  EXPECT_EQ(of_service.text(OptionId::kPort), "9847");
  EXPECT_FALSE(of_service.is_given(OptionId::kPort));
  EXPECT_EQ(unknown_variable(), "");
  setenv("FORESHOCK_PORT", "9464", 1);
  EXPECT_EQ(of_service.text(OptionId::kPort), "9464");
  EXPECT_TRUE(of_service.is_given(OptionId::kPort));
  setenv("FORESHOCK_PORT", "946x", 1);
  Arguments wrong;
  EXPECT_THAT(wrong.parse({"--", "true"}, kReaderRun), HasSubstr("FORESHOCK_PORT must be a port number"));
  unsetenv("FORESHOCK_PORT");
}

TEST(Arguments, AGrafanaIsAnAddressOfTheWeb) {
  for (const char* good : {"http://localhost:3000", "https://grafana.example.com/sub/", "http://[::1]:3000"})
    EXPECT_EQ(value_wanted(OptionId::kGrafana, good), "") << good;
  for (const char* bad : {"javascript:alert(1)", "//example.com", "https://", "https:///d", "ftp://host",
                          "http://host/?orgId=1", "http://host/#x", "http://me:secret@host", "http://a b",
                          "http://host/\"onclick", "http://h\xc3\xb6st", "HTTP"})
    EXPECT_NE(value_wanted(OptionId::kGrafana, bad), "") << bad;
  EXPECT_NE(value_wanted(OptionId::kGrafana, "http://" + std::string(2000, 'a')), "");
  EXPECT_THAT(problem_of({"--grafana", "grafana:3000", "--", "true"}),
              HasSubstr("--grafana must be an address"));
}

TEST(Arguments, RefusesWhatIsNotThere) {
  EXPECT_THAT(problem_of({"--frobnicate"}), HasSubstr("unknown option --frobnicate"));
  EXPECT_THAT(problem_of({"--json"}), HasSubstr("unknown option --json"));  // an option of status
  EXPECT_THAT(problem_of({"--port"}), HasSubstr("give --port a value"));
  EXPECT_THAT(problem_of({"--port="}), HasSubstr("give --port a value"));
  EXPECT_THAT(problem_of({"--port", "5", "--port", "--record", "r"}), HasSubstr("give --port a value"));
  EXPECT_THAT(problem_of({"--json=1"}, kReaderStatus), HasSubstr("takes no value"));
  EXPECT_THAT(problem_of({"stray"}, kReaderStatus), HasSubstr("unexpected argument 'stray'"));
}

TEST(Arguments, ListensAtAddressesAndSocketsOnly) {
  for (const char* address :
       {"127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.0.1", "::", "unix:/run/f.sock"}) {
    EXPECT_EQ(value_wanted(OptionId::kBind, address), "") << address;
  }
  for (const char* address : {"", "127.0.0.1.evil.example", "*", "unix:", "unix:relative", "example.com"}) {
    EXPECT_THAT(value_wanted(OptionId::kBind, address), HasSubstr("numeric address")) << address;
  }
  const std::string longest =
      "unix:/" + std::string(sizeof(sockaddr_un::sun_path) - 2, 's');  // and the final zero
  EXPECT_EQ(value_wanted(OptionId::kBind, longest), "");
  EXPECT_NE(value_wanted(OptionId::kBind, longest + "s"), "");
}

TEST(Arguments, WhatOthersReachNeedsAToken) {
  const auto problem = [](const std::vector<std::string>& words) {
    Arguments arguments;
    EXPECT_EQ(arguments.parse(words, kReaderAgent), "");
    return listening_problem(arguments);
  };
  for (const char* address : {"127.0.0.1", "::1", "localhost", "unix:/run/f.sock"})
    EXPECT_EQ(problem({"--bind", address}), "") << address;
  EXPECT_THAT(problem({"--bind", "0.0.0.0"}), HasSubstr("--token-file"));
  EXPECT_EQ(problem({"--bind", "0.0.0.0", "--token-file", "/etc/token"}), "");
}

TEST(Arguments, HelpIsAskedForBeforeTheCommandOnly) {
  Arguments arguments;
  EXPECT_EQ(arguments.parse({"--every", "nonsense", "--help"}, kReaderRun), "");
  EXPECT_TRUE(arguments.wants_help());
  EXPECT_THAT(options_help(kReaderRun, 80), HasSubstr("--run-id ID"));
  EXPECT_THAT(options_help(kReaderStatus, 80), testing::Not(HasSubstr("--every")));
}

TEST(Arguments, MarkdownHoldsEveryFlagAndVariable) {
  const std::string page = options_markdown();
  for (const Option& row : kOptions) {
    if (row.flag != nullptr) {
      EXPECT_THAT(page, HasSubstr(std::string("`") + row.flag));
    }
    if (row.variable != nullptr) {
      EXPECT_THAT(page, HasSubstr(std::string("`") + row.variable + "`"));
    }
  }
  EXPECT_THAT(page, HasSubstr("--slices on\\|off"));
}

}  // namespace
}  // namespace foreshock::cli
