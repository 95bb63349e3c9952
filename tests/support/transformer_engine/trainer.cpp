// A trainer whose attention is TransformerEngine's: STEPS CASE..., each case one layer:
// "layout=9,mask=2,...". Prints a digest of every result and of every argument that has arrived.
#include <foreshock/annotate.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "stand_in.h"

namespace {

uint64_t g_random = 1, g_digest = 14695981039346656037u;

float next_random() {
  g_random = g_random * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<double>(g_random >> 40) / (1 << 24) - 0.5);
}

class Case {
 public:
  explicit Case(const char* text) {
    for (const char* at = text; *at != '\0';) {
      const char* equals = std::strchr(at, '=');
      const std::string name(at, equals);
      values_[name] = std::strtod(equals + 1, const_cast<char**>(&at));
      if (*at == ',') ++at;
    }
  }
  double number(const char* name, double fallback) const {
    const auto found = values_.find(name);
    return found != values_.end() ? found->second : fallback;
  }
  int whole(const char* name, int fallback) const { return static_cast<int>(number(name, fallback)); }

 private:
  std::map<std::string, double> values_;
};

int g_ids = 0;

struct Held {
  std::vector<float> values;
  Tensor tensor = {};
};

class Layer {
 public:
  explicit Layer(const Case& given)
      : case_(given),
        layout_(given.whole("layout", 9)),
        batch_(2),
        heads_(given.whole("heads", 4)),
        kv_heads_(given.whole("kv_heads", heads_)),
        queries_(given.whole("queries", 20)),
        keys_(given.whole("keys", queries_)) {
    const int key_format = layout_ == 15 ? 1 : layout_ == 16 ? 0 : format();
    make(&o_, given.whole("o_format", format()), heads_, queries_);
    make(&do_, given.whole("do_format", format()), heads_, queries_);
    make(&stats_, 7, heads_, queries_, 1);
    pack_of_three_or_two(key_format);
    const int grad_layout = given.whole("dqkv_layout", layout_);
    const int grads_packed = grad_layout <= 1 || grad_layout == 5 || grad_layout == 6 ? 3 : 1;
    make(&dq_,
         grad_layout == 25                       ? 7
         : grad_layout <= 4 || grad_layout == 15 ? 0
                                                 : 1,
         heads_, queries_, kDim, grads_packed);
    for (Held* held : {&dk_, &dv_})
      make(held,
           grad_layout == 25                       ? 7
           : grad_layout <= 4 || grad_layout == 16 ? 0
                                                   : 1,
           kv_heads_, keys_, kDim, 3);  // room for rows that lie between those of others
    for (Held* held : {&small_, &rng_}) make(held, 7, 1, 1, 2);
    rng_.tensor.id = given.whole("rng", rng_.tensor.id);
    if (given.whole("fp8", 0) != 0) q_.type = k_.type = v_.type = kFloat8;
    // The bias's handle of several versions lies about its format; it is never read.
  }

  void forward() {
    refill();
    ForwardArguments a;
    a.Q = stand_in_handle(&q_), a.K = stand_in_handle(&k_), a.V = stand_in_handle(&v_),
    a.O = stand_in_handle(&o_.tensor), a.S = a.Bias = stand_in_handle(&small_.tensor);
    a.cu_seqlens_q = a.cu_seqlens_kv = a.cu_seqlens_q_padded = a.cu_seqlens_kv_padded =
        stand_in_handle(&small_.tensor);
    a.rng_state = stand_in_handle(&rng_.tensor);
    IF2(a.page_table_k = a.page_table_v = stand_in_handle(&small_.tensor);)
    IF8(a.SoftmaxOffset = stand_in_handle(&small_.tensor);
        a.softmax_type = NVTE_Softmax_Type(case_.whole("softmax", 0));)
    IF9(a.return_max_logit = case_.whole("max", 0) != 0;)
    IF15(a.o_format = NVTE_QKV_Format(case_.whole("o_format", format()));
         a.scale_inv_format = NVTE_QKV_Format(8);)
    a.is_training = case_.whole("training", 1) != 0;
    fill_common(&a);
    NVTETensorPack pack = {};
    pack.tensors[0] = stand_in_handle(&stats_.tensor);
    pack.tensors[1] = stand_in_handle(&rng_.tensor);
    a.Aux = &pack;
    call_twice(
        [&a] {
          const ForwardArguments& given = a;
#define GIVEN(type, name) given.name,
          nvte_fused_attn_fwd(FORWARD_ARGUMENTS(GIVEN) given.stream);
        },
        &a.workspace);
    add(o_), add(stats_);
  }

