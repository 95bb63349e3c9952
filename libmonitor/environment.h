// What the environment says about this process: its rank in the job and the settings of the run.
#ifndef FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
#define FORESHOCK_LIBMONITOR_ENVIRONMENT_H_

#include "libmonitor/guest.h"
#include "libmonitor/options.h"
#include "libmonitor/variables.h"

namespace foreshock {

// False when this process is not to be monitored (FORESHOCK=0, or no directory given). Reads the environment
// only.
bool read_environment(const Variables& variables, Settings* settings);
inline bool read_environment(Settings* settings) { return read_environment(Variables(), settings); }

// As option_value() of options.h, while other threads may change the environment.
const char* option_value(const Variables& variables, OptionId id);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_ENVIRONMENT_H_
