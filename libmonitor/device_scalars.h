// Numbers of the trainer's on their way from a device: a kernel of one block, behind the work that makes them
// on the trainer's own stream, stores each into a cell of the host's memory, and the cell's number after it.
// The host looks at its own memory and asks the device nothing; a number that never comes is never there.
#ifndef FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
#define FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_

#include <span>

#include "foreshock/hook.h"
#include "kernels/device_jobs.h"
#include "libmonitor/device_driver.h"

namespace foreshock {

// Whether it is one number, of a floating type, that lies on a CUDA device.
bool is_scalar_on_device(const foreshock_tensor& tensor);

// Numbers on a device that lie one behind the other.
struct ScalarRow {
  cuda::Address at;
  uint32_t dtype;  // as in ScalarsJob
  size_t count;
};

// Thread-compatible but for find().
class DeviceScalars {
 public:
  // In the context that is current, where `module` was loaded. Between steps: maps memory. What was sent
  // before in another context never comes.
  void set_up(const DeviceDriver& driver, cuda::Module module);
  void lose() { is_usable_ = false; }
  bool is_usable() const { return is_usable_; }

  // Gives the stream a kernel for them, which must not be capturing; all on the device of the context that is
  // current. Returns the number of the first one (the others follow), or 0: none of them will come.
  uint64_t send(const foreshock_tensor* values, size_t count, cuda::Stream stream);
  uint64_t send(std::span<const ScalarRow> rows, cuda::Stream stream);

  // Whether so many more would be sent now.
  bool has_room(size_t count) const;

  // Whether it has come. Any thread. Not after so many others that its cell was given to one of them.
  bool find(uint64_t number, double* value) const;
  // The same, however long ago.
  bool has_come(uint64_t number) const;

 private:
  struct Source {
    uint64_t from;
    uint32_t dtype;
  };
  template <class Sources>
  uint64_t send_all(size_t count, cuda::Stream stream, const Sources& source);
  bool is_free(uint64_t number) const;
  bool launch(ScalarsJob* job, cuda::Stream stream);

  const DeviceDriver* driver_ = nullptr;
  ScalarCell* cells_ = nullptr;
  cuda::Address address_ = 0;  // of the cells, as the device sees them
  cuda::Function kernel_ = nullptr;
  bool is_usable_ = false;
  uint64_t next_ = 1;
  uint64_t first_ = 1;  // of this context, whose cells no other has
};

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_DEVICE_SCALARS_H_