  void backward() {
    if (case_.whole("training", 1) == 0) return;
    for (float& value : do_.values) value = next_random();
    BackwardArguments a;
    a.Q = stand_in_handle(&q_), a.K = stand_in_handle(&k_), a.V = stand_in_handle(&v_),
    a.O = stand_in_handle(&o_.tensor), a.dO = stand_in_handle(&do_.tensor),
    a.dQ = stand_in_handle(&dq_.tensor);
    a.dK = stand_in_handle(&dk_.tensor), a.dV = stand_in_handle(&dv_.tensor);
    a.S = a.dP = a.dBias = stand_in_handle(&small_.tensor);
    a.cu_seqlens_q = a.cu_seqlens_kv = a.cu_seqlens_q_padded = a.cu_seqlens_kv_padded =
        stand_in_handle(&small_.tensor);
    IF8(a.dSoftmaxOffset = stand_in_handle(&small_.tensor);
        a.softmax_type = NVTE_Softmax_Type(case_.whole("softmax", 0));)
    IF15(a.o_format = NVTE_QKV_Format(case_.whole("o_format", format()));
         a.do_format = NVTE_QKV_Format(case_.whole("do_format", format()));
         a.dqkv_layout = NVTE_QKV_Layout(case_.whole("dqkv_layout", layout_));
         a.scale_inv_format = a.do_scale_inv_format = NVTE_QKV_Format(8);)
    a.deterministic = true;
    fill_common(&a);
    NVTETensorPack pack = {};
    pack.tensors[0] = stand_in_handle(&stats_.tensor);
    pack.tensors[1] = stand_in_handle(&rng_.tensor);
    pack.size = 2;
    a.Aux = &pack;
    call_twice(
        [&a] {
          const BackwardArguments& given = a;
          nvte_fused_attn_bwd(BACKWARD_ARGUMENTS(GIVEN) given.stream);
        },
        &a.workspace);
    add(dq_), add(dk_), add(dv_);
  }

 private:
  static constexpr int kDim = 8;

  int format() const { return layout_ == 25 ? 7 : layout_ <= 4 || layout_ == 15 ? 0 : 1; }

  void shape(Tensor* tensor, int format, int heads, int length, int dim) const {
    const size_t b = batch_, h = heads, s = length, d = dim;
    const size_t sbhd[] = {s, b, h, d}, bshd[] = {b, s, h, d}, bhsd[] = {b, h, s, d};
    std::memcpy(tensor->shape, format == 0 ? sbhd : format == 1 ? bshd : bhsd, sizeof sbhd);
    tensor->dims = 4;
    tensor->type = kFloat32;
    tensor->id = ++g_ids;
  }

  void make(Held* held, int format, int heads, int length, int dim = kDim, int room = 1) {
    held->values.assign(size_t(room) * batch_ * heads * length * dim, 0.f);
    shape(&held->tensor, format, heads, length, dim);
    held->tensor.data = held->values.data();
  }

