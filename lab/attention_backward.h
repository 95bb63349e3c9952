// The backward pass shared by the attention algorithms.
#ifndef FORESHOCK_LAB_ATTENTION_BACKWARD_H_
#define FORESHOCK_LAB_ATTENTION_BACKWARD_H_

#include "lab/algorithm.h"

namespace foreshock::lab {

// Where intermediate results of an algorithm live.
enum class State { kFormat, kRegisters };

// Adds delta, grad_query, grad_key and grad_value to `results`, which holds out and log_sum_exp. P is
// recomputed as exp(score - log_sum_exp), as kernels do. With State::kFormat every intermediate is stored in
// the format and gradients are accumulated in it tile by tile; with kRegisters only what enters a product is
// cast.
void attention_backward(const Tensors& inputs, const Settings& settings, State state, Arithmetic& arithmetic,
                        Tensors& results);

// The same with `probabilities` [rows][n] kept from the forward pass, as unfused attention does.
void attention_backward_from(const Tensor& probabilities, const Tensors& inputs, const Settings& settings,
                             State state, Arithmetic& arithmetic, Tensors& results);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_ATTENTION_BACKWARD_H_
