#include "agent/run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "exporters/http_routes.h"
#include "exporters/record_reader.h"
#include "tests/agent/segment_of_a_trainer.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/variations.h"

namespace foreshock {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kLauncher = 4711;

RunOptions job_options(const std::string& record = "") {
  RunOptions options;
  options.run_id = options.label = "job";
  options.record = record;
  return options;
}

// As an agent begins with the directory of the trainer; it ends where the run is destroyed.
std::unique_ptr<Run> open_run(const RunOptions& options, const SegmentOfATrainer& trainer) {
  std::string error;
  auto run = Run::open(options, Directory::open(trainer.directory, &error), &error);
  EXPECT_NE(run, nullptr) << error;
  return run;
}

// A command that trains rank 0 again and again. In one process its locks are not seen, so that every trainer
// here looks gone once it is quiet.
TEST(Run, WhatReplacedProcessesLeaveIsRemovedUnderALiveLauncherAndTold) {
  SegmentOfATrainer first;
  std::string error;
  const auto run = open_run(job_options(), first);
  ASSERT_NE(run, nullptr);
  const auto launcher = Directory::open(first.directory, &error);
  ASSERT_GE(launcher->lock("run.lock", LOCK_SH), 0);
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(first.directory))
      count += entry.path().extension() == ".seg" || entry.path().extension() == ".ctl";
    return count;
  };

  Registry registry;
  first.identity()->launcher_id = kLauncher;
  first.step(1, 2.0);
  first.sample(1, 1.0);
  run->discover(&registry);
  auto now = Run::Clock::now();
  run->finish_dead_ranks(now + 11s);
  EXPECT_EQ(files(), 2u) << "the last one of a rank may still be told how it ended";

  SegmentOfATrainer second(first.directory, 0, 0x11);
  second.identity()->launcher_id = kLauncher;
  run->discover(&registry);
  run->finish_dead_ranks(now + 22s);
  EXPECT_EQ(files(), 2u);
  EXPECT_TRUE(std::filesystem::exists(first.directory + "/0-0000000000000011.seg"));
  EXPECT_TRUE(run->is_needed());
  EXPECT_EQ(run->state(), RunState::kRunning);

  std::ofstream(first.directory + "/exit." + std::to_string(kLauncher) + ".json")
      << R"({"status": 0, "signal": 0, "state": "finished"})";
  now += 60s;
  ASSERT_EQ(run->ended_launchers(now, &registry).size(), 1u);
  const nlohmann::json ranks = run->document(kLauncher, false)["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["attention"]["forward"]["judged"], 1) << "judged before it was removed";
  for (const nlohmann::json& rank : ranks) EXPECT_EQ(rank["state"], "finished");
}

// `foreshock run -- bash job.sh`, with an upload behind its training: nobody is missing then.
TEST(Run, IsFinishedWhenAllTrainingsHaveEndedWellThoughTheCommandGoesOn) {
  SegmentOfATrainer trainer;
  std::string error;
  const auto run = open_run(job_options(), trainer);
  ASSERT_NE(run, nullptr);
  const auto launcher = Directory::open(trainer.directory, &error);
  ASSERT_GE(launcher->lock("run.lock", LOCK_SH), 0);
  Registry registry;
  EXPECT_EQ(run->state(), RunState::kRunning) << "before the first one";
  trainer.step(1, 2.0);
  run->discover(&registry);
  auto now = Run::Clock::now();
  run->finish_dead_ranks(now + 11s);
  EXPECT_EQ(run->state(), RunState::kRunning) << "it may have been killed";

  trainer.identity()->exit_status = 1;
  trainer.identity()->has_exited = 1;
  run->finish_dead_ranks(now + 12s);
  EXPECT_EQ(run->state(), RunState::kRunning) << "it has failed";
  trainer.identity()->exit_status = 0;
  run->finish_dead_ranks(now + 13s);
  EXPECT_EQ(run->state(), RunState::kFinished);

  SegmentOfATrainer next(trainer.directory, 0, 0x11);
  run->discover(&registry);
  run->finish_dead_ranks(now + 14s);
  EXPECT_EQ(run->state(), RunState::kRunning) << "it trains again";
}

