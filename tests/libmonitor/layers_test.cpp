#include "libmonitor/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

namespace foreshock {
namespace {

class Layers : public testing::Test {
 protected:
  void SetUp() override { table_->attach(records_.get()); }

  foreshock_parameter parameter(const void* identity, const char* name, const char* layer) {
    return {sizeof(foreshock_parameter), FORESHOCK_ABI_VERSION, identity, name, layer, 10};
  }
  std::unique_ptr<segment::Layer[]> records_ = std::make_unique<segment::Layer[]>(segment::kMaxLayers);
  std::unique_ptr<LayerTable> table_ = std::make_unique<LayerTable>();
  char places_[20000];  // addresses to stand for parameters
};

TEST_F(Layers, FindsWhatWasNamed) {
  EXPECT_TRUE(table_->name(parameter(&places_[16], "a.0.q.weight", "000")));
  EXPECT_TRUE(table_->name(parameter(&places_[32], "a.0.k.weight", "000")));
  EXPECT_TRUE(table_->name(parameter(&places_[48], "a.1.q.weight", "001")));
  EXPECT_EQ(table_->find(&places_[16]), table_->find(&places_[32]));
  EXPECT_NE(table_->find(&places_[16]), table_->find(&places_[48]));
  EXPECT_EQ(table_->find(&places_[64]), -1);
  EXPECT_EQ(table_->find(nullptr), -1);
  EXPECT_STREQ(records_[0].label, "000");
  EXPECT_STREQ(records_[0].name, "a.0");
  EXPECT_STREQ(records_[1].name, "a.1.q.weight");
  EXPECT_EQ(records_[1].ready, 1u);
}

TEST_F(Layers, ALaterNameWins) {
  table_->name(parameter(&places_[16], "old", "000"));
  table_->name(parameter(&places_[16], "new", "005"));
  EXPECT_STREQ(records_[table_->find(&places_[16])].label, "005");
}

TEST_F(Layers, ForgottenNamesLeaveTheirLayerBehind) {
  table_->name(parameter(&places_[16], "a.0.q.weight", "000"));
  table_->forget_names();
  EXPECT_EQ(table_->find(&places_[16]), -1);
  EXPECT_FALSE(table_->has_names());
  table_->name(parameter(&places_[32], "a.0.q.weight", "000"));
  EXPECT_EQ(table_->find(&places_[32]), 0) << "the same layer, not a second one of this label";
}

TEST_F(Layers, WhatWasNamedAheadIsInTheNextSegmentAndOnlyThere) {
  table_->name(parameter(&places_[16], "a.0.q.weight", "000"));
  table_->use_early_layers();  // as in a forked child
  EXPECT_EQ(table_->find(&places_[16]), -1);
  EXPECT_TRUE(table_->name(parameter(&places_[32], "b.4.q.weight", "004")));
  EXPECT_TRUE(table_->name(parameter(&places_[48], "b.4.k.weight", "004")));
  table_->use_early_layers();
  EXPECT_TRUE(table_->name(parameter(&places_[64], "b.5.q.weight", "005")));
  EXPECT_EQ(records_[1].ready, 0u);
  EXPECT_STREQ(records_[0].label, "000");
  const auto next = std::make_unique<segment::Layer[]>(segment::kMaxLayers);
  table_->attach(next.get());
  EXPECT_STREQ(next[0].label, "004");
  EXPECT_STREQ(next[0].name, "b.4");
  EXPECT_STREQ(next[1].label, "005");
  EXPECT_EQ(next[0].ready + next[1].ready, 2u);
  EXPECT_EQ(table_->find(&places_[48]), 0);
  EXPECT_EQ(table_->find(&places_[64]), 1);
  EXPECT_TRUE(table_->name(parameter(&places_[80], "b.6.q.weight", "006")));
  EXPECT_STREQ(next[2].label, "006");
  table_->attach(records_.get());
  EXPECT_EQ(table_->find(&places_[48]), -1) << "a segment of another process";
}

TEST_F(Layers, FullTablesRefuseAndStayRight) {
  int kept = 0;
  for (int n = 0; n < 600; ++n)
    kept += table_->name(parameter(&places_[16 * (n + 1)], "x", ("layer" + std::to_string(n)).c_str()));
  EXPECT_EQ(kept, static_cast<int>(segment::kMaxLayers));
  EXPECT_EQ(table_->find(&places_[16]), 0);
  EXPECT_EQ(table_->find(&places_[16 * 599]), -1);
}

TEST_F(Layers, WhatComesBeyondTheRoomHasNoNameAndItsLayerNoNorm) {
  constexpr uint32_t kRoom = 65536;
  const auto identity = [](uint32_t n) { return reinterpret_cast<const void*>(uintptr_t{n + 1} << 6); };
  table_->name(parameter(identity(0), "a.1.q", "001"));
  for (uint32_t n = 1; n < kRoom; ++n) EXPECT_TRUE(table_->name(parameter(identity(n), "a.0.e", "000")));
  EXPECT_FALSE(table_->name(parameter(identity(kRoom), "a.0.e", "000")));
  EXPECT_TRUE(table_->name(parameter(identity(1), "a.1.k", "001"))) << "it has a place";
  EXPECT_EQ(table_->find(identity(kRoom)), -1);
  EXPECT_STREQ(records_[table_->find(identity(1))].label, "001");
  table_->add_gradient(identity(0), 9);
  table_->add_gradient(identity(2), 7);
  table_->add_gradient(identity(kRoom), 9);
  double norm = 0;
  ASSERT_TRUE(table_->publish_gradients(5, &norm));
  EXPECT_EQ(norm, 5) << "of all of them";
  EXPECT_EQ(records_[0].gradient_norm, 3);
  EXPECT_EQ(records_[1].gradient_step, 0u) << "a part of the layer's gradient is not its norm";
  table_->forget_names();
  table_->name(parameter(identity(2), "a.0.e", "000"));
  table_->add_gradient(identity(2), 16);
  ASSERT_TRUE(table_->publish_gradients(6, &norm));
  EXPECT_EQ(records_[1].gradient_norm, 4);
}

TEST_F(Layers, GradientsAreSummedByLayerAndPublishedOnce) {
  table_->name(parameter(&places_[16], "a", "000"));
  table_->name(parameter(&places_[32], "b", "000"));
  table_->name(parameter(&places_[48], "c", "001"));
  table_->add_gradient(&places_[16], 9);
  table_->add_gradient(&places_[32], 16);
  table_->add_gradient(&places_[48], 144);
  table_->add_gradient(&places_[64], 56);  // of no layer
  double norm = 0;
  ASSERT_TRUE(table_->publish_gradients(7, &norm));
  EXPECT_EQ(norm, 15);
  EXPECT_EQ(records_[0].gradient_norm, 5);
  EXPECT_EQ(records_[1].gradient_norm, 12);
  EXPECT_EQ(records_[1].gradient_step, 7u);
  EXPECT_FALSE(table_->publish_gradients(8, &norm));
  table_->add_gradient(&places_[48], NAN);
  ASSERT_TRUE(table_->publish_gradients(9, &norm));
  EXPECT_TRUE(std::isnan(norm));
  EXPECT_EQ(records_[1].nonfinite_steps, 1u);
  EXPECT_EQ(records_[1].last_nonfinite_step, 9u);
  EXPECT_EQ(records_[0].nonfinite_steps, 0u);
  EXPECT_EQ(records_[0].gradient_norm, 5);  // nothing new was seen of it
}

}  // namespace
}  // namespace foreshock
