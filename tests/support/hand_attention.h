/* A trainer without a framework: attention in plain loops, told to the monitor by hand through
 * <foreshock/annotate.h>. C99. Compiled into small programs, and as a shared library that Python drives
 * (hand_trainer.py).
 */
#ifndef FORESHOCK_TESTS_SUPPORT_HAND_ATTENTION_H_
#define FORESHOCK_TESTS_SUPPORT_HAND_ATTENTION_H_

#include <stdint.h>

/* Heads read one kv-head together; positions see those before them. */
enum { HAND_HEADS = 2, HAND_LENGTH = 24, HAND_DIM = 8 };

/* Registers the two operations, once per process. */
void hand_begin(void);

/* One forward call. A call that needs gradients shows the monitor that this process trains. Returns 1 when
 * the monitor wanted it described, else 0. */
int hand_forward(int needs_gradient);

/* The backward call of the last forward call. */
int hand_backward(void);

/* As a forward call, but when it is wanted it ends with foreshock_attention_skip and `reason`. */
int hand_skip(uint32_t reason);

/* `layers` forward calls, as many backward, then the end of step `step` (-1: count on). Returns the loss,
 * which depends on every result and so tells whether anything has changed them. */
double hand_step(int layers, int64_t step);

/* The forward results of all threads are off by this factor from now on; 1: none. */
void hand_plant(double factor);

/* A step of the same calls whose loss and gradient norm are what the caller says. */
void hand_step_told(int layers, int64_t step, double loss, double gradient_norm);

/* `count` forward calls, each followed by its backward; may run in several threads at once. */
void hand_pairs(int count);

#endif /* FORESHOCK_TESTS_SUPPORT_HAND_ATTENTION_H_ */