// Lines that wait for room on a full disk go with the agent that is killed; the next one writes the rest, and
// says that it is not all.
// An agent that may open few files follows as many ranks as it can, and the others when those have ended.
TEST(Run, RanksThatHadToWaitForDescriptorsAreInTheSummary) {
  constexpr int kRanks = 24;
  SegmentOfATrainer first;
  std::vector<std::unique_ptr<SegmentOfATrainer>> others;
  for (int rank = 1; rank < kRanks; ++rank)
    others.push_back(std::make_unique<SegmentOfATrainer>(first.directory, rank));
  first.identity()->launcher_id = kLauncher;
  first.step(1, 2.0);
  for (const auto& other : others) {
    other->identity()->launcher_id = kLauncher;
    other->step(1, 2.0);
  }
  const auto run = open_run(job_options(), first);
  ASSERT_NE(run, nullptr);
  Registry registry;
  // At most 64 of them are reserved, at least a quarter of them and of the 48 of the trainers. So 16 to 47
  // are left for segments, two for each.
  const FewDescriptors few(80);
  EXPECT_TRUE(run->discover(&registry));
  const size_t at_once = run->ranks();
  EXPECT_LT(at_once, size_t{kRanks});
  EXPECT_EQ(run->document(kLauncher, false)["refused"]["segments"], kRanks - at_once);
  auto now = Run::Clock::now();
  run->finish_dead_ranks(now + 11s);  // no launcher: these ranks have ended; the files of others are there
  EXPECT_TRUE(run->is_needed());

  std::ofstream(first.directory + "/exit." + std::to_string(kLauncher) + ".json")
      << R"({"status": 0, "signal": 0, "state": "finished"})";
  now += 60s;
  int rounds = 1;
  while (run->ended_launchers(now, &registry).empty() && rounds < kRanks) {
    now += 200ms;
    ++rounds;
  }
  EXPECT_LT(rounds, kRanks);
  const nlohmann::json summary = run->document(kLauncher, false);
  EXPECT_EQ(summary["ranks"].size(), size_t{kRanks});
  EXPECT_FALSE(summary.contains("refused")) << summary["refused"];
  for (const nlohmann::json& rank : summary["ranks"]) EXPECT_EQ(rank["steps"], 1) << rank["rank"];
}

TEST(Run, AnOlderProcessOfARankThatIsFoundLateDoesNotTakeItsPlace) {
  SegmentOfATrainer newer("", 0, 0x20);
  const auto run = open_run(job_options(), newer);
  ASSERT_NE(run, nullptr);
  Registry registry;
  newer.identity()->attempt = 1;
  run->discover(&registry);
  SegmentOfATrainer older(newer.directory, 0, 0x10);
  run->discover(&registry);
  EXPECT_EQ(run->ranks(), 1u);
  std::vector<HistoryTable> tables;
  newer.step(7, 2.0);
  run->poll();
  run->add_history(&tables);
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].first_step, 7) << "of the newer one";
}

TEST(Run, ARecordThatAKilledAgentCouldNotWriteIsNotComplete) {
  for (const bool was_full : {false, true}) {
    SegmentOfATrainer trainer;
    trainer.identity()->launcher_id = kLauncher;
    Registry registry;
    for (const char* record : {was_full ? "/dev/full" : "", "record.jsonl"}) {
      auto run = open_run(job_options(*record == 'r' ? trainer.directory + "/" + record : record), trainer);
      ASSERT_NE(run, nullptr);
      run->discover(&registry);
      trainer.step(1, 2.0);
      run->poll();
      run->publish(&registry);
      if (*record != 'r') continue;
      std::ofstream(trainer.directory + "/exit." + std::to_string(kLauncher) + ".json")
          << R"({"status": 0, "signal": 0, "state": "finished"})";
      const auto ended = run->ended_launchers(Run::Clock::now() + 60s, &registry);
      ASSERT_EQ(ended.size(), 1u);
      run->write_summary(ended[0]);
      std::ifstream file(trainer.directory + "/summary." + std::to_string(kLauncher) + ".json");
      EXPECT_EQ(nlohmann::json::parse(file)["record_complete"], !was_full);
    }
  }
}

