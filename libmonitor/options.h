// The options of all commands and of the trainer: a table with flag, FORESHOCK_ variable, default and help of
// each; their parsers; and the settings that a trainer reads from its environment. docs/options.md comes from
// the table. The parsers also run in the trainer: no heap, no locale, no exceptions, thread-safe.
#ifndef FORESHOCK_LIBMONITOR_OPTIONS_H_
#define FORESHOCK_LIBMONITOR_OPTIONS_H_

#include <cstddef>
#include <cstdint>

namespace foreshock {

// The commands of `foreshock` that read an option, and the trainer; bits of Option::readers.
enum OptionReader : uint32_t {
  kReaderRun = 1,
  kReaderAgent = 2,
  kReaderStatus = 4,
  kReaderSwitch = 8,  // the commands pause and resume
  kReaderDoctor = 16,
  kReaderTrainer = 32,  // libforeshock.so, from the environment only
  kReaderExport = 64,
  kReaderDetect = 128,
};

// The section of --help that an option is listed in, in this order.
enum class OptionGroup : uint32_t { kBasic, kOutput, kNetwork, kExpert };

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
  kPreload,
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
  kCount  // the number of options
};

struct Option {
  OptionId id;
  const char* flag;      // --every; nullptr: the option can be set by its variable only
  const char* variable;  // FORESHOCK_EVERY; nullptr: the option can be set by its flag only
  const char* fallback;  // the default; "" if there is none
  const char* value;     // placeholder of the value in the help; nullptr: a flag without a value
  const char* help;      // one sentence, for --help
  OptionGroup group;
  uint32_t readers;  // OptionReader bits
  // Bounds of a number. A default of 0 is allowed outside the bounds: it means never, or automatic.
  uint64_t least = 0, most = UINT64_MAX;
  const char* details = "";  // for docs/options.md only
};

inline constexpr size_t kOptionCount = static_cast<size_t>(OptionId::kCount);

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kMostGivenInterval = 1 << 20;  // largest --every and --weights, in steps
inline constexpr uint64_t kMostCountedSteps = 64;        // largest --count-kernels, in steps

