#include "exporters/http_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace foreshock {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int status_of(const HttpRequest& request) {
  return HttpRoutes().answer(request, std::make_shared<Published>()).status;
}

TEST(LoopbackHost, AcceptsOnlyNamesOfThisMachine) {
  for (const char* host :
       {"127.0.0.1", "localhost", "[::1]", "LocalHost:9847", "[::1]:1", "127.0.0.1:65535"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "127.0.0.1:80@evil", "127.0.0.1:123456", "10.0.0.1", "[::1]x"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(HttpRoutes, RefusesUnknownPathsAndMethods) {
  EXPECT_EQ(status_of({"GET", "localhost", "/healthz"}), 200);
  EXPECT_EQ(status_of({"GET", "", "/healthz"}), 400);
  EXPECT_EQ(status_of({"GET", "evil.example", "/healthz"}), 403);
  EXPECT_EQ(status_of({"POST", "localhost", "/healthz"}), 405);
  EXPECT_EQ(status_of({"GET", "localhost", "/healthz", true}), 413);
  EXPECT_EQ(status_of({"GET", "localhost", "http://evil.example/"}), 403);
  EXPECT_EQ(status_of({"GET", "evil.example", "http://localhost/"}), 403);
  EXPECT_EQ(status_of({"GET", "localhost", "http://localhost@evil.example/"}), 403);
  EXPECT_EQ(status_of({"GET", "localhost", "http:///healthz"}), 403);
  EXPECT_EQ(status_of({"GET", "localhost", "https://localhost/"}), 400);
  EXPECT_EQ(status_of({"GET", "localhost", "/nothing"}), 404);
}

TEST(HttpRoutes, AcceptsAUrlInPlaceOfAPath) {
  const auto published = std::make_shared<Published>();
  published->run_states = {{"one", std::make_shared<const std::string>("state of one")}};
  HttpRoutes routes;
  const auto reply = [&](const char* target) {
    return routes.answer({"GET", "localhost", target}, published);
  };
  EXPECT_EQ(*reply("http://localhost:9847/api/v1/state?run=one").body, "state of one");
  EXPECT_EQ(*reply("HTTP://[::1]/api/v1/state?run=one").body, "state of one");
  EXPECT_EQ(*reply("http://127.0.0.1").body, kPageHtml);
  EXPECT_EQ(reply("http://localhost/nothing").status, 404);
}

TEST(HttpRoutes, ServesPublishedPages) {
  Registry registry;
  registry.set(Metric::kLoss, {"r", "0"}, 3);
  const auto published =
      std::make_shared<Published>(Published{registry.snapshot(), R"({"schema":1})", false, "no rank lives"});
  HttpRoutes routes;
  const HttpReply metrics = routes.answer({"GET", "localhost", "/metrics"}, published);
  EXPECT_EQ(metrics.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(*metrics.body, exposition(*published->metrics));
  const HttpReply state = routes.answer({"GET", "localhost", "/api/v1/state?x=1"}, published);
  EXPECT_EQ(state.content_type, "application/json");
  EXPECT_EQ(state.body.get(), &published->state_json) << "shared, however many ask for it";
  const HttpReply health = routes.answer({"GET", "localhost", "/healthz"}, published);
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(*health.body, "no rank lives\n");
}

TEST(HttpRoutes, HealthFailsAfterTheAgentStopsPublishing) {
  const auto published = std::make_shared<Published>();
  published->health_text = "ok";
  HttpRoutes routes;
  EXPECT_EQ(routes.answer({"GET", "localhost", "/healthz"}, published).status, 200);
  published->made -= Published::kUnhealthyAfter + std::chrono::seconds(13);
  const HttpReply stalled = routes.answer({"GET", "localhost", "/healthz"}, published);
  EXPECT_EQ(stalled.status, 503);
  EXPECT_EQ(*stalled.body, "nothing new for 43 s\n");
}

// Its last values would pass for a training that stands still.
TEST(HttpRoutes, MetricsEndAfterTheAgentStopsPublishing) {
  const auto published = std::make_shared<Published>();
  HttpRoutes routes;
  published->made -= Published::kUnhealthyAfter + std::chrono::seconds(13);
  EXPECT_EQ(routes.answer({"GET", "localhost", "/metrics"}, published).status, 200) << "it may be slow";
  published->made -= Published::kMetricsExpireAfter;
  const HttpReply stalled = routes.answer({"GET", "localhost", "/metrics"}, published);
  EXPECT_EQ(stalled.status, 503);
  EXPECT_EQ(*stalled.body, "nothing new for 163 s\n");
}

TEST(HttpRoutes, ServesTheStateOfEachRun) {
  const auto published = std::make_shared<Published>();
  published->state_json = "all";
  published->run_states = {{"ada/one", std::make_shared<const std::string>("one")}};
  HttpRoutes routes;
  const auto body = [&](const char* target) {
    return *routes.answer({"GET", "localhost", target}, published).body;
  };
  EXPECT_EQ(body("/api/v1/state"), "all");
  EXPECT_EQ(body("/api/v1/state?run="), "all");
  EXPECT_EQ(body("/api/v1/state?run=ada/one"), "one");
  EXPECT_EQ(body("/api/v1/state?x=1&run=ada%2Fone"), "one");
  EXPECT_EQ(body("/api/v1/targets"), "[]");
  EXPECT_EQ(routes.answer({"GET", "localhost", "/api/v1/state?run=two"}, published).status, 404);
}

TEST(QueryValue, AcceptsAnyBytes) {
  EXPECT_EQ(query_value("/a?run=x%41%2f%zz%4", "run"), "xA/%zz%4");
  EXPECT_EQ(query_value("/a?run=%", "run"), "%");
  for (const char* target : {"", "?", "/a?", "/a?run", "/a?run&", "/a?&&&", "/a?runx=1", "/a?=run"})
    EXPECT_EQ(query_value(target, "run"), "") << target;
}

TEST(HttpRoutes, RendersEachSnapshotOnce) {
  Registry registry;
  registry.set(Metric::kLoss, {"r", "0"}, 3);
  const auto published = std::make_shared<Published>(Published{registry.snapshot(), "", true, ""});
  HttpRoutes routes;
  const auto first = routes.answer({"GET", "localhost", "/metrics"}, published).body;
  EXPECT_EQ(routes.answer({"GET", "localhost", "/metrics"}, published).body, first);
  registry.set(Metric::kLoss, {"r", "0"}, 4);
  published->metrics = registry.snapshot();
  EXPECT_THAT(*routes.answer({"GET", "localhost", "/metrics"}, published).body, HasSubstr("rank=\"0\"} 4\n"));
}

TEST(HttpRoutes, RendersEachHistoryOnce) {
  const auto published = std::make_shared<Published>();
  HttpRoutes routes;
  const auto ask = [&] { return routes.answer({"GET", "localhost", "/api/v1/history"}, published).body; };
  EXPECT_EQ(*ask(), R"({"schema":1,"tables":[]})");
  std::vector<HistoryTable> tables(1);
  tables[0].columns = {{"loss", {2.0f}}};
  published->history = std::make_shared<const std::vector<HistoryTable>>(tables);
  const auto first = ask();
  EXPECT_THAT(*first, HasSubstr(R"("columns":{"loss":[2]})"));
  EXPECT_EQ(ask(), first);
}

TEST(HttpRoutes, ServesTheHistoryOfTheRequestedRun) {
  const auto published = std::make_shared<Published>();
  HttpRoutes routes;
  const auto ask = [&](std::string_view target) {
    return routes.answer({"GET", "localhost", target}, published).body;
  };
  std::vector<HistoryTable> tables(2);
  tables[0].run = "one";
  tables[1].run = "other/run";
  published->history = std::make_shared<const std::vector<HistoryTable>>(tables);
  EXPECT_THAT(*ask("/api/v1/history"), AllOf(HasSubstr("one"), HasSubstr("other/run")));
  EXPECT_THAT(*ask("/api/v1/history?run=one"), AllOf(HasSubstr("one"), Not(HasSubstr("other/run"))));
  const auto other = ask("/api/v1/history?run=other%2Frun");
  EXPECT_THAT(*other, AllOf(HasSubstr("other/run"), Not(HasSubstr("one"))));
  EXPECT_EQ(ask("/api/v1/history?run=other%2Frun"), other) << "rendered once";
  EXPECT_EQ(*ask("/api/v1/history?run=none"), R"({"schema":1,"tables":[]})");
  tables.pop_back();
  published->history = std::make_shared<const std::vector<HistoryTable>>(tables);
  EXPECT_EQ(*ask("/api/v1/history?run=other%2Frun"), R"({"schema":1,"tables":[]})") << "of the new history";
}

TEST(HttpRoutes, MetricsAreEmptyBeforeTheFirstSnapshot) {
  EXPECT_EQ(*HttpRoutes().answer({"GET", "localhost", "/metrics"}, std::make_shared<Published>()).body, "");
}

// The content security policy allows no inline code and no other origin; the page must live with that.
TEST(StatusPage, LoadsNoOtherResourcesAndInsertsNoMarkup) {
  EXPECT_THAT(std::string(kPageHtml), HasSubstr("<script src=\"/page.js\""));
  for (std::string_view file : {kPageHtml, kPageJs, kPageCss}) {
    std::string text(file);
    EXPECT_FALSE(text.empty());
    const std::string svg = "http://www.w3.org/2000/svg";  // a name, not an address
    if (const size_t at = text.find(svg); at != std::string::npos) text.erase(at, svg.size());
    for (const char* word : {"http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacent",
                             "document.write", "style=", "onclick=", "eval(", "url("}) {
      EXPECT_THAT(text, Not(HasSubstr(word)));
    }
  }
}

using testing::HasSubstr;

class BearerTokenTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "token-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/token";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_ + ".new") << text;
    chmod((path_ + ".new").c_str(), mode);
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::string problem() {
    std::string error;
    EXPECT_EQ(BearerToken::open(path_, &error), nullptr);
    EXPECT_EQ(error.find('\n'), std::string::npos);
    return error;
  }
  std::string directory_, path_, error_;
};

TEST_F(BearerTokenTest, AcceptsOnlyTheToken) {
  write("0123456789abcdef\n");
  const auto token = BearerToken::open(path_, &error_);
  ASSERT_NE(token, nullptr) << error_;
  EXPECT_TRUE(token->admits("Bearer 0123456789abcdef"));
  EXPECT_TRUE(token->admits("bearer  0123456789abcdef"));
  EXPECT_TRUE(token->admits("Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVm")) << "anybody:0123456789abcdef";
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde",
                            "0123456789abcdef", "Bearer 0123456789abcdef0123456789abcdef", "Basic ",
                            "Basic !!!!", "Basic MDEyMzQ1Njc4OWFiY2RlZg==", "Digest 0123456789abcdef"})
    EXPECT_FALSE(token->admits(wrong)) << wrong;
}