// The launcher prints them while the command runs, and the summary and the page have them.
TEST(Run, AFullDiskIsANoticeToTheLaunchers) {
  SegmentOfATrainer trainer;
  trainer.identity()->launcher_id = kLauncher;
  Registry registry;
  const auto notices = [&] {
    std::ifstream file(trainer.directory + "/notices");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string line = "record /dev/full: No space left on device; the run goes on without it";
  for (int agent = 0; agent < 2; ++agent) {
    const auto run = open_run(job_options("/dev/full"), trainer);
    ASSERT_NE(run, nullptr);
    run->discover(&registry);
    trainer.step(agent + 1, 2.0);
    run->poll();
    const auto begin = Run::Clock::now();
    while (notices().empty() && Run::Clock::now() < begin + 60s) run->publish(&registry);
    EXPECT_EQ(notices(), line + "\n") << "once, also if the agent is restarted";
    const nlohmann::json state = run->document(0, true);
    EXPECT_EQ(state["notices"], nlohmann::json({line}));
    std::istringstream words(state["text"].get<std::string>());
    std::string text;
    for (std::string word; words >> word;) text += word + " ";
    EXPECT_NE(text.find("not written record /dev/full: No space left on device;"), std::string::npos) << text;
  }
}

// A limit of the size of files takes the place of the disk. The other files are smaller.
TEST(Run, ADiskThatIsFullAgainIsSaidAgain) {
  constexpr size_t kBytes = 512 << 10;
  SegmentOfATrainer trainer;
  Registry registry;
  const std::string record = trainer.directory + "/record.jsonl";
  std::string lines;
  while (lines.size() < kBytes) lines += "{\"schema\":1,\"type\":\"event\"}\n";
  std::ofstream(record) << lines;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const auto run = open_run(job_options(record), trainer);
  ASSERT_NE(run, nullptr);
  run->discover(&registry);
  const std::string full = "record " + record + ": File too large; the run goes on without it";
  const std::string well = "record " + record + ": can be written again; nothing is lost";
  std::vector<std::string> expected;
  for (int step = 1; step <= 4; ++step) {
    const bool is_full = step % 2 == 1;
    const rlimit now = {is_full ? std::filesystem::file_size(record) : before.rlim_cur, before.rlim_max};
    if (is_full) trainer.step(step, 2.0);  // its segment is larger than the record
    run->poll();
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
    expected.push_back(is_full ? full : well);
    const auto begin = Run::Clock::now();
    nlohmann::json notices;
    do {
      run->publish(&registry);
      notices = run->document(0, true)["notices"];
    } while (notices != expected && Run::Clock::now() < begin + 60s);
    EXPECT_EQ(notices, nlohmann::json(expected));
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  signal(SIGXFSZ, handler);
}

// What a training was found to do before its agent was killed counts in its summary, although the next agent
// has seen nothing of it.
TEST(Run, WhatAKilledAgentHasFoundIsInTheSummary) {
  SegmentOfATrainer trainer;
  trainer.identity()->launcher_id = kLauncher;
  Registry registry;
  for (const bool is_first : {true, false}) {
    const auto run = open_run(job_options(), trainer);
    ASSERT_NE(run, nullptr);
    run->discover(&registry);
    trainer.step(is_first ? 1 : 2, 2.0);
    trainer.sample(is_first ? 1 : 2, is_first ? NAN : 1.0);
    run->poll();
    run->publish(&registry);
    const nlohmann::json rank = run->document(kLauncher, false)["ranks"][0];
    ASSERT_EQ(rank["past_alarms"].size(), 1u) << rank["past_alarms"];
    EXPECT_EQ(rank["past_alarms"][0]["layer"], "003");
    EXPECT_EQ(rank["past_alarms"][0]["of"], "nonfinite");
    EXPECT_EQ(rank["past_alarms"][0]["last_step"], 1);
    EXPECT_EQ(rank["alarms"].size(), is_first ? 1u : 0u) << "of the last slices";
  }
}

// What is kept for the next agent is of segments that it can find: of those that ended, with all that was in
// them, and not of those that were removed.
TEST(Run, FactsAreKeptOfTheSegmentsThatAreThere) {
  SegmentOfATrainer first;
  std::string error;
  auto run = open_run(job_options(), first);
  ASSERT_NE(run, nullptr);
  const auto launcher = Directory::open(first.directory, &error);
  const int lock = launcher->lock("run.lock", LOCK_SH);
  ASSERT_GE(lock, 0);
  const auto kept = [&] {
    std::vector<std::string> segments;
    std::ifstream file(first.directory + "/" + RankFacts::kFile);
    const auto facts = nlohmann::json::parse(file, nullptr, false);
    if (facts.is_object())
      for (const auto& [segment, of_it] : facts.items()) segments.push_back(segment);
    return segments;
  };
  using Segments = std::vector<std::string>;

  Registry registry;
  auto now = Run::Clock::now();
  // A first look finds that something has moved, the second one that nothing has since.
  const auto let_it_be_gone = [&] {
    for (int look = 0; look < 2; ++look) run->finish_dead_ranks(now += 11s);
  };
  first.sample(1, NAN);
  run->discover(&registry);
  run->poll();
  run->publish(&registry);
  EXPECT_EQ(kept(), Segments({"0-0000000000000010"}));
  SegmentOfATrainer second(first.directory, 0, 0x11);
  run->discover(&registry);
  let_it_be_gone();
  run->publish(&registry);
  EXPECT_EQ(kept(), Segments());

  close(lock);
  second.sample(1, NAN);  // is taken when it is known to have ended
  let_it_be_gone();
  run->publish(&registry);
  EXPECT_EQ(kept(), Segments({"0-0000000000000011"}));
}

// A process without the state of its optimizer goes on where the earlier one stopped. Its steps, and the last
// ones of the earlier process, are read before any look at counters and locks.
TEST(Run, AProcessIsAnnouncedBeforeItsFirstStep) {
  SegmentOfATrainer first;
  const RunOptions options = job_options(first.directory + "/record.jsonl");
  auto run = open_run(options, first);
  ASSERT_NE(run, nullptr);
  Registry registry;
  const auto loss = [](int64_t step) { return 1.5 + 2.7 * std::exp(-0.1 * static_cast<double>(step)); };
  first.identity()->pid = 100;
  run->discover(&registry);
  for (int64_t step = 1; step <= 60; ++step) first.step(step, loss(step));
  run->poll();
  for (int64_t step = 61; step <= 64; ++step) first.step(step, loss(step));
  SegmentOfATrainer second(first.directory, 0, 0x11);
  second.identity()->pid = 101;
  for (int64_t step = 1; step <= 8; ++step) second.step(step, loss(64 + step));
  run->discover(&registry);
  run->poll();
  run->publish(&registry);
  const nlohmann::json conditions = run->document(0, false)["conditions"];
  run.reset();  // writes the rest of the record

  std::vector<int64_t> order;  // steps, and minus the process of a "started" line
  std::string error;
  const auto reader = RecordReader::open(options.record, &error);
  ASSERT_NE(reader, nullptr) << error;
  while (const auto line = reader->next()) {
    if (const auto* step = std::get_if<StepLine>(&*line)) order.push_back(*step->step);
    if (const auto* process = std::get_if<RunLine>(&*line)) order.push_back(-*process->pid);
  }
  std::vector<int64_t> expected = {-100};
  for (int64_t step = 1; step <= 64; ++step) expected.push_back(step);
  expected.push_back(-101);
  for (int64_t step = 1; step <= 8; ++step) expected.push_back(step);
  EXPECT_EQ(order, expected);
  ASSERT_EQ(conditions.size(), 1u) << conditions;
  EXPECT_EQ(conditions[0]["condition"], "optimizer_began_again");
}

// Agents that are killed at any moment, each followed by one that goes on: every step and every slice has one
// line, whether the killed one had written it or not.
TEST(Run, WhatAKilledAgentHasTakenIsToldOnce) {
  SegmentOfATrainer trainer;
  const RunOptions options = job_options(trainer.directory + "/record.jsonl");
  const auto follow = [&](bool until_killed) {
    std::string error;
    Registry registry;
    const auto run = Run::open(options, Directory::open(trainer.directory, &error), &error);
    if (run == nullptr) _exit(1);
    run->discover(&registry);
    while (run->poll() || until_killed) {  // a poll ends after 0.25 s of processor time
    }
  };
  constexpr int kAgents = test::kIsSanitized ? 5 : 40, kSteps = 400, kSlices = 4;
  int64_t steps = 0, slices = 0;
  for (int n = 0; n < kAgents; ++n) {
    for (int slice = 0; slice < kSlices; ++slice) trainer.sample(++slices, 1.0);
    for (int step = 0; step < kSteps; ++step) trainer.step(++steps, 2.0);
    const pid_t agent = fork();
    ASSERT_GE(agent, 0);
    if (agent == 0) follow(true);
    usleep(
        static_cast<useconds_t>(n * 20'000 / kAgents));  // from before its first line to after its last one
    kill(agent, SIGKILL);
    waitpid(agent, nullptr, 0);
    follow(false);
  }
  std::map<int64_t, int> steps_told, slices_told;
  std::string error;
  const auto reader = RecordReader::open(options.record, &error);
  ASSERT_NE(reader, nullptr) << error;
  while (const auto line = reader->next()) {
    if (const auto* step = std::get_if<StepLine>(&*line)) ++steps_told[*step->step];
    if (const auto* sample = std::get_if<SampleLine>(&*line)) ++slices_told[*sample->step];
  }
  EXPECT_EQ(steps_told.size(), static_cast<size_t>(steps));
  EXPECT_EQ(slices_told.size(), static_cast<size_t>(slices));
  for (const auto* told : {&steps_told, &slices_told})
    for (const auto& [number, times] : *told) EXPECT_EQ(times, 1) << number;
}

// The losses of `steps` steps from `from` on, of which every `apart` the last three are high.
void train(SegmentOfATrainer* trainer, Run* run, int64_t from, int64_t steps, int64_t apart) {
  for (int64_t n = 0; n < steps; ++n) {
    const bool is_high = apart > 0 && n % apart >= apart - 3;
    trainer->step(from + n, is_high ? 50 : 1 + 1e-3 * static_cast<double>(n % 7));
    if (n % 16 == 15) run->poll();
  }
  run->poll();
}

TEST(Run, FourAttemptsWithNineSpikesSayNine) {
  std::string error;
  SegmentOfATrainer first;
  first.identity()->launcher_id = kLauncher;
  auto run = open_run(job_options(), first);
  ASSERT_NE(run, nullptr);
  Registry registry;
  std::vector<std::unique_ptr<SegmentOfATrainer>> later;
  int64_t step = 1;
  for (uint64_t attempt = 0; attempt < 4; ++attempt) {
    SegmentOfATrainer* trainer = &first;
    if (attempt > 0) {
      later.push_back(std::make_unique<SegmentOfATrainer>(first.directory, 0, 0x10 + attempt));
      trainer = later.back().get();
      trainer->identity()->launcher_id = kLauncher;
    }
    run->discover(&registry);
    train(trainer, run.get(), step, 200, 0);
    train(trainer, run.get(), step + 200, attempt == 0 ? 60 : 40, 20);
    step += attempt == 0 ? 260 : 240;
  }
  const auto counted = [&] {
    run->publish(&registry);
    uint64_t spikes = 0, listed = 0;
    const nlohmann::json ranks = run->document(kLauncher, false)["ranks"];
    for (const nlohmann::json& rank : ranks) {
      if (rank["loss"]["spikes"].is_number()) spikes += rank["loss"]["spikes"].get<uint64_t>();
      listed += rank["precursors"]["loss_events"].size();
    }
    return std::pair(spikes, listed);
  };
  EXPECT_EQ(counted(), std::pair(uint64_t{9}, uint64_t{9}));
  EXPECT_NE(exposition(*registry.snapshot()).find("foreshock_loss_spikes_total{run=\"job\",rank=\"0\"} 9"),
            std::string::npos);
}

TEST(Run, CountsOfLossEventsDoNotFallWhenTheAgentRestarts) {
  SegmentOfATrainer trainer;
  trainer.identity()->launcher_id = kLauncher;
  for (const int64_t spikes : {240, 241}) {
    const auto run = open_run(job_options(), trainer);
    ASSERT_NE(run, nullptr);
    Registry registry;
    run->discover(&registry);
    if (spikes == 240) train(&trainer, run.get(), 1, 200, 0);
    train(&trainer, run.get(), spikes == 240 ? 201 : 201 + 240 * 20, spikes == 240 ? 240 * 20 : 20, 20);
    run->publish(&registry);
    const nlohmann::json rank = run->document(kLauncher, false)["ranks"][0];
    EXPECT_EQ(rank["loss"]["spikes"], spikes);
    EXPECT_EQ(rank["loss"]["first_spike_step"], 218);
    EXPECT_EQ(rank["loss"]["last_spike_step"], 218 + (spikes - 1) * 20);
    EXPECT_EQ(rank["precursors"]["loss_event_count"], spikes);
  }
}

// A command that starts its training again a hundred times a second. Its processes look gone, as above.
TEST(Run, ARestartStormIsDrainedAndItsSegmentsRemoved) {
  SegmentOfATrainer first;
  std::string error;
  const auto run = open_run(job_options(), first);
  ASSERT_NE(run, nullptr);
  const auto launcher = Directory::open(first.directory, &error);
  ASSERT_GE(launcher->lock("run.lock", LOCK_SH), 0);
  for (uint64_t n = 1; n <= 700; ++n) SegmentOfATrainer(first.directory, 0, 0x10 + n).step(1, 2.0);
  Registry registry;
  auto now = Run::Clock::now();
  run->discover(&registry);
  EXPECT_EQ(run->state(), RunState::kRunning) << "not all of them were looked at";
  for (int second = 0; second < 10; ++second) {
    run->finish_dead_ranks(now += 1s);
    run->discover(&registry);
  }
  size_t segments = 0;
  for (const auto& entry : std::filesystem::directory_iterator(first.directory))
    segments += entry.path().extension() == ".seg";
  EXPECT_EQ(segments, 1u) << "the launcher may still report how the last one ended";
  const nlohmann::json document = run->document(0, false);
  EXPECT_LE(document["ranks"].size(), 258u);
  EXPECT_EQ(document["processes_left_out"].get<uint64_t>() + document["ranks"].size(), 701u);
}

}  // namespace
}  // namespace foreshock