// Each row has the members of Option in their order. `0, UINT64_MAX` before details: a number has no bounds.
inline constexpr Option kOptions[kOptionCount] = {
    {OptionId::kEnabled, nullptr, "FORESHOCK", "1", "0|1",
     "0: switch foreshock off; the command runs as if alone", OptionGroup::kBasic,
     kReaderRun | kReaderTrainer},
    {OptionId::kBaseDirectory, nullptr, "FORESHOCK_DIR", "", "DIR",
     "base directory of the runs, on tmpfs; by default /dev/shm/foreshock-UID, else under $XDG_RUNTIME_DIR",
     OptionGroup::kExpert, kReaderRun | kReaderStatus | kReaderSwitch | kReaderDoctor | kReaderTrainer},
    {OptionId::kRunId, "--run-id", "FORESHOCK_RUN_ID", "", "ID",
     "name of the run, the same over restarts and nodes", OptionGroup::kBasic,
     kReaderRun | kReaderAgent | kReaderStatus | kReaderSwitch | kReaderTrainer, 0, UINT64_MAX,
     "default: `run` takes the id of W&B, Slurm or torchrun, else a random one; `agent` takes the name of "
     "its directory; status, pause and resume act on every run"},
    {OptionId::kLauncher, nullptr, "FORESHOCK_LAUNCHER", "0", "ID",
     "number of the `foreshock run` that started the trainer; set by it", OptionGroup::kExpert,
     kReaderTrainer},
    {OptionId::kEvery, "--every", "FORESHOCK_EVERY", "0", "STEPS",
     "sample every STEPS-th step; 0: as often as --max-slowdown allows", OptionGroup::kBasic,
     kReaderRun | kReaderAgent | kReaderTrainer, 0, kMostGivenInterval,
     "no sample is left out for its cost, unless --max-slowdown is given too"},
    {OptionId::kMaxSlowdown, "--max-slowdown", "FORESHOCK_MAX_SLOWDOWN", "1%", "RATIO",
     "largest share of the training time that foreshock may take", OptionGroup::kBasic,
     kReaderRun | kReaderAgent | kReaderTrainer},
    {OptionId::kMemory, "--memory", "FORESHOCK_MEMORY", "64MiB", "BYTES",
     "shared memory per rank for samples", OptionGroup::kExpert, kReaderRun | kReaderTrainer, kMiB,
     UINT64_MAX, "measuring weights takes as much again of the rank's own memory, and 8 MiB"},
    {OptionId::kSlices, "--slices", "FORESHOCK_SLICES", "on", "on|off",
     "off: count calls and follow steps, but copy no activations", OptionGroup::kBasic,
     kReaderRun | kReaderTrainer},
    {OptionId::kMathPath, "--math-path", "FORESHOCK_MATH_PATH", "on", "on|off",
     "off: only count the calls of PyTorch's unfused attention", OptionGroup::kExpert,
     kReaderRun | kReaderTrainer, 0, UINT64_MAX,
     "samples cost 0.4 us for every operation of a sampled step, in trainings that make such calls"},
    {OptionId::kWeights, "--weights", "FORESHOCK_WEIGHTS", "auto", "auto|off|STEPS",
     "measure every weight tensor once per STEPS steps; auto: 64", OptionGroup::kBasic,
     kReaderRun | kReaderTrainer, 1, kMostGivenInterval,
     "auto keeps the cost within a quarter of what the fixed costs leave of --max-slowdown, but at least "
     "within 1/32 of it: a single rank uses a longer interval if needed, several ranks skip tensors; a rank "
     "skips all of them while its cost is more than 256 steps above the limit"},
    {OptionId::kCountKernels, "--count-kernels", "FORESHOCK_COUNT_KERNELS", "0", "STEPS",
     "count launched attention kernels with CUPTI during STEPS steps, to check the coverage; 0: never",
     OptionGroup::kExpert, kReaderRun | kReaderTrainer, 0, kMostCountedSteps,
     "starts after the first ten steps; does not start if another tool uses CUPTI or while torch.profiler "
     "runs; a profiler that starts during the count sees no device for the rest of the process"},
    {OptionId::kSeed, nullptr, "FORESHOCK_SEED", "0", "NUMBER", "seed of the choice of samples",
     OptionGroup::kExpert, kReaderTrainer},
    {OptionId::kPreload, "--preload", nullptr, "", nullptr,
     "preload libforeshock.so into a C or C++ program that is not linked with it", OptionGroup::kBasic,
     kReaderRun | kReaderDoctor, 0, UINT64_MAX, "Python needs no preload: `import torch` loads the library"},
    {OptionId::kAdapters, nullptr, "FORESHOCK_ADAPTERS", "", "DIR",
     "directory of the built adapters; set by `run`", OptionGroup::kExpert, kReaderTrainer},
    {OptionId::kPort, "--port", "FORESHOCK_PORT", "9847", "PORT",
     "port of the page and of /metrics; FIRST-LAST: the first free one", OptionGroup::kNetwork,
     kReaderRun | kReaderAgent, 0, 65535, "default of `run`: 9847-9946"},
    {OptionId::kBind, "--bind", "FORESHOCK_BIND", "127.0.0.1", "ADDRESS",
     "address to listen on: loopback, unix:PATH, or any other with --token-file", OptionGroup::kNetwork,
     kReaderRun | kReaderAgent},
    {OptionId::kRecord, "--record", "FORESHOCK_RECORD", "", "FILE.jsonl|off",
     "write the record of the run, one JSON object per line; off: none", OptionGroup::kOutput,
     kReaderRun | kReaderAgent, 0, UINT64_MAX,
     "default of `run`: `foreshock-RUN.jsonl` in its working directory, `foreshock-RUN-HOST.jsonl` if the id "
     "is "
     "not random, 256MiB at most; none with `--agent service`. Default of `agent`: none"},
    {OptionId::kRecordHistograms, "--record-histograms", "FORESHOCK_RECORD_HISTOGRAMS", "0", "BYTES",
     "write up to BYTES of weight histograms into the record, for `foreshock merge`", OptionGroup::kOutput,
     kReaderRun | kReaderAgent, kMiB, UINT64_MAX,
     "a snapshot of a tensor takes 10 to 30 KiB in bf16 and 100 to 500 KiB in fp32"},
    {OptionId::kRecordSize, "--record-size", "FORESHOCK_RECORD_SIZE", "0", "BYTES",
     "limit the record to BYTES by starting a new file; 0: no limit", OptionGroup::kOutput,
     kReaderRun | kReaderAgent, kMiB, UINT64_MAX,
     "at half of it FILE is renamed to FILE.1, replacing an older one, and a new FILE is started; `report`, "
     "`detect`, `export` and `merge` read both"},
    {OptionId::kOnAlert, "--on-alert", "FORESHOCK_ON_ALERT", "", "COMMAND",
     "shell command to run when a finding begins, a detector warns, or a gradient norm is not finite",
     OptionGroup::kOutput, kReaderRun | kReaderAgent, 0, UINT64_MAX,
     "it reads the event from FORESHOCK_ALERT_ variables: [alerts](alerts.md#a-command-of-your-own)"},
    {OptionId::kSaveFlagged, "--save-flagged", "FORESHOCK_SAVE_FLAGGED", "", "DIR",
     "keep unusual samples for `foreshock judge`; they contain activations of your data",
     OptionGroup::kOutput, kReaderRun | kReaderAgent},
    {OptionId::kFlaggedQuota, "--flagged-quota", "FORESHOCK_FLAGGED_QUOTA", "256MiB", "BYTES",
     "size limit of --save-flagged; it also keeps at most 1000 files", OptionGroup::kOutput,
     kReaderRun | kReaderAgent, 4096},
    {OptionId::kSummary, "--summary", "FORESHOCK_SUMMARY", "", "FILE.json",
     "write the summary at the end of the run as JSON", OptionGroup::kOutput, kReaderRun},
    {OptionId::kCache, nullptr, "FORESHOCK_CACHE", "", "DIR",
     "directory where adapters are built; by default $XDG_CACHE_HOME/foreshock, else ~/.cache/foreshock",
     OptionGroup::kExpert, kReaderRun | kReaderDoctor},
    {OptionId::kRunDirectory, "--dir", nullptr, "", "DIR", "directory of the run to serve",
     OptionGroup::kBasic, kReaderAgent},
    {OptionId::kKeepAlive, "--keep-alive", nullptr, "", nullptr,
     "keep running after the last trainer has ended", OptionGroup::kBasic, kReaderAgent},
    {OptionId::kTree, "--tree", nullptr, "", "DIR",
     "serve every run below DIR (DIR/RUN or DIR/USER/RUN) until stopped", OptionGroup::kBasic, kReaderAgent},
    {OptionId::kForgetAfter, "--forget-after", nullptr, "600", "SECONDS",
     "how long --tree keeps the series of a run that has ended", OptionGroup::kBasic, kReaderAgent, 0,
     7 * 24 * 3600},
    {OptionId::kTokenFile, "--token-file", "FORESHOCK_TOKEN_FILE", "", "FILE",
     "file with the bearer token that clients must send", OptionGroup::kNetwork,
     kReaderRun | kReaderAgent | kReaderStatus, 0, UINT64_MAX, "read again when it changes; status sends it"},
    {OptionId::kFileSd, "--file-sd", "FORESHOCK_FILE_SD", "", "FILE.json|DIR",
     "maintain a target file for Prometheus' file_sd; in DIR, one per run", OptionGroup::kNetwork,
     kReaderRun | kReaderAgent},
    {OptionId::kGrafana, "--grafana", "FORESHOCK_GRAFANA", "", "URL",
     "address of a Grafana with our dashboards, for links on the page", OptionGroup::kNetwork,
     kReaderRun | kReaderAgent},
    {OptionId::kAgent, "--agent", "FORESHOCK_AGENT", "own", "own|service",
     "service: start no agent, because one with --tree follows the run", OptionGroup::kExpert, kReaderRun},
    {OptionId::kPython, "--python", nullptr, "python3", "EXE", "the Python of the training",
     OptionGroup::kBasic, kReaderDoctor},
    {OptionId::kJson, "--json", nullptr, "", nullptr, "print JSON", OptionGroup::kBasic,
     kReaderStatus | kReaderDetect},
    {OptionId::kWatch, "--watch", nullptr, "", nullptr, "redraw every two seconds until Ctrl-C",
     OptionGroup::kBasic, kReaderStatus},
    {OptionId::kCsv, "--csv", nullptr, "", "DIR", "write a table per type of line: run.csv, step.csv, ...",
     OptionGroup::kBasic, kReaderExport},
    {OptionId::kTensorBoard, "--tensorboard", nullptr, "", "DIR",
     "write TensorBoard event files, a directory per run and rank", OptionGroup::kBasic, kReaderExport},
    {OptionId::kScores, "--scores", nullptr, "", "FILE.csv",
     "write the score of every detector for every value", OptionGroup::kBasic, kReaderDetect, 0, UINT64_MAX,
     "columns: run,rank,step,detector,place,value,score,level"},
};