TEST_F(BearerTokenTest, IsReadAgainAfterTheFileChanges) {
  write("the first of tokens");
  // A space is no token's.
  EXPECT_THAT(problem(), HasSubstr("visible characters"));
  write("the-first-of-tokens");
  const auto token = BearerToken::open(path_, &error_);
  ASSERT_NE(token, nullptr) << error_;
  write("the-second-of-token");  // of the same length
  EXPECT_FALSE(token->admits("Bearer the-first-of-tokens"));
  EXPECT_TRUE(token->admits("Bearer the-second-of-token"));
  write("the-second-of-token", 0644);
  EXPECT_FALSE(token->admits("Bearer the-second-of-token")) << "others can read it now";
  write("the-second-of-token");
  EXPECT_TRUE(token->admits("Bearer the-second-of-token"));
  unlink(path_.c_str());
  EXPECT_FALSE(token->admits("Bearer the-second-of-token"));
  EXPECT_FALSE(token->admits("Bearer "));
}

TEST_F(BearerTokenTest, RefusesAFileThatOthersCanRead) {
  EXPECT_THAT(problem(), HasSubstr("No such file"));
  write("0123456789abcdef", 0604);
  EXPECT_THAT(problem(), HasSubstr("chmod 600"));
  write("0123456789abcdef", 0660);
  EXPECT_THAT(problem(), HasSubstr("chmod 600"));
  write("short");
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  write("\n0123456789abcdef");
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  write(std::string(kMostTokenBytes + 1, 'x'));
  EXPECT_THAT(problem(), HasSubstr("16 to 1024"));
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(problem(), HasSubstr("not a regular file"));
}

