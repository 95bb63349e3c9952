// A libtransformer_engine.so on the host: attention of fp32 by plain loops, in the layouts of the real one.
#include "stand_in.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#ifdef TE_HANDLES_ARE_NUMBERS
namespace {
std::vector<Tensor*> g_table;
}

NVTETensor stand_in_handle(Tensor* tensor) {
  const auto found = std::find(g_table.begin(), g_table.end(), tensor);
  const size_t number = found - g_table.begin() + 1;
  if (found == g_table.end()) g_table.push_back(tensor);
  return reinterpret_cast<NVTETensor>(number);
}

Tensor* stand_in_tensor(NVTETensor handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  return number != 0 && number <= g_table.size() ? g_table[number - 1] : nullptr;
}
#else
NVTETensor stand_in_handle(Tensor* tensor) { return tensor; }

Tensor* stand_in_tensor(NVTETensor handle) { return handle; }
#endif

namespace {

uint64_t g_digest = 14695981039346656037u;

void digest(const void* bytes, size_t count) {
  for (size_t n = 0; n < count; ++n)
    g_digest = (g_digest ^ static_cast<const unsigned char*>(bytes)[n]) * 1099511628211u;
}

template <class T>
void digest_argument(const T& value) {
  digest(&value, sizeof value);
}
void digest_argument(const NVTETensor& tensor) {
  const Tensor* told = stand_in_tensor(tensor);
  const int id = told != nullptr ? told->id : -1;
  digest(&id, sizeof id);
}
void digest_argument(const NVTETensorPack* const& pack) { digest(&pack->size, sizeof pack->size); }
void digest_argument(NVTETensorPack* const& pack) { digest(&pack->size, sizeof pack->size); }

// Where (batch, head, position) of a tensor begins. `heads` are its own.
struct Strides {
  size_t batch, head, position;
};

enum class Role { kQuery, kKey };

Strides plain(int format, size_t b, size_t h, size_t s, size_t d) {
  if (format == 0) return {h * d, d, b * h * d};  // sbhd
  if (format == 1) return {s * h * d, d, h * d};  // bshd
  if (format == 7) return {h * s * d, s * d, d};  // bhsd
  throw std::runtime_error("format");
}

Strides strides_of(int layout, Role role, size_t b, size_t h, size_t s, size_t d) {
  const bool is_query = role == Role::kQuery;
  switch (layout) {
    case 0:
      return {3 * h * d, d, b * 3 * h * d};
    case 1:
      return {3 * h * d, 3 * d, b * 3 * h * d};
    case 2:
      return is_query ? plain(0, b, h, s, d) : Strides{2 * h * d, d, b * 2 * h * d};
    case 3:
      return is_query ? plain(0, b, h, s, d) : Strides{2 * h * d, 2 * d, b * 2 * h * d};
    case 4:
      return plain(0, b, h, s, d);
    case 5:
      return {s * 3 * h * d, d, 3 * h * d};
    case 6:
      return {s * 3 * h * d, 3 * d, 3 * h * d};
    case 7:
      return is_query ? plain(1, b, h, s, d) : Strides{s * 2 * h * d, d, 2 * h * d};
    case 8:
      return is_query ? plain(1, b, h, s, d) : Strides{s * 2 * h * d, 2 * d, 2 * h * d};
    case 15:
      return plain(is_query ? 0 : 1, b, h, s, d);
    case 16:
      return plain(is_query ? 1 : 0, b, h, s, d);
    case 25:
      return plain(7, b, h, s, d);
    default:
      return plain(1, b, h, s, d);  // what is not described: some layout or other
  }
}

int format_of(int layout) { return layout == 25 ? 7 : layout <= 4 || layout == 15 ? 0 : 1; }

struct Sizes {
  size_t batch, heads, kv_heads, queries, keys, dim;
};

// By the order of the query's axes.
Sizes sizes_of(int layout, const Tensor& query, const Tensor& key) {
  const auto read = [](int format, const Tensor& t, size_t* b, size_t* h, size_t* s) {
    *b = t.shape[format == 0 ? 1 : 0];
    *s = t.shape[format == 0 ? 0 : format == 1 ? 1 : 2];
    *h = t.shape[format == 7 ? 1 : 2];
  };
  Sizes sizes = {};
  size_t batch = 0;
  const int key_format = layout == 15 ? 1 : layout == 16 ? 0 : format_of(layout);
  read(format_of(layout), query, &sizes.batch, &sizes.heads, &sizes.queries);
  read(key_format, key, &batch, &sizes.kv_heads, &sizes.keys);
  sizes.dim = query.shape[3];
  return sizes;
}

struct Rows {
  float* data;
  Strides strides;
  float* at(size_t b, size_t h, size_t s) const {
    return data + b * strides.batch + h * strides.head + s * strides.position;
  }
};

struct Attention {
  Sizes sizes;
  Rows query, key, value;
  double scale;
  int mask;

