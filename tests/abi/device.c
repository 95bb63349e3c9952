/* A trainer of a few steps whose tensors lie on the host (device type 0) or are said to lie on a CUDA device
 * (1), then: which libraries of a driver are mapped. DEVICE_TYPE */
#include <foreshock/hook.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float data[2 * 4 * 8 * 16];

static foreshock_tensor tensor(int device) {
  foreshock_tensor tensor = {data, {2, 4, 8, 16}, {512, 128, 16, 1}, FORESHOCK_FP32, 4, 0, 0};
  tensor.device_type = device;
  return tensor;
}

int main(int count, char** arguments) {
  const int device = count > 1 ? atoi(arguments[1]) : 0;
  const int32_t op = foreshock_register_op("test::forward", FORESHOCK_FORWARD);
  int described = 0, step;
  for (step = 1; step <= 4; ++step) {
    if (foreshock_attention_enter(op, FORESHOCK_NEEDS_GRADIENT)) {
      foreshock_attention_call call;
      memset(&call, 0, sizeof call);
      call.size = sizeof call;
      call.version = FORESHOCK_ABI_VERSION;
      call.op = op;
      call.scale = 0.25;
      call.query = call.key = call.value = call.out = tensor(device);
      call.stream = (void*)1;
      foreshock_attention_leave(&call);
      ++described;
    }
    foreshock_step record;
    memset(&record, 0, sizeof record);
    record.size = sizeof record;
    record.version = FORESHOCK_ABI_VERSION;
    record.step = step;
    record.step_source = FORESHOCK_STEP_REPORTED;
    foreshock_step_end(&record);
  }
  printf("described %d\n", described);
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  int mapped = 0;
  while (maps && fgets(line, sizeof line, maps)) mapped |= strstr(line, "libcuda") != NULL;
  printf("driver %d\n", mapped);
  return 0;
}