TEST_F(BearerTokenTest, RefusesAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  write("0123456789abcdef", 0440);  // as an orchestrator mounts a secret
  EXPECT_NE(BearerToken::open(path_, &error_), nullptr) << error_;
  ASSERT_EQ(chown(path_.c_str(), 4321, 4321), 0);
  EXPECT_THAT(problem(), HasSubstr("another user"));
}

TEST_F(BearerTokenTest, AllowsReadingByAChosenGroupOnly) {
  constexpr uid_t kUser = 4321;
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  write("0123456789abcdef", 0640);
  ASSERT_EQ(chown(directory_.c_str(), kUser, kUser), 0);
  const auto problem_with = [&](uid_t owner, gid_t group) {
    EXPECT_EQ(chown(path_.c_str(), owner, group), 0);
    EXPECT_EQ(seteuid(kUser), 0);
    std::string error;
    BearerToken::open(path_, &error);
    EXPECT_EQ(seteuid(0), 0);
    return error;
  };
  EXPECT_EQ(problem_with(kUser, kUser), "") << "a group of one user";
  EXPECT_THAT(problem_with(kUser, 100), HasSubstr("chmod 600")) << "perhaps the group of all users";
  EXPECT_EQ(problem_with(0, 0), "") << "an administrator's choice";
}

