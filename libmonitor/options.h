// The one table of options: what the command line accepts, which FORESHOCK_ variable stands for it, its
// default and its help. docs/options.md is generated from it. The parsers below are used in the trainer as
// well: they need no heap, no locale and no exceptions, and may be called from any thread.
#ifndef FORESHOCK_LIBMONITOR_OPTIONS_H_
#define FORESHOCK_LIBMONITOR_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// Who reads an option; bits of Option::readers.
enum OptionReader : uint32_t {
  kReaderRun = 1,
  kReaderAgent = 2,
  kReaderStatus = 4,
  kReaderSwitch = 8,  // pause and resume
  kReaderDoctor = 16,
  kReaderTrainer = 32,  // libforeshock.so, from the environment only
  kReaderExport = 64,
  kReaderDetect = 128,
};

enum class OptionId : uint32_t {
  kEnabled,
  kBaseDirectory,
  kRunId,
  kLauncher,
  kEvery,
  kMaxSlowdown,
  kMemory,
  kSlices,
  kMathPath,
  kWeights,
  kCountKernels,
  kSeed,
  kAdapters,
  kPort,
  kBind,
  kRecord,
  kRecordHistograms,
  kRecordSize,
  kOnAlert,
  kSaveFlagged,
  kFlaggedQuota,
  kSummary,
  kCache,
  kRunDirectory,
  kKeepAlive,
  kTree,
  kForgetAfter,
  kTokenFile,
  kFileSd,
  kGrafana,
  kAgent,
  kPython,
  kJson,
  kWatch,
  kCsv,
  kTensorBoard,
  kScores,
  kCount
};

struct Option {
  OptionId id;
  const char* flag;      // nullptr: by variable only
  const char* variable;  // nullptr: by flag only
  const char* fallback;  // the default; "" where there is none
  const char* value;     // what stands after the flag in the help; nullptr: a flag without a value
  const char* help;
  uint32_t readers;  // OptionReader bits
  // Of a number; beside it 0 is always fit where it is the default (it then means never, or by itself).
  uint64_t least = 0, most = UINT64_MAX;
};

inline constexpr size_t kOptionCount = static_cast<size_t>(OptionId::kCount);

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kMostSteps = 1 << 20;  // between two looks
inline constexpr uint64_t kMostCountedSteps = 64;

