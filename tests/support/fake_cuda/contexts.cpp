// Contexts and devices.
#include "tests/support/fake_cuda/checks.h"
#include "tests/support/fake_cuda/entry_points.h"

using namespace fake_cuda;

FAKE_ENTRY cuCtxGetCurrent(void** context) {
  Lock lock(world().mutex);
  *context = current();
  return enter("cuCtxGetCurrent");
}

FAKE_ENTRY cuCtxPushCurrent_v2(void* context) {
  Lock lock(world().mutex);
  context_stack().push_back(static_cast<Context*>(context));
  return enter("cuCtxPushCurrent");
}

FAKE_ENTRY cuCtxPopCurrent_v2(void** context) {
  Lock lock(world().mutex);
  *context = current();
  if (context_stack().empty()) return kInvalidContext;
  context_stack().pop_back();
  return enter("cuCtxPopCurrent");
}

FAKE_ENTRY cuCtxGetDevice(int* device) {
  Lock lock(world().mutex);
  if (current() == nullptr) return kInvalidContext;
  *device = current()->device;
  return enter("cuCtxGetDevice");
}

FAKE_ENTRY cuCtxGetId(void* context, unsigned long long* id) {
  Lock lock(world().mutex);
  *id = static_cast<Context*>(context)->id;
  return enter("cuCtxGetId");
}

FAKE_ENTRY cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Lock lock(world().mutex);
  *least = 0;
  *greatest = -5;
  return enter("cuCtxGetStreamPriorityRange");
}

FAKE_ENTRY cuDeviceGetAttribute(int* value, int attribute, int) {
  Lock lock(world().mutex);
  *value = attribute == 122  ? world().faults.stream_operations
           : attribute == 97 ? world().faults.shared_bytes
           : attribute == 16 ? 4
                             : 0;
  return enter("cuDeviceGetAttribute");
}

FAKE_ENTRY cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  Lock lock(world().mutex);
  *flags = 0;
  *active = world().primary_users[device] > 0;
  return enter("cuDevicePrimaryCtxGetState");
}

FAKE_ENTRY cuDevicePrimaryCtxRetain(void** context, int device) {
  Lock lock(world().mutex);
  ++world().primary_users[device];
  *context = world().primary[device];
  return enter("cuDevicePrimaryCtxRetain");
}

FAKE_ENTRY cuDevicePrimaryCtxRelease_v2(int device) {
  Lock lock(world().mutex);
  if (--world().primary_users[device] == 0) violation("the trainer's context was given away");
  return enter("cuDevicePrimaryCtxRelease");
}
