#include "cli/judge.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <thread>

#include "cli/judge_slice.h"
#include "cli/python_script.h"
#include "cli/stored_slice_file.h"
#include "lab/judgement.h"

namespace foreshock::cli {
namespace {

constexpr const char* kHelp =
    "foreshock judge FILE.safetensors... [--algorithm NAMES] [--block-k COUNT] [--key-order "
    "forward|reverse]\n"
    "foreshock judge --rerun SLICE.safetensors... [--times N] [--device NAME] [--python EXE]\n"
    "foreshock judge --function MODULE:NAME [--python EXE] [--device NAME] [--dtype NAME] [--grad] "
    "[--quick]\n"
    "judge attention calls and flagged slices, or sweep an attention function, against fp64 beside plain "
    "attention\n\n"
    "A stored call has q, k, v, out and may have lse, dout, dq, dk, dv; its metadata may have scale and "
    "causal.\n"
    "--algorithm shows what algorithms of the lab make of the same inputs (forward, no causal mask).\n"
    "The exit status is 1 beyond the gates: 2 times the noise floor forward, 3 times backward, anything not "
    "finite,\n"
    "a bias of more than 0.05 ulp.\n"
    "A flagged slice (foreshock run --save-flagged DIR) is judged again as it was: exit status 0 when every "
    "bit is the\n"
    "stored one, else 1. --rerun runs its operation again with torch: 0 when the result is sound and "
    "repeats, "
    "else 1.\n";

int wrong_use(const std::string& problem) {
  std::fprintf(stderr, "foreshock judge: %s\n", problem.c_str());
  return 2;
}

struct Request {
  std::vector<std::string> paths;
  std::vector<lab::Algorithm> models;
  lab::Tiling tiling;
};

std::string add_models(const std::string& list, Request* request) {
  for (size_t from = 0; from <= list.size();) {
    const size_t comma = std::min(list.find(',', from), list.size());
    const auto model = lab::find_algorithm(list.substr(from, comma - from));
    if (!model || model->family != lab::Family::kAttention)
      return "--algorithm takes attention algorithms of foreshock lab --list";
    request->models.push_back(*model);
    from = comma + 1;
  }
  return "";
}

std::string parse(const std::vector<std::string>& words, Request* request) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("-")) {
      request->paths.push_back(word);
      continue;
    }
    if (word != "--algorithm" && word != "--block-k" && word != "--key-order")
      return "there is no option '" + word + "': foreshock judge --help";
    if (++i == words.size()) return word + " needs a value";
    const std::string& value = words[i];
    if (word == "--algorithm") {
      if (const std::string problem = add_models(value, request); !problem.empty()) return problem;
    } else if (word == "--key-order") {
      if (value != "forward" && value != "reverse") return "--key-order is forward or reverse";
      request->tiling.reverse = value == "reverse";
    } else {
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), request->tiling.block_k);
      if (error != std::errc() || end != value.data() + value.size() || request->tiling.block_k < 1)
        return "--block-k takes a number from 1 up";
    }
  }
  return request->paths.empty() ? "name a file: foreshock judge FILE.safetensors, or --function MODULE:NAME"
                                : "";
}

int judge_call(const Request& request, const std::string& path) {
  lab::StoredCall call;
  const std::string problem = lab::read_call(path, &call);
  if (!problem.empty()) return wrong_use(problem);
  if (!request.models.empty() && call.causal != lab::Causal::kNone)
    return wrong_use("--algorithm needs a call without a causal mask");
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto verdicts = lab::judge(call, request.models, request.tiling, threads);
  std::printf("%s: %s, batch %d, heads %d over %d, queries %d, keys %d, d %d, scale %g%s\n\n", path.c_str(),
              foreshock::name_of(call.dtype), call.batch, call.heads, call.kv_heads, call.queries, call.keys,
              call.d, call.scale, call.causal == lab::Causal::kNone ? "" : ", causal");
  std::printf("  %-22s %10s %12s %12s %8s %10s %6s %14s\n", "tensor", "max", "relative L2", "noise floor",
              "ratio", "bias ulp", "z", "rounded bias");
  bool failed = false;
  for (const lab::Verdict& v : verdicts) {
    std::printf("  %-22s %10.2e %12.3e %12.3e %8.2f %+10.3f %+6.0f %+14.3f  %s\n", v.name.c_str(), v.max_abs,
                v.relative_l2, v.floor_l2, v.ratio, v.bias_ulp, v.bias_z, v.rounded_bias_ulp,
                !v.judged           ? "model"
                : v.failure.empty() ? "ok"
                                    : ("FAILS: " + v.failure).c_str());
    failed |= !v.failure.empty();
  }
  for (const lab::Verdict& v : verdicts)
    if (v.judged && v.not_compared > 0 && v.name != "lse")
      std::printf("\n%llu of %llu values of %s are not compared: NaN or Inf in the inputs reaches them",
                  static_cast<unsigned long long>(v.not_compared), static_cast<unsigned long long>(v.values),
                  v.name.c_str());
  std::printf("\n%s\n", failed ? "beyond the gates" : "within the gates");
  return failed ? 1 : 0;
}

int judge_file(const Request& request, const std::string& path) {
  lab::Safetensors file;
  if (const std::string problem = file.open(path); !problem.empty()) return wrong_use(problem);
  if (!is_slice_file(file)) return judge_call(request, path);
  return request.models.empty() ? judge_slice(path)
                                : wrong_use("--algorithm is of whole calls, " + path + " is a flagged slice");
}

// Every file; the worst status.
int judge_files(const Request& request) {
  int status = 0;
  for (const std::string& path : request.paths) {
    if (path != request.paths.front()) std::puts("");
    status = std::max(status, judge_file(request, path));
  }
  return status;
}

}  // namespace

int judge(const std::vector<std::string>& words) {
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("--help") || has("-h")) return std::fputs(kHelp, stdout), 0;
  if (has("--rerun")) return judge_rerun(words);
  if (has("--function")) return run_python_script("foreshock_judge.py", words);
  Request request;
  const std::string problem = parse(words, &request);
  return problem.empty() ? judge_files(request) : wrong_use(problem);
}

}  // namespace foreshock::cli