  // Query, key and value lie in one or two allocations, as their layout packs them.
  void pack_of_three_or_two(int key_format) {
    const bool three = layout_ <= 1 || layout_ == 5 || layout_ == 6;
    const bool two = layout_ == 2 || layout_ == 3 || layout_ == 7 || layout_ == 8;
    const bool per_head = layout_ == 1 || layout_ == 3 || layout_ == 6 || layout_ == 8;
    const size_t step = size_t(per_head ? 1 : kv_heads_) * kDim;
    const size_t query = size_t(batch_) * heads_ * queries_ * kDim,
                 key = size_t(batch_) * kv_heads_ * keys_ * kDim;
    qkv_.assign(query + 2 * key, 0.f);
    shape(&q_, format(), heads_, queries_, kDim);
    shape(&k_, key_format, kv_heads_, keys_, kDim);
    shape(&v_, key_format, kv_heads_, keys_, kDim);
    float* begin = qkv_.data();
    q_.data = begin;
    k_.data = begin + (three ? step : query);
    v_.data = begin + (three ? 2 * step : two ? query + step : query + key);
  }

  void refill() {
    for (float& value : qkv_) value = next_random();
  }

  template <class Arguments>
  void fill_common(Arguments* a) const {
    a->max_seqlen_q = queries_, a->max_seqlen_kv = keys_;
    a->attn_scale = 0.3f, a->dropout = static_cast<float>(case_.number("dropout", 0));
    a->qkv_layout = NVTE_QKV_Layout(layout_);
    a->bias_type = NVTE_Bias_Type(case_.whole("bias", 0));
    a->mask_type = NVTE_Mask_Type(case_.whole("mask", 2));
    a->window_left = case_.whole("left", -1), a->window_right = case_.whole("right", -1);
    IF12(a->bottom_right_diagonal = case_.whole("corner", case_.whole("mask", 2) == 4 ? 1 : 0) != 0;)
    IF99(a->temperature = 0.7; a->m0 = -1; a->m7 = INT64_MIN; a->f0 = 1.5f; a->f1 = -2.5f; a->last = -9;)
    a->stream = reinterpret_cast<void*>(0x1234);
  }

  template <class Call>
  void call_twice(Call call, NVTETensor* workspace) {
    Tensor space = {};
    space.id = 7;
    *workspace = stand_in_handle(&space);
    call();
    std::vector<char> bytes(space.shape[0]);
    space.data = bytes.data();
    call();
  }

  void add(const Held& held) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(held.values.data());
    for (size_t n = 0; n < held.values.size() * sizeof(float); ++n)
      g_digest = (g_digest ^ bytes[n]) * 1099511628211u;
  }

  Case case_;
  int layout_, batch_, heads_, kv_heads_, queries_, keys_;
  std::vector<float> qkv_;
  Tensor q_ = {}, k_ = {}, v_ = {};
  Held o_, do_, stats_, dq_, dk_, dv_, small_, rng_;
};

std::vector<std::unique_ptr<Layer>> g_layers;

}  // namespace

// For a trainer in Python, which loads this as a library.
extern "C" {
void te_add(const char* layer) { g_layers.push_back(std::make_unique<Layer>(Case(layer))); }
void te_forward(int layer) { g_layers[layer]->forward(); }
void te_backward(int layer) { g_layers[layer]->backward(); }
}

int main(int argc, char** argv) {
  for (int n = 2; n < argc; ++n) te_add(argv[n]);
  const int steps = std::atoi(argv[1]);
  int thrown = 0;
  for (int step = 1; step <= steps; ++step) {
    for (auto& layer : g_layers) {
      try {
        layer->forward();
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
    for (size_t n = g_layers.size(); n-- > 0;) g_layers[n]->backward();
    foreshock_annotate_step(step, 1.0 / step);
    usleep(50'000);  // the agent empties the ring meanwhile
  }
  std::printf("{\"results\": \"%016llx\", \"arguments\": \"%016llx\", \"thrown\": %d}\n",
              static_cast<unsigned long long>(g_digest), static_cast<unsigned long long>(stand_in_digest()),
              thrown);
}
