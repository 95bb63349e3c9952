// A stand-in for libcuda.so.1 that runs on the host: a program that is linked with it finds it by that name.
// Streams are queues in order, run by hand or by a thread each; "device memory" is memory of the host, so
// that a sanitizer sees what is read after it was freed. It keeps every call, and notes what a real driver
// would punish: waiting, copies to memory that is not pinned, handles of a context that is gone.
#ifndef FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
#define FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fake_cuda {

enum class Run { kByHand, kByThreads };

// A driver that nobody has used, whose version and devices' architecture the variables FAKE_CUDA_VERSION and
// FAKE_CUDA_ARCHITECTURE may name, with `devices` devices whose primary contexts are active; that of device 0
// is current in the calling thread. Streams of before must have come to rest.
void start(Run run, int devices = 1);

// What goes wrong from now on.
struct Faults {
  int version = 13000;
  int architecture = 0;      // of the devices (90: sm_90), which decides what modules load; 0: all load
  std::string missing = {};  // this entry point is not found
  std::string failing = {};  // this one fails, after so many calls that do not:
  int failing_after = 0;
  int error = 2;  // with this number
  size_t free_bytes = size_t{8} << 30;
  int stream_operations = 1;     // the attribute
  int shared_bytes = 227 << 10;  // that a block may ask for; of sm_90
  bool is_lost = false;          // every call that meets a context fails, and streams stand still
  int copy_delay_us = 0;         // by threads
  int load_delay_us = 0;         // of a module
  uint64_t clock_step_ns = 1;    // from one look of a kernel at the device's clock to the next
};
void set_faults(const Faults& faults);

// A trainer's own doings. Streams are handles as the hook is given them.
void* legacy_stream();
void* thread_stream();
void* new_stream(int device);
void* new_stream_apart(int device);  // of another context of it, as a green one is
void enqueue(void* stream, std::function<void()> work);
void begin_capture(void* stream);
void end_capture(void* stream);
void set_device(int device);    // makes its primary context current in this thread, -1: none
int current_device();           // -1: no context is current in this thread
int primary_users(int device);  // how often its context is retained, the trainer's one time included
void reset_device(int device);  // as cudaDeviceReset and a use after it: another context, all else is gone

// By hand: runs what can be run. Of one stream: as far as it comes without the others.
void run_all();
void run(void* stream);
// By threads: waits until all streams are at rest.
void rest();

struct Call {
  std::string name;
  void* stream;    // as it was given; null for calls without one
  uint64_t bytes;  // that it is about: of memory, a copy, a set
};
std::vector<Call> calls();
void forget_calls();
std::vector<std::string> violations();  // and on stderr at once, where FAKE_CUDA_TELLS is set
std::vector<std::string> symbols_asked_for();
std::vector<std::string> images();  // that modules were loaded from, byte by byte
void* own_stream(int device);       // that the program under test has made last
int priority_of(void* stream);

}  // namespace fake_cuda

#endif  // FORESHOCK_TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H_