  bool sees(size_t i, size_t j) const {
    if (mask == 2 || mask == 3) return j <= i;
    if (mask == 4 || mask == 5) return j + sizes.queries <= i + sizes.keys;
    return true;
  }
  double score(size_t b, size_t h, size_t i, size_t j) const {
    const float* q = query.at(b, h, i);
    const float* k = key.at(b, h / (sizes.heads / sizes.kv_heads), j);
    double sum = 0;
    for (size_t n = 0; n < sizes.dim; ++n) sum += double{q[n]} * k[n];
    return scale * sum;
  }
  const float* value_of(size_t b, size_t h, size_t j) const {
    return value.at(b, h / (sizes.heads / sizes.kv_heads), j);
  }
};

Rows rows(const Tensor* tensor, const Strides& strides) {
  return {static_cast<float*>(tensor->data), strides};
}

Attention attention_of(const Tensor& q, const Tensor& k, const Tensor& v, int layout, int mask, float scale) {
  const Sizes sizes = sizes_of(layout, q, k);
  const Strides keys = strides_of(layout, Role::kKey, sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim);
  const Strides queries =
      strides_of(layout, Role::kQuery, sizes.batch, sizes.heads, sizes.queries, sizes.dim);
  return {sizes, rows(&q, queries), rows(&k, keys), rows(&v, keys), scale, mask};
}

void forward(const Attention& a, Rows out, float* log_sum_exp) {
  for (size_t b = 0; b < a.sizes.batch; ++b)
    for (size_t h = 0; h < a.sizes.heads; ++h)
      for (size_t i = 0; i < a.sizes.queries; ++i) {
        double weights = 0;
        std::vector<double> sums(a.sizes.dim);
        for (size_t j = 0; j < a.sizes.keys; ++j) {
          if (!a.sees(i, j)) continue;
          const double weight = std::exp(a.score(b, h, i, j));
          weights += weight;
          for (size_t n = 0; n < a.sizes.dim; ++n) sums[n] += weight * a.value_of(b, h, j)[n];
        }
        for (size_t n = 0; n < a.sizes.dim; ++n) out.at(b, h, i)[n] = static_cast<float>(sums[n] / weights);
        if (log_sum_exp != nullptr)
          log_sum_exp[(b * a.sizes.heads + h) * a.sizes.queries + i] = static_cast<float>(std::log(weights));
      }
}

void backward(const Attention& a, Rows out, Rows grad_out, const float* log_sum_exp, Rows grad_query,
              Rows grad_key, Rows grad_value) {
  const size_t keys = a.sizes.batch * a.sizes.kv_heads * a.sizes.keys,
               group = a.sizes.heads / a.sizes.kv_heads;
  std::vector<double> of_key(keys * a.sizes.dim), of_value(keys * a.sizes.dim);
  const auto place = [&](size_t b, size_t kv_head, size_t j) {
    return ((b * a.sizes.kv_heads + kv_head) * a.sizes.keys + j) * a.sizes.dim;
  };
  for (size_t b = 0; b < a.sizes.batch; ++b)
    for (size_t h = 0; h < a.sizes.heads; ++h)
      for (size_t i = 0; i < a.sizes.queries; ++i) {
        double delta = 0;
        std::vector<double> sums(a.sizes.dim);
        for (size_t n = 0; n < a.sizes.dim; ++n)
          delta += double{grad_out.at(b, h, i)[n]} * out.at(b, h, i)[n];
        for (size_t j = 0; j < a.sizes.keys; ++j) {
          if (!a.sees(i, j)) continue;
          const double p =
              std::exp(a.score(b, h, i, j) - log_sum_exp[(b * a.sizes.heads + h) * a.sizes.queries + i]);
          double dot = 0;
          for (size_t n = 0; n < a.sizes.dim; ++n)
            dot += double{grad_out.at(b, h, i)[n]} * a.value_of(b, h, j)[n];
          const float* k = a.key.at(b, h / group, j);
          for (size_t n = 0; n < a.sizes.dim; ++n) {
            sums[n] += a.scale * p * (dot - delta) * k[n];
            of_key[place(b, h / group, j) + n] += a.scale * p * (dot - delta) * a.query.at(b, h, i)[n];
            of_value[place(b, h / group, j) + n] += p * grad_out.at(b, h, i)[n];
          }
        }
        for (size_t n = 0; n < a.sizes.dim; ++n) grad_query.at(b, h, i)[n] = static_cast<float>(sums[n]);
      }
  for (size_t b = 0; b < a.sizes.batch; ++b)
    for (size_t h = 0; h < a.sizes.kv_heads; ++h)
      for (size_t j = 0; j < a.sizes.keys; ++j)
        for (size_t n = 0; n < a.sizes.dim; ++n) {
          grad_key.at(b, h, j)[n] = static_cast<float>(of_key[place(b, h, j) + n]);
          grad_value.at(b, h, j)[n] = static_cast<float>(of_value[place(b, h, j) + n]);
        }
}

// As the real one answers a call without a workspace.
bool asks(NVTETensor handle) {
  Tensor* workspace = stand_in_tensor(handle);
  if (workspace->data != nullptr) return false;
  workspace->dims = 1;
  workspace->shape[0] = 64;
  return true;
}

}  // namespace

