/* A program compiled against another hook.h, whose structs are shorter. Prints 1 for every call that was wanted. */
#include <foreshock/annotate.h>
#include <stdio.h>
#include <string.h>

/* foreshock_attention_call ends with `layer_identity`. */
enum { OLD_CALL = offsetof(foreshock_attention_call, layer_name) };

static float rows[3][16][8];

/* Behind the older struct lie bytes that mean nothing: they must not be read. */
static union {
  foreshock_attention_call call;
  unsigned char bytes[sizeof(foreshock_attention_call)];
} given;

static foreshock_tensor view(const void* data) {
  foreshock_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = FORESHOCK_FP32;
  tensor.dims = 4;
  tensor.shape[0] = tensor.shape[1] = 1;
  tensor.shape[2] = 16;
  tensor.shape[3] = 8;
  tensor.stride[3] = 1;
  tensor.stride[2] = 8;
  tensor.stride[1] = tensor.stride[0] = 128;
  return tensor;
}

int main(void) {
  const int32_t op = foreshock_annotate_register_op("older", FORESHOCK_FORWARD);
  union {
    foreshock_step step;
    unsigned char bytes[sizeof(foreshock_step)];
  } record;
  int64_t step;
  for (step = 1; step <= 10; ++step) {
    const int wanted = foreshock_annotate_enter(op, FORESHOCK_NEEDS_GRADIENT);
    printf("%d", wanted);
    if (wanted) {
      memset(given.bytes, 0xff, sizeof given);
      memset(given.bytes, 0, OLD_CALL);
      given.call.size = OLD_CALL;
      given.call.version = 1;
      given.call.op = op;
      given.call.scale = 1;
      given.call.query = given.call.key = view(rows[0]);
      given.call.value = view(rows[1]);
      given.call.out = view(rows[2]);
      foreshock_annotate_leave(&given.call);
    }
    memset(record.bytes, 0, sizeof record);
    record.step.size = sizeof record;
    record.step.version = 1;
    record.step.step = step;
    record.step.step_source = FORESHOCK_STEP_REPORTED;
    if (foreshock_step_end) foreshock_step_end(&record.step);
  }
  /* Too short to be anything, of no version, absent: refused without harm. */
  memset(&record, 0, sizeof record);
  record.step.size = 8;
  record.step.version = 1;
  if (foreshock_step_end) foreshock_step_end(&record.step);
  record.step.size = sizeof record;
  record.step.version = 0;
  if (foreshock_step_end) {
    foreshock_step_end(&record.step);
    foreshock_step_end(NULL);
  }
  if (foreshock_annotate_enter(op, FORESHOCK_NEEDS_GRADIENT)) foreshock_annotate_leave(NULL);
  if (foreshock_annotate_enter(op, FORESHOCK_NEEDS_GRADIENT)) {
    memset(&given, 0, sizeof given);
    given.call.size = 8;
    given.call.version = 1;
    foreshock_annotate_leave(&given.call);
  }
  printf("\n");
  return 0;
}