TEST(EqualInConstantTime, ComparesAllBytes) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcabc", "abcd", "Abc"})
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  EXPECT_FALSE(equal_in_constant_time("", ""));
}

using nlohmann::json;

TEST(HistoryTable, WritesUnknownValuesAsNull) {
  const HistoryTable rank = {"r\"1\xff", 3, "", 8, 2, {{"loss", {1.5f, NAN, INFINITY}}, {"empty", {NAN}}}};
  const HistoryTable layer = {"r", 3, "001", 16, 1, {{"bias_ulp", {-0.0012345678f}}}};
  const json parsed = json::parse(history_json({rank, layer}));
  EXPECT_EQ(parsed["schema"], 1);
  ASSERT_EQ(parsed["tables"].size(), 2u);
  const json& first = parsed["tables"][0];
  EXPECT_EQ(first["rank"], 3);
  EXPECT_TRUE(first["layer"].is_null());
  EXPECT_EQ(first["first_step"], 8);
  EXPECT_EQ(first["steps_per_point"], 2);
  EXPECT_EQ(first["columns"], (json{{"loss", {1.5, nullptr, nullptr}}}));
  EXPECT_EQ(parsed["tables"][1]["layer"], "001");
  EXPECT_EQ(parsed["tables"][1]["columns"]["bias_ulp"][0], -0.0012346);
}

TEST(HistoryTable, HasOneRunOnly) {
  const std::vector<HistoryTable> tables = {
      {"a", 0, "", 0, 1, {}}, {"b", 0, "", 0, 1, {}}, {"a", 1, "", 0, 1, {}}};
  const auto runs_of = [&](std::string_view run) {
    std::string runs;
    const json parsed = json::parse(history_json(tables, run));
    for (const json& table : parsed["tables"]) runs += table["run"].get<std::string>();
    return runs;
  };
  EXPECT_EQ(runs_of("a"), "aa");
  EXPECT_EQ(runs_of("b"), "b");
  EXPECT_EQ(runs_of("c"), "");
  EXPECT_EQ(runs_of(""), "aba");
}

TEST(HistoryTable, WithoutRowsIsAnEmptyList) { EXPECT_EQ(history_json({}), "{\"schema\":1,\"tables\":[]}"); }

}  // namespace
}  // namespace foreshock
