#include "exporters/http_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshock {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int status_of(const HttpRequest& request) {
  return HttpRoutes().answer(request, std::make_shared<Published>()).status;
}

TEST(LoopbackHost, NamesOfThisMachineOnly) {
  for (const char* host :
       {"127.0.0.1", "localhost", "[::1]", "LocalHost:9847", "[::1]:1", "127.0.0.1:65535"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "127.0.0.1:80@evil", "127.0.0.1:123456", "10.0.0.1", "[::1]x"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(HttpRoutes, RefusesWhatItDoesNotServe) {
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

TEST(HttpRoutes, AnswersAUrlAsItsPath) {
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

TEST(HttpRoutes, ServesWhatWasPublished) {
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

TEST(HttpRoutes, AnAgentThatPublishesNothingAnyMoreIsNotHealthy) {
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
TEST(HttpRoutes, AnAgentThatPublishesNothingAnyMoreIsNotScraped) {
  const auto published = std::make_shared<Published>();
  HttpRoutes routes;
  published->made -= Published::kUnhealthyAfter + std::chrono::seconds(13);
  EXPECT_EQ(routes.answer({"GET", "localhost", "/metrics"}, published).status, 200) << "it may be slow";
  published->made -= Published::kMetricsExpireAfter;
  const HttpReply stalled = routes.answer({"GET", "localhost", "/metrics"}, published);
  EXPECT_EQ(stalled.status, 503);
  EXPECT_EQ(*stalled.body, "nothing new for 163 s\n");
}

TEST(HttpRoutes, EachRunHasAStateOfItsOwn) {
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

TEST(QueryValue, SurvivesNonsense) {
  EXPECT_EQ(query_value("/a?run=x%41%2f%zz%4", "run"), "xA/%zz%4");
  EXPECT_EQ(query_value("/a?run=%", "run"), "%");
  for (const char* target : {"", "?", "/a?", "/a?run", "/a?run&", "/a?&&&", "/a?runx=1", "/a?=run"})
    EXPECT_EQ(query_value(target, "run"), "") << target;
}

TEST(HttpRoutes, RendersASnapshotOnceAndANewOneAnew) {
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

TEST(HttpRoutes, RendersAHistoryOnceAndANewOneAnew) {
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

TEST(HttpRoutes, AHistoryIsOfTheRunThatIsAskedFor) {
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

TEST(HttpRoutes, BeforeTheFirstSnapshotMetricsAreEmpty) {
  EXPECT_EQ(*HttpRoutes().answer({"GET", "localhost", "/metrics"}, std::make_shared<Published>()).body, "");
}

// The content security policy allows no inline code and no other origin; the page must live with that.
TEST(StatusPage, NeedsNothingFromElsewhereAndInsertsNoMarkup) {
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

}  // namespace
}  // namespace foreshock
