#include <gtest/gtest.h>

#include "agent/record_lines.h"
#include "exporters/record.h"

namespace foreshock {
namespace {

TensorSnapshot sharded() {
  TensorSnapshot snapshot;
  snapshot.key.name = std::string(1, 'w');
  snapshot.elements = 8;
  snapshot.whole_elements = 16;
  snapshot.parts = {{{2, 0, 0, 0}, {1, 4, 1, 1}}, {{0, 0, 0, 0}, {1, 4, 1, 1}}};
  snapshot.stored = std::string("bytes");
  return snapshot;
}

TEST(WeightLines, EqualPartsHaveEqualLinesInWhateverOrderRanksWereRead) {
  TensorSnapshot other = sharded();
  std::swap(other.parts[0], other.parts[1]);
  const TensorLine line = tensor_line("r", sharded(), false);
  EXPECT_EQ(line.part_offsets, (std::vector<int64_t>{0, 0, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(line.part_shapes, (std::vector<int64_t>{1, 4, 1, 1, 1, 4, 1, 1}));
  EXPECT_EQ(to_json_line(line), to_json_line(tensor_line("r", other, false)));
}

TEST(WeightLines, AHistogramIsThereWhenAskedFor) {
  EXPECT_EQ(tensor_line("r", sharded(), false).histogram, "");
  EXPECT_EQ(from_base64(tensor_line("r", sharded(), true).histogram), "bytes");
}

TEST(WeightLines, UnknownCoordinatesStayUnknown) {
  TensorSnapshot snapshot = sharded();
  snapshot.key.tensor_parallel = 3;
  const TensorLine line = tensor_line("r", snapshot, false);
  EXPECT_EQ(line.tensor_parallel, 3);
  EXPECT_FALSE(line.pipeline_parallel || line.expert_parallel || line.attempt);
  EXPECT_EQ(line.scope, "node");
}

TEST(WeightLines, OfALateReplicaOnlyThatItIsOddIsTold) {
  TensorSnapshot late;
  late.key.name = "w";
  late.step = 8;
  late.interval = 4;
  late.odd_ranks = {1};
  const TensorLine line = tensor_line("r", late, true);
  EXPECT_EQ(line.interval_steps, 4u);
  EXPECT_EQ(line.odd_ranks, std::vector<int64_t>{1});
  EXPECT_FALSE(line.elements || line.parts || line.ranks || line.rms || line.update_mean_abs);
  EXPECT_FALSE(line.previous_step || line.wasserstein_previous || line.wasserstein_initial);
  EXPECT_EQ(line.histogram + line.histogram_hash, "");
}

TEST(WeightLines, AWholeTensorHasNoParts) {
  TensorSnapshot snapshot = sharded();
  snapshot.elements = 16;
  snapshot.parts = {{{0, 0, 0, 0}, {4, 4, 1, 1}}};
  const TensorLine line = tensor_line("r", snapshot, false);
  EXPECT_EQ(line.parts, 1u);
  EXPECT_TRUE(line.part_offsets.empty());
}

}  // namespace
}  // namespace foreshock
