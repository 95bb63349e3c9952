#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "exporters/http_routes.h"

namespace foreshock {
namespace {

using nlohmann::json;

TEST(HistoryTable, IsJsonWithNullForUnknown) {
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

TEST(HistoryTable, OfOneRunOnly) {
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

TEST(HistoryTable, NoTableIsAnEmptyList) { EXPECT_EQ(history_json({}), "{\"schema\":1,\"tables\":[]}"); }

}  // namespace
}  // namespace foreshock
