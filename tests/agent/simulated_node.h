// A node of ranks that train a deep model, as segments in one run directory, and what an agent makes of them.
#ifndef FORESHOCK_TESTS_AGENT_SIMULATED_NODE_H_
#define FORESHOCK_TESTS_AGENT_SIMULATED_NODE_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "agent/run.h"
#include "tests/agent/segment_of_a_trainer.h"

namespace foreshock {

// How the ranks of a node share a model; what they tell of it.
enum class Parallelism { kData, kTensor, kUnknown };

class SimulatedNode {
 public:
  SimulatedNode(int ranks, int layers, Parallelism parallelism) : layers_(layers) {
    for (int rank = 0; rank < ranks; ++rank) {
      trainers_.push_back(rank == 0 ? std::make_unique<SegmentOfATrainer>()
                                    : std::make_unique<SegmentOfATrainer>(trainers_[0]->directory, rank));
      describe(*trainers_.back(), rank, ranks, parallelism);
    }
    std::string error;
    auto directory = Directory::open(trainers_[0]->directory, &error);
    RunOptions options;
    options.run_id = options.label = "job";
    run_ = Run::open(options, std::move(directory), &error);
    EXPECT_NE(run_, nullptr) << error;
  }

  // Every layer of every rank is judged twice each way and shows its weights twice, and steps end; then all
  // is published.
  void train(Registry* registry) {
    run_->discover(registry);
    for (int round = 0; round < 2; ++round)
      for (int layer = 0; layer < layers_; ++layer) {
        for (auto& trainer : trainers_) {
          for (uint32_t pass : {0u, 1u}) trainer->sample(round + 1, 1 + 0x1p-8, layer, pass);
          const int64_t step = (round + 1) * layers_ + layer;  // the layers take turns
          trainer->step(step, 2.0);
          trainer->weights(step, layer, layers_, static_cast<uint64_t>(layers_));
        }
        run_->poll();
      }
    run_->finish_dead_ranks(Run::Clock::now());
    run_->publish(registry);
  }

 private:
  void describe(SegmentOfATrainer& trainer, int rank, int ranks, Parallelism parallelism) {
    segment::Identity& identity = *trainer.writer.identity();
    identity.world_size = ranks;
    identity.local_ranks = static_cast<uint32_t>(ranks);
    identity.local_rank = rank;
    std::strcpy(identity.framework, "torch 2.13.0");
    identity.data_parallel = identity.tensor_parallel = parallelism == Parallelism::kUnknown ? -1 : 0;
    if (parallelism == Parallelism::kData) identity.data_parallel = rank;
    if (parallelism == Parallelism::kTensor) identity.tensor_parallel = rank;
    identity.late_ready = 1;
    for (int n = 0; n < layers_; ++n) {
      segment::Layer& layer = trainer.writer.layers()[n];
      std::snprintf(layer.label, sizeof layer.label, "%03d", n);
      std::snprintf(layer.name, sizeof layer.name, "blocks.%d.attention.qkv.weight", n);
      layer.gradient_step = 1;
      layer.gradient_norm = 1;
      layer.ready = 1;
    }
    trainer.writer.publish_facts();
  }

  const int layers_;
  std::vector<std::unique_ptr<SegmentOfATrainer>> trainers_;
  std::unique_ptr<Run> run_;
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_AGENT_SIMULATED_NODE_H_