inline constexpr Option kOptions[kOptionCount] = {
    {OptionId::kEnabled, nullptr, "FORESHOCK", "1", "0|1",
     "0: nothing is monitored, the command runs as if alone", kReaderRun | kReaderTrainer},
    {OptionId::kBaseDirectory, nullptr, "FORESHOCK_DIR", "", "DIR",
     "base directory of the runs, on tmpfs; by default /dev/shm/foreshock-UID, else under $XDG_RUNTIME_DIR",
     kReaderRun | kReaderStatus | kReaderSwitch | kReaderDoctor | kReaderTrainer},
    {OptionId::kRunId, "--run-id", "FORESHOCK_RUN_ID", "", "ID",
     "name of the run over all its restarts. Without it `run` takes that of W&B, Slurm or torchrun, else a "
     "random one, `agent` its directory's; status, pause and resume mean every run",
     kReaderRun | kReaderAgent | kReaderStatus | kReaderSwitch | kReaderTrainer},
    {OptionId::kLauncher, nullptr, "FORESHOCK_LAUNCHER", "0", "ID",
     "number of the `foreshock run` that started the trainer; set by it", kReaderTrainer},
    {OptionId::kEvery, "--every", "FORESHOCK_EVERY", "0", "STEPS",
     "sample every STEPS-th step; 0: as often as --max-slowdown allows",
     kReaderRun | kReaderAgent | kReaderTrainer, 0, kMostSteps},
    {OptionId::kMaxSlowdown, "--max-slowdown", "FORESHOCK_MAX_SLOWDOWN", "1%", "RATIO",
     "the most the monitor may cost, as a share of the training time",
     kReaderRun | kReaderAgent | kReaderTrainer},
    {OptionId::kMemory, "--memory", "FORESHOCK_MEMORY", "64MiB", "BYTES",
     "the most shared memory one rank may take for its samples; to follow weights, as much again of its own, "
     "and 8 MiB",
     kReaderRun | kReaderTrainer, kMiB},
    {OptionId::kSlices, "--slices", "FORESHOCK_SLICES", "on", "on|off",
     "off: count calls and follow steps, but copy no activations", kReaderRun | kReaderTrainer},
    {OptionId::kMathPath, "--math-path", "FORESHOCK_MATH_PATH", "off", "on|off",
     "on: sample attention on PyTorch's unfused path too; costs every operation of a sampled step 0.4 us",
     kReaderRun | kReaderTrainer},
    {OptionId::kWeights, "--weights", "FORESHOCK_WEIGHTS", "auto", "auto|off|STEPS",
     "look at each weight tensor once in STEPS steps; auto: 64, on a single rank more where a quarter of "
     "--max-slowdown asks for it; several ranks leave turns out instead, and each rank all of them "
     "while what it owes of --max-slowdown is more than 256 steps earn",
     kReaderRun | kReaderTrainer, 1, kMostSteps},
    {OptionId::kCountKernels, "--count-kernels", "FORESHOCK_COUNT_KERNELS", "0", "STEPS",
     "count launched attention kernels by CUPTI in so many steps after the first ten, to compare them with "
     "the calls seen; gives way to other profilers, not while torch.profiler runs (one that begins meanwhile "
     "sees no device any more). 0: never",
     kReaderRun | kReaderTrainer, 0, kMostCountedSteps},
    {OptionId::kSeed, nullptr, "FORESHOCK_SEED", "0", "NUMBER", "seed of the choice of samples",
     kReaderTrainer},
    {OptionId::kAdapters, nullptr, "FORESHOCK_ADAPTERS", "", "DIR",
     "where the built adapters lie; set by `run`", kReaderTrainer},
    {OptionId::kPort, "--port", "FORESHOCK_PORT", "9847", "PORT",
     "port of the page and of /metrics; FIRST-LAST: the first free one. Default of `run`: 9847-9946",
     kReaderRun | kReaderAgent, 0, 65535},
    {OptionId::kBind, "--bind", "FORESHOCK_BIND", "127.0.0.1", "ADDRESS",
     "loopback address to listen on; unix:PATH; or any numeric address, with --token-file",
     kReaderRun | kReaderAgent},
    {OptionId::kRecord, "--record", "FORESHOCK_RECORD", "", "FILE.jsonl",
     "write the record of the run: one JSON object a line", kReaderRun | kReaderAgent},
    {OptionId::kRecordHistograms, "--record-histograms", "FORESHOCK_RECORD_HISTOGRAMS", "0", "BYTES",
     "put up to BYTES of weight histograms into the record, for `foreshock merge` of several nodes; a "
     "snapshot of a "
     "tensor takes 10 to 30 KiB in bf16, 100 to 500 KiB in fp32",
     kReaderRun | kReaderAgent, kMiB},
    {OptionId::kRecordSize, "--record-size", "FORESHOCK_RECORD_SIZE", "0", "BYTES",
     "keep at most BYTES of the record: at half of it FILE is renamed to FILE.1, replacing an older one, "
     "and a new FILE is started. `report`, `detect`, `export` and `merge` read both. 0: keep all of it",
     kReaderRun | kReaderAgent, kMiB},
    {OptionId::kOnAlert, "--on-alert", "FORESHOCK_ON_ALERT", "", "COMMAND",
     "shell command to run when a detector warns or the loss goes wrong; FORESHOCK_ALERT_ variables tell it "
     "what "
     "happened",
     kReaderRun | kReaderAgent},
    {OptionId::kSaveFlagged, "--save-flagged", "FORESHOCK_SAVE_FLAGGED", "", "DIR",
     "keep samples whose judgement is out of the ordinary, as safetensors: activations of your data; "
     "`foreshock judge` judges them again",
     kReaderRun | kReaderAgent},
    {OptionId::kFlaggedQuota, "--flagged-quota", "FORESHOCK_FLAGGED_QUOTA", "256MiB", "BYTES",
     "the most that the flagged samples in DIR may take; also 1000 files", kReaderRun | kReaderAgent, 4096},
    {OptionId::kSummary, "--summary", "FORESHOCK_SUMMARY", "", "FILE.json",
     "write the end-of-run summary as JSON", kReaderRun},
    {OptionId::kCache, nullptr, "FORESHOCK_CACHE", "", "DIR",
     "where adapters are built; by default $XDG_CACHE_HOME/foreshock, else ~/.cache/foreshock",
     kReaderRun | kReaderDoctor},
    {OptionId::kRunDirectory, "--dir", nullptr, "", "DIR", "directory of the run to serve", kReaderAgent},
    {OptionId::kKeepAlive, "--keep-alive", nullptr, "", nullptr, "stay when the last trainer has ended",
     kReaderAgent},
    {OptionId::kTree, "--tree", nullptr, "", "DIR",
     "serve every run below DIR, DIR/RUN or DIR/USER/RUN, until stopped", kReaderAgent},
    {OptionId::kForgetAfter, "--forget-after", nullptr, "600", "SECONDS",
     "how long a run of the tree that has ended keeps its series", kReaderAgent, 0, 7 * 24 * 3600},
    {OptionId::kTokenFile, "--token-file", "FORESHOCK_TOKEN_FILE", "", "FILE",
     "file with the bearer token that clients must show, read again when it changes; status and doctor show "
     "it",
     kReaderRun | kReaderAgent | kReaderStatus | kReaderDoctor},
    {OptionId::kFileSd, "--file-sd", "FORESHOCK_FILE_SD", "", "FILE.json|DIR",
     "keep a target file for Prometheus' file_sd while the agent serves; in DIR each run has one of its own",
     kReaderRun | kReaderAgent},
    {OptionId::kGrafana, "--grafana", "FORESHOCK_GRAFANA", "", "URL",
     "where a Grafana with our dashboards is: the status page leads there", kReaderRun | kReaderAgent},
    {OptionId::kAgent, "--agent", "FORESHOCK_AGENT", "own", "own|service",
     "service: start no agent, one with --tree follows the run", kReaderRun},
    {OptionId::kPython, "--python", nullptr, "python3", "EXE", "the interpreter the training uses",
     kReaderDoctor},
    {OptionId::kJson, "--json", nullptr, "", nullptr, "print JSON", kReaderStatus | kReaderDetect},
    {OptionId::kWatch, "--watch", nullptr, "", nullptr, "print again every two seconds until interrupted",
     kReaderStatus},
    {OptionId::kCsv, "--csv", nullptr, "", "DIR", "write one table per type of line: run.csv, step.csv, ...",
     kReaderExport},
    {OptionId::kTensorBoard, "--tensorboard", nullptr, "", "DIR",
     "write TensorBoard event files, a folder for every run and rank", kReaderExport},
    {OptionId::kScores, "--scores", nullptr, "", "FILE.csv",
     "write what every detector made of every value: run,rank,step,detector,place,value,score,level",
     kReaderDetect},
};

// The row of `id`.
const Option& option(OptionId id);

// The value of the option's variable, or its default when the variable is unset or empty. Never nullptr. The
// pointer is the environment's own.
const char* option_value(OptionId id);

// Each parser reads the whole text, leaves `*result` alone and returns false when it is anything else.

// "1%", "0.5 %", "0.01": a ratio in [0, 1].
bool parse_ratio(const char* text, double* result);

// "4096", "64KiB", "64MiB", "2GiB", "1MB": bytes. KiB, MiB, GiB are powers of 1024; kB, MB, GB of 1000.
bool parse_bytes(const char* text, uint64_t* result);

// Decimal digits that fit into 64 bits.
bool parse_count(const char* text, uint64_t* result);

// The number of `id`'s text, bytes or a count, when it is within the option's bounds.
bool parse_number(OptionId id, const char* text, uint64_t* result);

// "on", "1", "true", "yes"; "off", "0", "false", "no".
bool parse_switch(const char* text, bool* result);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_OPTIONS_H_
