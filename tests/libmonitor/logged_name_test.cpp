#include <gtest/gtest.h>

#include <string>

#include "libmonitor/step_numbers.h"

namespace foreshock {
namespace {

TEST(LoggedName, LossesOfTheTraining) {
  for (const char* name : {"loss", "Loss", "train/loss", "train_loss", "training-loss", "Train / Loss",
                           "train_loss_step", "lm loss", "Train/Samples/train_loss", "loss/train",
                           "loss/train/total", "loss_metrics/global_avg_loss", "/loss/"})
    EXPECT_EQ(logged_as(name), Logged::kLoss) << name;
}

TEST(LoggedName, NormsOfTheGradient) {
  for (const char* name :
       {"grad_norm", "grad-norm", "train/grad_norm", "gradient norm", "train_gradient_norm"})
    EXPECT_EQ(logged_as(name), Logged::kGradientNorm) << name;
}

TEST(LoggedName, WhatMayBeAnythingElse) {
  for (const char* name : {"eval_loss", "val/loss", "valid loss", "test/loss", "train/val_loss", "loss_scale",
                           "lossy", "train", "train/", "", " ", "//", "auxiliary loss", "train_loss_epoch",
                           "learning_rate", "grad_norm_clipped", "loss vs samples", "grad_norm/layer.3"})
    EXPECT_EQ(logged_as(name), Logged::kOther) << name;
  EXPECT_EQ(logged_as(nullptr), Logged::kOther);
  EXPECT_EQ(logged_as(("loss" + std::string(100, 'x')).c_str()), Logged::kOther);
  EXPECT_EQ(logged_as((std::string(100, ' ') + "loss").c_str()), Logged::kLoss);
}

}  // namespace
}  // namespace foreshock