#define DIGEST(type, name) digest_argument(name);

extern "C" {

uint64_t stand_in_digest() { return g_digest; }

#ifndef TE_ON_A_DEVICE
// Tells the monitor that its memory is the host's, which that of no TransformerEngine is.
int foreshock_stand_in_of_transformer_engine = 1;
#endif

void* nvte_tensor_data(NVTETensor handle) {
  const Tensor* tensor = stand_in_tensor(handle);
  return tensor != nullptr ? tensor->data : nullptr;
}

int nvte_tensor_type(NVTETensor handle) {
  const Tensor* tensor = stand_in_tensor(handle);
  return tensor != nullptr ? tensor->type : kFloat32;
}

NVTEShape nvte_tensor_shape(NVTETensor handle) {
  const Tensor* tensor = stand_in_tensor(handle);
  if (tensor == nullptr) throw std::runtime_error("no such tensor");
  NVTEShape shape = {};
  shape.ndim = tensor->dims;
#if TE_MINOR >= 4
  std::memcpy(shape.data, tensor->shape, sizeof shape.data);
#else
  shape.data = tensor->shape;
#endif
  return shape;
}

void nvte_fused_attn_fwd(FORWARD_ARGUMENTS(PARAMETER) void* stream) {
  FORWARD_ARGUMENTS(DIGEST)
  digest_argument(stream);
  if (asks(workspace)) {
    Aux->size = 2;
    return;
  }
  if (stand_in_tensor(rng_state)->id == 666) throw std::runtime_error("as NVTE_CHECK does");
  const Attention a = attention_of(*stand_in_tensor(Q), *stand_in_tensor(K), *stand_in_tensor(V), qkv_layout,
                                   mask_type, attn_scale);
  int out_format = format_of(qkv_layout);
  IF15(out_format = o_format;)
  float* stats = is_training ? static_cast<float*>(stand_in_tensor(Aux->tensors[0])->data) : nullptr;
  forward(
      a,
      rows(stand_in_tensor(O), plain(out_format, a.sizes.batch, a.sizes.heads, a.sizes.queries, a.sizes.dim)),
      stats);
}

void nvte_fused_attn_bwd(BACKWARD_ARGUMENTS(PARAMETER) void* stream) {
  BACKWARD_ARGUMENTS(DIGEST)
  digest_argument(stream);
  if (asks(workspace)) return;
  const Attention a = attention_of(*stand_in_tensor(Q), *stand_in_tensor(K), *stand_in_tensor(V), qkv_layout,
                                   mask_type, attn_scale);
  int out_format = format_of(qkv_layout), grad_out_format = out_format, grad_layout = qkv_layout;
  IF15(out_format = o_format; grad_out_format = do_format; grad_layout = dqkv_layout;)
  const Sizes& s = a.sizes;
  const Strides keys = strides_of(grad_layout, Role::kKey, s.batch, s.kv_heads, s.keys, s.dim);
  backward(
      a, rows(stand_in_tensor(O), plain(out_format, s.batch, s.heads, s.queries, s.dim)),
      rows(stand_in_tensor(dO), plain(grad_out_format, s.batch, s.heads, s.queries, s.dim)),
      static_cast<const float*>(stand_in_tensor(Aux->tensors[0])->data),
      rows(stand_in_tensor(dQ), strides_of(grad_layout, Role::kQuery, s.batch, s.heads, s.queries, s.dim)),
      rows(stand_in_tensor(dK), keys), rows(stand_in_tensor(dV), keys));
}
}
