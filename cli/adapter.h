// The PyTorch adapter: built for the exact torch of one interpreter, outside any trainer, into a stamped
// cache.
#ifndef FORESHOCK_CLI_ADAPTER_H_
#define FORESHOCK_CLI_ADAPTER_H_

#include <string>

#include "cli/installation.h"

namespace foreshock::cli {

struct Adapter {
  std::string state;   // ready, prebuilt, built, no_torch, unsupported, no_compiler, no_python, failed
  std::string torch;   // version, "" when unknown
  std::string path;    // of adapter.so
  std::string reason;  // one line that says what to do; "" when usable
  double seconds = 0;
  bool usable() const { return state == "ready" || state == "prebuilt" || state == "built"; }
};

// <cache>/adapters-<version of foreshock>-<hash of the adapter's sources>; "" when there is no home to put
// it.
std::string adapter_cache(const Installation& installation);

// Runs integrations/torch/build_adapter.py with `python`. Milliseconds when it is built already, else about a
// minute, and then says so on standard error.
// `libtorch`: the directory of a LibTorch whose adapter is wanted; "": that of the torch of `python`.
Adapter prepare_adapter(const Installation& installation, const std::string& python, const std::string& cache,
                        const std::string& libtorch = "");

struct FoundLibtorch;

// For a program that is linked with LibTorch.
Adapter prepare_adapter_for(const Installation& installation, const FoundLibtorch& libtorch,
                            const std::string& cache);

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_ADAPTER_H_