const Option& option(OptionId id);

// Returns the value of the option's variable, or the default if the variable is unset or empty. Never
// nullptr. The pointer may point into the environment.
const char* option_value(OptionId id);

// Each parser returns false and leaves `*result` unchanged if it cannot parse the whole text.

// "1%", "0.5 %", "0.01": a ratio in [0, 1], returned as 0.01, 0.005, 0.01.
bool parse_ratio(const char* text, double* result);

// "4096", "64KiB", "64MiB", "2GiB", "1MB": bytes. KiB, MiB, GiB, K, M, G are powers of 1024; kB, KB, MB, GB
// of 1000.
bool parse_bytes(const char* text, uint64_t* result);

// Decimal digits that fit into 64 bits.
bool parse_count(const char* text, uint64_t* result);

// Parses the value of option `id`, bytes or a count. Also false if the number is outside the option's bounds.
bool parse_number(OptionId id, const char* text, uint64_t* result);

// "on", "1", "true", "yes"; "off", "0", "false", "no".
bool parse_switch(const char* text, bool* result);

// Reads the environment while other threads may change it. setenv() in one thread frees the array that
// getenv() reads in another (glibc before 2.41; Python's os.environ calls setenv). The monitor must not crash
// the trainer, so this class reads through /proc/self/mem: read() returns an error where a load would crash.
class SafeEnvironment {
 public:
  // Copies all variables from the file `memory`. For set-up only: opens the file, and maps memory for the
  // life of this object. If the copy fails (without /proc), find() uses getenv(). Any thread.
  explicit SafeEnvironment(const char* memory = "/proc/self/mem");
  ~SafeEnvironment();
  SafeEnvironment(const SafeEnvironment&) = delete;
  SafeEnvironment& operator=(const SafeEnvironment&) = delete;

