// A training on a device of the fake driver, through the ABI.
#ifndef FORESHOCK_TESTS_LIBMONITOR_DEVICE_TRAINER_H_
#define FORESHOCK_TESTS_LIBMONITOR_DEVICE_TRAINER_H_

#include "tests/libmonitor/call_on_tensors.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/reported_step.h"

namespace foreshock {

struct DeviceTrainer {
  int32_t ops[2] = {foreshock_register_op("test::forward", FORESHOCK_FORWARD),
                    foreshock_register_op("test::backward", FORESHOCK_BACKWARD)};
  CallOnTensors tensors[2];
  bool on_device = true;
  int device = 0;
  void* stream = fake_cuda::legacy_stream();
  int64_t step = 0;

  DeviceTrainer() {
    tensors[0].build(false);
    tensors[1].build(true);
  }

  foreshock_attention_call call(int pass) {
    foreshock_attention_call call = tensors[pass].call;
    call.op = ops[pass];
    if (!on_device) return call;
    call.stream = stream;
    for (foreshock_tensor* tensor :
         {&call.query, &call.key, &call.value, &call.out, &call.log_sum_exp, &call.mask, &call.grad_out,
          &call.grad_query, &call.grad_key, &call.grad_value}) {
      tensor->device_type = FORESHOCK_DEVICE_CUDA;
      tensor->device_index = device;
    }
    return call;
  }

  // Whether it was asked for.
  bool attention(int pass = 0) {
    const uint32_t flags = pass == 0 ? FORESHOCK_NEEDS_GRADIENT : FORESHOCK_IN_BACKWARD;
    if (foreshock_attention_enter(ops[pass], flags) == 0) return false;
    const foreshock_attention_call description = call(pass);
    foreshock_attention_leave(&description);
    return true;
  }

  void end_step() { end_reported_step(++step); }

  // One call each way, as often as this. Every call of the second step and later ones is sampled.
  void train(int steps, bool run = true) {
    for (int n = 0; n < steps; ++n) {
      for (const int pass : {0, 1}) {
        attention(pass);
        if (run) fake_cuda::run_all();
      }
      end_step();
      if (run) fake_cuda::run_all();
    }
  }

  // Nothing of the first step is sampled; the calls of the second one ask for the device and are left out.
  void set_up() {
    train(2);
    fake_cuda::forget_calls();
  }
};

}  // namespace foreshock

#endif  // FORESHOCK_TESTS_LIBMONITOR_DEVICE_TRAINER_H_
