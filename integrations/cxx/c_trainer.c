/* A trainer in C99 without any framework: attention forward and backward in plain loops, plain gradient
 * descent. It reports its attention calls and steps with the functions of <foreshock/annotate.h>, which
 * do nothing unless the trainer was started by `foreshock run --preload -- c_trainer`, since it is not linked.
 *   c_trainer [STEPS [DUMP_FILE]]
 * The task: two layers of causal attention with residuals learn to output, at each position, the mean of the
 * inputs up to this position. The dump has every loss and the final weights, to compare runs bit by bit. The
 * exit status is 0 if the loss has fallen. */
#include <foreshock/annotate.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LENGTH: number of positions. WIDTH: number of values at a position. PROJECTIONS: q, k and v. */
enum { LAYERS = 2, LENGTH = 32, WIDTH = 8, PROJECTIONS = 3 };

typedef float matrix[WIDTH][WIDTH];
typedef float rows[LENGTH][WIDTH];

/* One layer: q, k, v = x W; y = x + attention(q, k, v). Index 0 of the projections is q, 1 is k, 2 is v. */
struct layer {
  matrix weight[PROJECTIONS], gradient[PROJECTIONS];
  rows input, projected[PROJECTIONS], attended, grad_projected[PROJECTIONS];
  float log_sum_exp[LENGTH]; /* for each query, the logarithm of the sum of exp(score) */
};

static struct layer layers[LAYERS];
static uint64_t random_state = 1;
static int32_t forward_op, backward_op;

static const double scale = 0.35355339059327379; /* 1 / sqrt(WIDTH) */

/* From -0.5 to 0.5, by the upper 24 bits of the linear congruential generator of Knuth's MMIX. */
static float next_random(void) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)((double)(random_state >> 40) / (1 << 24) - 0.5);
}

/* A matrix of LENGTH rows as a tensor (batch 1, head 1, position, width). */
static foreshock_tensor view(const void* data, int width) {
  foreshock_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = FORESHOCK_FP32;
  tensor.dims = 4;
  tensor.device_type = FORESHOCK_DEVICE_CPU;
  tensor.shape[0] = tensor.shape[1] = 1;
  tensor.shape[2] = LENGTH;
  tensor.shape[3] = width;
  tensor.stride[0] = tensor.stride[1] = (int64_t)LENGTH * width;
  tensor.stride[2] = width;
  tensor.stride[3] = 1;
  return tensor;
}

/* Describes an attention call for the monitor. `name`: buffer for the label of the layer, which must live
 * until the call is reported. */
static foreshock_attention_call describe(int32_t op, const struct layer* layer, char* name) {
  foreshock_attention_call call;
  memset(&call, 0, sizeof call);
  call.size = sizeof call;
  call.version = FORESHOCK_ABI_VERSION;
  call.op = op;
  call.causal = FORESHOCK_CAUSAL_TOP_LEFT;
  call.scale = scale;
  call.query = view(layer->projected[0], WIDTH);
  call.key = view(layer->projected[1], WIDTH);
  call.value = view(layer->projected[2], WIDTH);
  call.out = view(layer->attended, WIDTH);
  call.log_sum_exp = view(layer->log_sum_exp, 1);
  call.log_sum_exp.dims = 3;
  sprintf(name, "%03d", (int)(layer - layers));
  call.layer_name = name;
  return call;
}

static double score(const struct layer* layer, int i, int j) {
  double sum = 0;
  int d;
  for (d = 0; d < WIDTH; ++d) sum += (double)layer->projected[0][i][d] * layer->projected[1][j][d];
  return scale * sum;
}

/* attended[i] = the mean of the values v[j], j <= i, with weights exp(score(i, j)). */
static void attend(struct layer* layer) {
  int i, j, d;
  for (i = 0; i < LENGTH; ++i) {
    double weights = 0, sums[WIDTH] = {0};
    for (j = 0; j <= i; ++j) {
      const double weight = exp(score(layer, i, j));
      weights += weight;
      for (d = 0; d < WIDTH; ++d) sums[d] += weight * layer->projected[2][j][d];
    }
    for (d = 0; d < WIDTH; ++d) layer->attended[i][d] = (float)(sums[d] / weights);
    layer->log_sum_exp[i] = (float)log(weights);
  }
}

/* The gradients of q, k and v. The gradient of score(i, j) is p(i, j) * (grad_out[i] . v[j] - delta[i]),
 * where p is the weight divided by the sum of weights, and delta[i] = grad_out[i] . attended[i]. */
static void attend_back(struct layer* layer, rows grad_out) {
  int i, j, d;
  memset(layer->grad_projected, 0, sizeof layer->grad_projected);
  for (i = 0; i < LENGTH; ++i) {
    double delta = 0;
    for (d = 0; d < WIDTH; ++d) delta += (double)grad_out[i][d] * layer->attended[i][d];
    for (j = 0; j <= i; ++j) {
      const double probability = exp(score(layer, i, j) - layer->log_sum_exp[i]);
      double dot = 0, grad_score;
      for (d = 0; d < WIDTH; ++d) dot += (double)grad_out[i][d] * layer->projected[2][j][d];
      grad_score = scale * probability * (dot - delta);
      for (d = 0; d < WIDTH; ++d) {
        layer->grad_projected[0][i][d] += (float)(grad_score * layer->projected[1][j][d]);
        layer->grad_projected[1][j][d] += (float)(grad_score * layer->projected[0][i][d]);
        layer->grad_projected[2][j][d] += (float)(probability * grad_out[i][d]);
      }
    }
  }
}

