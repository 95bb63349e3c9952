/* foreshock/annotate.h: calls the monitor from programs that are not linked with it. Every function does
 * nothing and returns 0 (foreshock_annotate_register_op: -1) if libforeshock.so is not loaded, by preloading
 * or linking, when the program runs. <foreshock/hook.h> documents the functions that are called. Valid C99.
 *
 * To link libforeshock.so without find_package or pkg-config, pass -Wl,--no-as-needed before -lforeshock.
 * Otherwise the linker drops the library, since this header refers to it by weak references only.
 */
#ifndef FORESHOCK_ANNOTATE_H_
#define FORESHOCK_ANNOTATE_H_

#include <foreshock/hook.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weak: the address of a function is null if libforeshock.so is not loaded or is older than the function. */
extern int foreshock_enabled(void) __attribute__((weak));
extern int32_t foreshock_register_op(const char* name, uint32_t pass) __attribute__((weak));
extern int foreshock_attention_enter(int32_t op, uint32_t flags) __attribute__((weak));
extern void foreshock_attention_leave(const foreshock_attention_call* call) __attribute__((weak));
extern void foreshock_attention_skip(int32_t op, uint32_t reason) __attribute__((weak));
extern void foreshock_step_end(const foreshock_step* step) __attribute__((weak));
extern int foreshock_step_is_sampled(void) __attribute__((weak));
extern int foreshock_read_advice(foreshock_advice* advice) __attribute__((weak));
extern int foreshock_name_parameters(const foreshock_parameter* parameters, size_t count)
    __attribute__((weak));
extern void foreshock_observe_gradients(const foreshock_gradient* gradients, size_t count)
    __attribute__((weak));

#ifdef __cplusplus
}
#endif

static inline int foreshock_annotate_enabled(void) { return foreshock_enabled ? foreshock_enabled() : 0; }

static inline int32_t foreshock_annotate_register_op(const char* name, uint32_t pass) {
  return foreshock_register_op ? foreshock_register_op(name, pass) : -1;
}

static inline int foreshock_annotate_enter(int32_t op, uint32_t flags) {
  return foreshock_attention_enter ? foreshock_attention_enter(op, flags) : 0;
}

static inline void foreshock_annotate_leave(const foreshock_attention_call* call) {
  if (foreshock_attention_leave) foreshock_attention_leave(call);
}

static inline void foreshock_annotate_skip(int32_t op, uint32_t reason) {
  if (foreshock_attention_skip) foreshock_attention_skip(op, reason);
}

static inline int foreshock_annotate_step_is_sampled(void) {
  return foreshock_step_is_sampled ? foreshock_step_is_sampled() : 0;
}

static inline int foreshock_annotate_name_parameters(const foreshock_parameter* parameters, size_t count) {
  return foreshock_name_parameters ? foreshock_name_parameters(parameters, count) : 0;
}

static inline void foreshock_annotate_observe_gradients(const foreshock_gradient* gradients, size_t count) {
  if (foreshock_observe_gradients) foreshock_observe_gradients(gradients, count);
}

/* Sets size and version of *advice, then calls foreshock_read_advice and returns its result. */
static inline int foreshock_annotate_read_advice(foreshock_advice* advice) {
  if (!foreshock_read_advice) return 0;
  advice->size = sizeof *advice;
  advice->version = FORESHOCK_ABI_VERSION;
  return foreshock_read_advice(advice);
}

/* Reports that an optimizer step has ended. `step` counts from 1; -1: the monitor continues its own count. */
static inline void foreshock_annotate_step(int64_t step, double loss) {
  foreshock_step record;
  if (!foreshock_step_end) return;
  record.size = sizeof record;
  record.version = FORESHOCK_ABI_VERSION;
  record.step = step;
  record.step_source = FORESHOCK_STEP_REPORTED;
  record.loss = loss;
  record.given = FORESHOCK_GIVEN_LOSS; /* of the optional fields, only the loss is set */
  record.reserved = record.reserved2 = 0;
  record.learning_rate = record.gradient_norm = 0;
  record.batch_id = record.prepare_ns = 0;
  foreshock_step_end(&record);
}

#endif /* FORESHOCK_ANNOTATE_H_ */
