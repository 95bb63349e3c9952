#include "hand_attention.h"

#include <foreshock/annotate.h>
#include <math.h>
#include <string.h>

/* Of each thread its own. */
static __thread float query[HAND_HEADS][HAND_LENGTH][HAND_DIM], key[HAND_LENGTH][HAND_DIM];
static __thread float value[HAND_LENGTH][HAND_DIM], out[HAND_HEADS][HAND_LENGTH][HAND_DIM];
static __thread float log_sum_exp[HAND_HEADS][HAND_LENGTH], grad_out[HAND_HEADS][HAND_LENGTH][HAND_DIM];
static __thread float grad_query[HAND_HEADS][HAND_LENGTH][HAND_DIM];
static __thread uint64_t random_state = 1;
static double planted = 1; /* what the forward results are multiplied by */
static int32_t forward_op = -1, backward_op = -1;

static const double scale = 0.35355339059327379; /* 1 / sqrt(8) */

static float next_random(void) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)((double)(random_state >> 40) / (1 << 24) - 0.5);
}

static void fill(float* to, int count) {
  int n;
  for (n = 0; n < count; ++n) to[n] = next_random();
}

static double score(int h, int i, int j) {
  double sum = 0;
  int d;
  for (d = 0; d < HAND_DIM; ++d) sum += (double)query[h][i][d] * key[j][d];
  return scale * sum;
}

static void attend(int h, int i) {
  double weights = 0, sums[HAND_DIM] = {0};
  int d, j;
  for (j = 0; j <= i; ++j) {
    const double weight = exp(score(h, i, j));
    weights += weight;
    for (d = 0; d < HAND_DIM; ++d) sums[d] += weight * value[j][d];
  }
  for (d = 0; d < HAND_DIM; ++d) out[h][i][d] = (float)(planted * (sums[d] / weights));
  log_sum_exp[h][i] = (float)log(weights);
}

static void attend_back(int h, int i) {
  double delta = 0, sums[HAND_DIM] = {0};
  int d, j;
  for (d = 0; d < HAND_DIM; ++d) delta += (double)grad_out[h][i][d] * out[h][i][d];
  for (j = 0; j <= i; ++j) {
    const double probability = exp(score(h, i, j) - log_sum_exp[h][i]);
    double dot = 0;
    for (d = 0; d < HAND_DIM; ++d) dot += (double)grad_out[h][i][d] * value[j][d];
    for (d = 0; d < HAND_DIM; ++d) sums[d] += scale * probability * (dot - delta) * key[j][d];
  }
  for (d = 0; d < HAND_DIM; ++d) grad_query[h][i][d] = (float)sums[d];
}

static void each_row(void (*row)(int, int)) {
  int h, i;
  for (h = 0; h < HAND_HEADS; ++h)
    for (i = 0; i < HAND_LENGTH; ++i) row(h, i);
}

static foreshock_tensor view(const void* data, int heads, int dim) {
  foreshock_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = FORESHOCK_FP32;
  tensor.dims = 4;
  tensor.device_type = FORESHOCK_DEVICE_CPU;
  tensor.shape[0] = 1;
  tensor.shape[1] = heads;
  tensor.shape[2] = HAND_LENGTH;
  tensor.shape[3] = dim;
  tensor.stride[3] = 1;
  tensor.stride[2] = dim;
  tensor.stride[1] = HAND_LENGTH * dim;
  tensor.stride[0] = heads * HAND_LENGTH * dim;
  return tensor;
}

static foreshock_attention_call describe(int32_t op) {
  foreshock_attention_call call;
  memset(&call, 0, sizeof call);
  call.size = sizeof call;
  call.version = FORESHOCK_ABI_VERSION;
  call.op = op;
  call.causal = FORESHOCK_CAUSAL_TOP_LEFT;
  call.scale = scale;
  call.query = view(query, HAND_HEADS, HAND_DIM);
  call.key = view(key, 1, HAND_DIM);
  call.value = view(value, 1, HAND_DIM);
  call.out = view(out, HAND_HEADS, HAND_DIM);
  call.log_sum_exp = view(log_sum_exp, HAND_HEADS, 1);
  call.log_sum_exp.dims = 3;
  return call;
}

void hand_begin(void) {
  if (forward_op >= 0) return;
  forward_op = foreshock_annotate_register_op("hand_forward", FORESHOCK_FORWARD);
  backward_op = foreshock_annotate_register_op("hand_backward", FORESHOCK_BACKWARD);
}

int hand_forward(int needs_gradient) {
  const int wanted = foreshock_annotate_enter(forward_op, needs_gradient ? FORESHOCK_NEEDS_GRADIENT : 0);
  fill(&query[0][0][0], HAND_HEADS * HAND_LENGTH * HAND_DIM);
  fill(&key[0][0], HAND_LENGTH * HAND_DIM);
  fill(&value[0][0], HAND_LENGTH * HAND_DIM);
  each_row(attend);
  if (wanted) {
    const foreshock_attention_call call = describe(forward_op);
    foreshock_annotate_leave(&call);
  }
  return wanted;
}

int hand_backward(void) {
  const int wanted = foreshock_annotate_enter(backward_op, FORESHOCK_NEEDS_GRADIENT | FORESHOCK_IN_BACKWARD);
  fill(&grad_out[0][0][0], HAND_HEADS * HAND_LENGTH * HAND_DIM);
  each_row(attend_back);
  if (wanted) {
    foreshock_attention_call call = describe(backward_op);
    call.grad_out = view(grad_out, HAND_HEADS, HAND_DIM);
    call.grad_query = view(grad_query, HAND_HEADS, HAND_DIM);
    foreshock_annotate_leave(&call);
  }
  return wanted;
}

int hand_skip(uint32_t reason) {
  const int wanted = foreshock_annotate_enter(forward_op, FORESHOCK_NEEDS_GRADIENT);
  if (wanted) foreshock_annotate_skip(forward_op, reason);
  return wanted;
}

static double sum_of(const float* values, int count) {
  double sum = 0;
  int n;
  for (n = 0; n < count; ++n) sum += values[n];
  return sum;
}

void hand_plant(double factor) { planted = factor; }

static double calls_of_a_step(int layers) {
  double loss = 0;
  int layer;
  hand_begin();
  for (layer = 0; layer < layers; ++layer) {
    hand_forward(1);
    loss += sum_of(&out[0][0][0], HAND_HEADS * HAND_LENGTH * HAND_DIM);
  }
  for (layer = 0; layer < layers; ++layer) {
    hand_backward();
    loss += sum_of(&grad_query[0][0][0], HAND_HEADS * HAND_LENGTH * HAND_DIM);
  }
  return loss;
}

double hand_step(int layers, int64_t step) {
  const double loss = calls_of_a_step(layers);
  foreshock_annotate_step(step, loss);
  return loss;
}

void hand_step_told(int layers, int64_t step, double loss, double gradient_norm) {
  foreshock_step record;
  calls_of_a_step(layers);
  memset(&record, 0, sizeof record);
  record.size = sizeof record;
  record.version = FORESHOCK_ABI_VERSION;
  record.step = step;
  record.step_source = FORESHOCK_STEP_REPORTED;
  record.loss = loss;
  record.gradient_norm = gradient_norm;
  record.given = FORESHOCK_GIVEN_LOSS | FORESHOCK_GIVEN_GRADIENT_NORM;
  if (foreshock_step_end) foreshock_step_end(&record);
}

void hand_pairs(int count) {
  int n;
  for (n = 0; n < count; ++n) {
    hand_forward(1);
    hand_backward();
  }
}