/* Replaces the input `x` by the output. */
static void forward(struct layer* layer, rows x) {
  char name[8];
  int p, i, a, b, is_sampled; /* is_sampled: the monitor samples this call */
  memcpy(layer->input, x, sizeof(rows));
  for (p = 0; p < PROJECTIONS; ++p)
    for (i = 0; i < LENGTH; ++i)
      for (b = 0; b < WIDTH; ++b) {
        float sum = 0;
        for (a = 0; a < WIDTH; ++a) sum += x[i][a] * layer->weight[p][a][b];
        layer->projected[p][i][b] = sum;
      }
  is_sampled = foreshock_annotate_enter(forward_op, FORESHOCK_NEEDS_GRADIENT);
  attend(layer);
  if (is_sampled) {
    const foreshock_attention_call call = describe(forward_op, layer, name);
    foreshock_annotate_leave(&call);
  }
  for (i = 0; i < LENGTH; ++i)
    for (a = 0; a < WIDTH; ++a) x[i][a] += layer->attended[i][a];
}

/* Replaces the gradient `grad` of the output by that of the input. Adds to the weights' gradients. */
static void backward(struct layer* layer, rows grad) {
  char name[8];
  int p, i, a, b;
  const int is_sampled =
      foreshock_annotate_enter(backward_op, FORESHOCK_NEEDS_GRADIENT | FORESHOCK_IN_BACKWARD);
  attend_back(layer, grad);
  if (is_sampled) {
    foreshock_attention_call call = describe(backward_op, layer, name);
    call.grad_out = view(grad, WIDTH);
    call.grad_query = view(layer->grad_projected[0], WIDTH);
    foreshock_annotate_leave(&call);
  }
  for (p = 0; p < PROJECTIONS; ++p)
    for (i = 0; i < LENGTH; ++i)
      for (a = 0; a < WIDTH; ++a)
        for (b = 0; b < WIDTH; ++b) {
          layer->gradient[p][a][b] += layer->input[i][a] * layer->grad_projected[p][i][b];
          grad[i][a] += layer->grad_projected[p][i][b] * layer->weight[p][a][b];
        }
}

/* The mean squared difference between `x` and the running mean of the input. Replaces `x` by the gradient. */
static double loss_of(rows x, rows input) {
  double loss = 0, sum[WIDTH] = {0};
  int i, a;
  for (i = 0; i < LENGTH; ++i)
    for (a = 0; a < WIDTH; ++a) {
      double difference;
      sum[a] += input[i][a];
      difference = x[i][a] - sum[a] / (i + 1);
      loss += difference * difference / (LENGTH * WIDTH);
      x[i][a] = (float)(2 * difference / (LENGTH * WIDTH));
    }
  return loss;
}

/* One step of gradient descent with learning rate 0.5. Clears the gradients. */
static void descend(void) {
  float *weight, *gradient;
  int layer, n;
  for (layer = 0; layer < LAYERS; ++layer) {
    weight = &layers[layer].weight[0][0][0];
    gradient = &layers[layer].gradient[0][0][0];
    for (n = 0; n < PROJECTIONS * WIDTH * WIDTH; ++n) weight[n] -= 0.5f * gradient[n];
    memset(gradient, 0, sizeof layers[layer].gradient);
  }
}

static double train_step(void) {
  rows input, x;
  double loss;
  int i, a, layer;
  for (i = 0; i < LENGTH; ++i)
    for (a = 0; a < WIDTH; ++a) input[i][a] = 2 * next_random();
  memcpy(x, input, sizeof x);
  for (layer = 0; layer < LAYERS; ++layer) forward(&layers[layer], x);
  loss = loss_of(x, input);
  for (layer = LAYERS - 1; layer >= 0; --layer) backward(&layers[layer], x);
  descend();
  return loss;
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 200;
  FILE* dump = argc > 2 ? fopen(argv[2], "wb") : NULL;
  double first = 0, last = 0;
  int step, layer, n;
  forward_op = foreshock_annotate_register_op("c_attention", FORESHOCK_FORWARD);
  backward_op = foreshock_annotate_register_op("c_attention_backward", FORESHOCK_BACKWARD);
  for (layer = 0; layer < LAYERS; ++layer)
    for (n = 0; n < PROJECTIONS * WIDTH * WIDTH; ++n) (&layers[layer].weight[0][0][0])[n] = next_random();
  for (step = 1; step <= steps; ++step) {
    const double loss = train_step();
    foreshock_annotate_step(step, loss);
    if (dump) fwrite(&loss, sizeof loss, 1, dump);
    last = step == 1 ? loss : 0.9 * last + 0.1 * loss; /* a running mean, since batches differ */
    if (step == 1) first = loss;
  }
  printf("loss %.6f -> %.6f\n", first, last);
  if (dump) {
    for (layer = 0; layer < LAYERS; ++layer)
      fwrite(layers[layer].weight, sizeof layers[layer].weight, 1, dump);
    fclose(dump);
  }
  return last < first ? 0 : 1;
}