  // Returns the value of a variable, valid as long as this object. Null: not set, or name=value over 4 KiB.
  const char* find(const char* name) const;

  bool is_copy() const { return is_copy_; }  // false: find() uses getenv()

 private:
  struct Buffers;
  bool copy(int memory_fd);
  bool copy_array(int memory_fd, const char** entries, size_t* count) const;

  Buffers* buffers_ = nullptr;
  bool is_copy_ = false;
};

// Does the same as option_value() above, but is safe while other threads change the environment.
const char* option_value(const SafeEnvironment& variables, OptionId id);

// The rank of a process in its job, and the settings of its run.
struct Settings {
  char directory[400];  // <base>/<run id>
  char run_id[64];
  uint64_t launcher_id;     // number of the `foreshock run` that started the trainer; 0: none
  uint64_t every;           // sampling interval in steps; 0: chosen by the agent
  bool every_ignores_cost;  // `every` was given without --max-slowdown: no sample is left out for its cost
  double max_slowdown;      // ratio of the training time; 1: no limit
  uint64_t memory;          // most shared memory of this rank, in bytes
  bool slices;              // whether attention calls are sampled
  bool weights;             // whether weight tensors are measured
  uint64_t weights_every;   // steps between two measurements; 0: as often as the budget allows
  uint64_t count_kernels;   // number of steps in which kernels are counted; 0: none
  uint64_t seed;            // of the choice of samples
  int rank, local_rank, world_size;  // local_rank -1: unknown
  int local_ranks, attempt;          // ranks of this node; restarts of the job
};

// Reads this process's rank in the job and the settings of the run from the environment. Returns false if the
// process is not to be monitored: FORESHOCK=0, or directory or run id is missing or too long.
bool read_environment(const SafeEnvironment& variables, Settings* settings);
inline bool read_environment(Settings* settings) { return read_environment(SafeEnvironment(), settings); }

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_OPTIONS_H_
