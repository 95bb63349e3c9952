// A C++ trainer on LibTorch: a small GPT for tests. `foreshock run --preload -- libtorch_trainer` monitors
// it. With --annotate it also reports layer names, gradients and steps itself, by functions of
// foreshock/libtorch.h and annotate.h.
//   libtorch_trainer [--steps N] [--layers N] [--optimizer adamw|sgd] [--annotate] [--dump FILE]
// FILE gets every loss and the final weights, to compare runs bit by bit. Exit status 0: the loss has fallen.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <iostream>
#include <memory>

// Must come after torch's headers, which it uses but does not include.
#include <foreshock/libtorch.h>

namespace {

constexpr int64_t kVocabulary = 64, kWidth = 32, kHeads = 4, kBatch = 4, kLength = 48;

struct Block : torch::nn::Module {
  Block()
      : norm1(torch::nn::LayerNormOptions({kWidth})),
        norm2(torch::nn::LayerNormOptions({kWidth})),
        qkv(kWidth, 3 * kWidth),
        out(kWidth, kWidth),
        up(kWidth, 4 * kWidth),
        down(4 * kWidth, kWidth) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto heads_in_bf16 = [&](const torch::Tensor& part) {
      return part.view({kBatch, -1, kHeads, kWidth / kHeads}).transpose(1, 2).to(torch::kBFloat16);
    };
    const auto parts = qkv(norm1(x)).chunk(3, 2);
    const torch::Tensor attended = at::scaled_dot_product_attention(  // without mask and dropout, causal
        heads_in_bf16(parts[0]), heads_in_bf16(parts[1]), heads_in_bf16(parts[2]), {}, 0.0, true);
    x = x + out(attended.transpose(1, 2).reshape(x.sizes()).to(x.dtype()));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};

struct Gpt : torch::nn::Module {
  explicit Gpt(int layers) : embedding(kVocabulary, kWidth), head(kWidth, kVocabulary) {
    register_module("embedding", embedding);
    register_module("blocks", blocks);
    register_module("head", head);
    for (int n = 0; n < layers; ++n) blocks->push_back(std::make_shared<Block>());
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding(tokens);
    for (size_t n = 0; n < blocks->size(); ++n) x = blocks->at<Block>(n).forward(x);
    return head(x);
  }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};

// Each token is the previous one plus 5, modulo the vocabulary, so that the model can learn it. A sequence
// has one token more than the model reads, since the targets are the inputs shifted by one.
torch::Tensor next_batch() {
  return torch::remainder(torch::randint(kVocabulary, {kBatch, 1}) + 5 * torch::arange(kLength + 1),
                          kVocabulary);
}

torch::Tensor loss_of(Gpt& model, const torch::Tensor& tokens) {
  const torch::Tensor logits = model.forward(tokens.slice(1, 0, kLength));
  const torch::Tensor targets = tokens.slice(1, 1).reshape({-1});
  return torch::nll_loss(torch::log_softmax(logits.view({-1, kVocabulary}), 1), targets);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, Gpt& model) {
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.1));
  return std::make_unique<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(3e-3));
}

void dump(const std::string& path, const std::vector<double>& losses, const Gpt& model) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&file](const void* data, size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  write(losses.data(), losses.size() * sizeof losses[0]);
  for (const torch::Tensor& weight : model.parameters()) write(weight.const_data_ptr(), weight.nbytes());
}

struct Options {
  int steps = 40, layers = 3;
  bool annotate = false;
  std::string optimizer = "adamw", dump;
};

Options read_options(int count, char** words) {
  Options options;
  for (int n = 1; n < count; ++n) {
    const std::string word = words[n];
    const std::string value = n + 1 < count ? words[n + 1] : "";
    if (word == "--annotate") {
      options.annotate = true;
      continue;
    }
    if (word == "--steps") options.steps = std::stoi(value);
    if (word == "--layers") options.layers = std::stoi(value);
    if (word == "--optimizer") options.optimizer = value;
    if (word == "--dump") options.dump = value;
    ++n;  // skips the value
  }
  return options;
}

}  // namespace

int main(int count, char** words) {
  const Options options = read_options(count, words);
  torch::manual_seed(0);
  torch::set_num_threads(1);  // so that sums have the same order in every run
  Gpt model(options.layers);
  const auto optimizer = make_optimizer(options.optimizer, model);
  if (options.annotate) foreshock::name_layers(model);
  std::vector<double> losses;
  for (int step = 1; step <= options.steps; ++step) {
    const torch::Tensor loss = loss_of(model, next_batch());
    optimizer->zero_grad();
    loss.backward();
    losses.push_back(loss.item<double>());
    if (options.annotate) foreshock::observe_gradients(model);
    torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer->step();
    if (options.annotate) foreshock_annotate_step(step, losses.back());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << std::endl;
  if (!options.dump.empty()) dump(options.dump, losses, model);
  return losses.back() < losses.front() ? 0 : 1;
}
