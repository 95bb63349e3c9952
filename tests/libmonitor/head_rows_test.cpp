#include <gtest/gtest.h>

#include "libmonitor/weights.h"

namespace foreshock {
namespace {

constexpr HeadGeometry kGrouped{.heads = 8, .kv_heads = 2, .head_dim = 16};  // 4 query heads read one key
constexpr HeadGeometry kPlain{.heads = 4, .kv_heads = 4, .head_dim = 16};

Projection of(const char* name, int64_t rows, int64_t columns, const HeadGeometry& heads) {
  const int64_t shape[] = {rows, columns};
  return projection_of(name, shape, 2, heads);
}

TEST(HeadRows, NamesOfManyModels) {
  for (const char* name :
       {"model.layers.3.self_attn.q_proj.weight", "layers.0.attention.wq.weight", "q.weight",
        "blocks.1.attn.to_q.weight", "bert.encoder.layer.0.attention.self.query.weight"})
    EXPECT_EQ(projection_kind(name), ProjectionKind::kQuery) << name;
  for (const char* name : {"model.layers.3.self_attn.k_proj.weight", "attention.self.key.weight", "x.wk"})
    EXPECT_EQ(projection_kind(name), ProjectionKind::kKey) << name;
  for (const char* name : {"blocks.0.attention.qkv.weight", "transformer.h.0.attn.c_attn.weight",
                           "encoder.layers.0.self_attn.in_proj_weight", "attn.Wqkv.weight"})
    EXPECT_EQ(projection_kind(name), ProjectionKind::kFused) << name;
  for (const char* name : {"decoder.layers.7.self_attention.linear_qkv.weight",
                           "gpt_neox.layers.0.attention.query_key_value.weight"})
    EXPECT_EQ(projection_kind(name), ProjectionKind::kGrouped) << name;
  for (const char* name : {"", ".weight", "q_proj.bias", "query_norm.weight", "o_proj.weight",
                           "v_proj.weight", "c_proj.weight", "qq.weight", "self_attn.q_proj.lora_A.weight"})
    EXPECT_EQ(projection_kind(name), ProjectionKind::kNone) << name;
}

TEST(HeadRows, SeparateProjectionsOfGroupedQueries) {
  const Projection query = of("q_proj.weight", 128, 100, kGrouped),
                   key = of("k_proj.weight", 32, 100, kGrouped);
  ASSERT_EQ(query.kind, ProjectionKind::kQuery);
  ASSERT_EQ(key.kind, ProjectionKind::kKey);
  EXPECT_EQ(query.width, 100u);
  EXPECT_EQ(first_query_output(query, kGrouped, 1), 64u);  // query head 4
  EXPECT_EQ(first_key_output(key, kGrouped, 1), 16u);
  EXPECT_TRUE(has_queries(query.kind) && !has_keys(query.kind));
  EXPECT_TRUE(has_keys(key.kind) && !has_queries(key.kind));
}

TEST(HeadRows, FusedProjections) {
  const Projection fused = of("attention.qkv.weight", 192, 100, kGrouped);
  ASSERT_EQ(fused.kind, ProjectionKind::kFused);
  EXPECT_EQ(first_query_output(fused, kGrouped, 1), 64u);
  EXPECT_EQ(first_key_output(fused, kGrouped, 0), 128u);
  EXPECT_EQ(first_key_output(fused, kGrouped, 1), 144u);
  const Projection grouped = of("linear_qkv.weight", 192, 100, kGrouped);
  ASSERT_EQ(grouped.kind, ProjectionKind::kGrouped);
  EXPECT_EQ(first_query_output(grouped, kGrouped, 1), 96u);  // after 4 queries, a key and a value
  EXPECT_EQ(first_key_output(grouped, kGrouped, 1), 160u);
  EXPECT_TRUE(has_keys(grouped.kind) && has_queries(grouped.kind));
}

// InternLM2 and gpt-fast, GPT-NeoX and ChatGLM2: one name, one shape, two orders of rows.
TEST(HeadRows, WhereModelsOfOneNameDifferNothingIsGuessed) {
  constexpr HeadGeometry kOneKey{.heads = 8, .kv_heads = 1, .head_dim = 16};
  for (const char* name : {"model.layers.0.attention.wqkv.weight", "attn.Wqkv.weight",
                           "transformer.h.0.self_attention.query_key_value.weight"}) {
    EXPECT_EQ(of(name, 192, 100, kGrouped).kind, ProjectionKind::kNone) << name;
    EXPECT_EQ(of(name, 192, 100, kPlain).kind, projection_kind(name)) << name;
    const Projection one = of(name, 160, 100, kOneKey);
    ASSERT_NE(one.kind, ProjectionKind::kNone) << name;
    EXPECT_EQ(first_query_output(one, kOneKey, 0), 0u) << name;
    EXPECT_EQ(first_key_output(one, kOneKey, 0), 128u) << name;
  }
}

TEST(HeadRows, ATransposedWeightIsKnownByItsShape) {
  const Projection conv = of("h.0.attn.c_attn.weight", 64, 192, kPlain);
  ASSERT_EQ(conv.kind, ProjectionKind::kFused);
  EXPECT_TRUE(conv.is_transposed);
  EXPECT_EQ(conv.outputs, 192u);
  EXPECT_EQ(conv.width, 64u);
  EXPECT_FALSE(of("h.0.attn.c_attn.weight", 192, 64, kPlain).is_transposed);
}

TEST(HeadRows, ShapesThatDoNotFitAreNotGuessed) {
  EXPECT_EQ(of("q_proj.weight", 256, 100, kGrouped).kind,
            ProjectionKind::kNone);  // a gate beside the queries
  EXPECT_EQ(of("qkv.weight", 0, 100, kGrouped).kind, ProjectionKind::kNone);
  EXPECT_EQ(of("o_proj.weight", 128, 128, kGrouped).kind, ProjectionKind::kNone);
  EXPECT_EQ(of("q_proj.weight", 128, 100, {}).kind, ProjectionKind::kNone);
  EXPECT_EQ(of("q_proj.weight", 128, 100, {.heads = 8, .kv_heads = 3, .head_dim = 16}).kind,
            ProjectionKind::kNone);
  const int64_t shape[] = {128, 100};
  EXPECT_EQ(projection_of("q_proj.weight", shape, 1, kGrouped).kind, ProjectionKind::kNone);
}

ProjectionOutputs outputs_of(std::initializer_list<std::pair<const char*, int64_t>> weights) {
  ProjectionOutputs outputs;
  for (const auto& [name, rows] : weights) {
    const int64_t shape[] = {rows, 64};
    outputs.add(name, shape, 2);
  }
  return outputs;
}

TEST(HeadRows, RepeatedKeysAreToldByTheirProjections) {
  constexpr HeadGeometry kRepeated{.heads = 8, .kv_heads = 8, .head_dim = 16};
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.k_proj.weight", 32}, {"b.k_proj.weight", 32}})),
            kGrouped);
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.qkv.weight", (8 + 2 * 2) * 16}})), kGrouped);
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.qkv.weight", 3 * 8 * 16}})), kRepeated);
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.qkv.weight", (8 + 3) * 16}})), kRepeated);
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.k_proj.weight", 128}})), kRepeated);
  EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({})), kRepeated);
  for (const int64_t rows : {33, 48, 256})
    EXPECT_EQ(with_kv_heads_of_model(kRepeated, outputs_of({{"a.k_proj.weight", rows}})), kRepeated) << rows;
  EXPECT_EQ(with_kv_heads_of_model(
                kRepeated, outputs_of({{"a.k_proj.weight", 32}, {"b.k_proj.weight", 16}, {"c.wk", 32}})),
            kRepeated)
      << "layers that differ";
  EXPECT_EQ(with_kv_heads_of_model(kGrouped, outputs_of({{"a.k_proj.weight", 64}})), kGrouped) << "as is";
  EXPECT_EQ(with_kv_heads_of_model({}, outputs_of({{"a.k_proj.weight", 64}})), HeadGeometry{});
}

}  // namespace
}  // namespace foreshock
