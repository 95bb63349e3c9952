// What the agent advises, out of the control file.
#ifndef FORESHOCK_LIBMONITOR_ADVICE_H_
#define FORESHOCK_LIBMONITOR_ADVICE_H_

#include "foreshock/hook.h"
#include "segment/layout.h"

namespace foreshock {

// False: there is none, it is being written, or it makes no sense. `size`, `version` and `age_steps` are the
// caller's. Any thread; waits for nobody.
bool read_advice(const segment::Control& control, foreshock_advice* advice);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ADVICE_H_
