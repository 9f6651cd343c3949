// CpuContext::ParallelFor, over pools that behave and over one that does not.
#include "src/core/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "src/core/context.h"
#include "tests/core/full.h"

namespace intarsia {
namespace {

// Runs `tiles` tiles and expects that each ran once.
void ExpectEachOnce(const CpuContext& context, int64_t tiles) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(tiles));
  context.ParallelFor(tiles, [&](int64_t tile) { ++runs[static_cast<size_t>(tile)]; });
  for (const auto& count : runs) ASSERT_EQ(count, 1);
}

TEST(ParallelFor, RunsEachTileOnce) {
  for (const int threads : {1, 2, 3, 16}) {
    const ThreadPool pool(threads);
    const CpuContext context(&pool);
    EXPECT_EQ(context.num_threads(), threads);
    for (const int64_t tiles : {0, 1, 2, 3, 17, 1000}) ExpectEachOnce(context, tiles);
  }
}

// In a process of its own, which has no memory for so many threads.
TEST(ParallelFor, DoesWithTheThreadsThatThereAre) {
  constexpr int kThreads = 256;
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{64} << 20);
    const rlimit limit{most, most};
    if (pages == 0 || setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const ThreadPool pool(kThreads);
    if (pool.num_threads() >= kThreads) _exit(3);
    ExpectEachOnce(CpuContext(&pool), 1000);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ParallelFor, RunsOnTheCallerWithoutAPool) {
  const CpuContext context;
  EXPECT_EQ(context.num_threads(), 1);
  const std::thread::id caller = std::this_thread::get_id();
  context.ParallelFor(5, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ParallelFor, RunsOnSeveralThreads) {
  const ThreadPool pool(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> waiting{0};
  // Four tiles that wait for each other can only end if four threads run them.
  CpuContext(&pool).ParallelFor(4, [&](int64_t) {
    ++waiting;
    while (waiting < 4) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 4u);
}

TEST(ParallelFor, NestsWithoutDeadlock) {
  for (const int threads : {1, 2, 5}) {
    const ThreadPool pool(threads);
    const CpuContext context(&pool);
    std::atomic<int> runs{0};
    context.ParallelFor(20, [&](int64_t) {
      context.ParallelFor(10, [&](int64_t) { context.ParallelFor(3, [&](int64_t) { ++runs; }); });
    });
    EXPECT_EQ(runs, 600);
  }
}

TEST(ParallelFor, CalledByEveryThreadOfItsPool) {
  constexpr int kThreads = 3, kCalls = 50;
  const ThreadPool pool(kThreads);
  std::vector<std::promise<void>> done(kCalls);
  for (auto& promise : done) {
    pool.Schedule([&] {
      ExpectEachOnce(CpuContext(&pool), 100);
      promise.set_value();
    });
  }
  for (auto& promise : done) promise.get_future().wait();
}

TEST(ParallelFor, CalledByManyThreadsAtOnce) {
  const ThreadPool pool(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) ExpectEachOnce(CpuContext(&pool), 7);
    });
  for (std::thread& caller : callers) caller.join();
}

// Runs what was scheduled only when told to.
class LateExecutor final : public Executor {
 public:
  int num_threads() const override { return 8; }
  void Schedule(std::function<void()> task) const override { tasks_.push_back(std::move(task)); }
  void RunAll() const {
    for (const auto& task : tasks_) task();
  }
  size_t size() const { return tasks_.size(); }

 private:
  mutable std::vector<std::function<void()>> tasks_;
};

TEST(ParallelFor, DoesNotWaitForQueuedTasks) {
  const LateExecutor pool;
  int runs = 0;
  {
    const auto count = [&](int64_t) { ++runs; };
    CpuContext(&pool).ParallelFor(5, count);
  }
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(pool.size(), 4u);  // helpers for the other tiles
  pool.RunAll();               // too late: fn is gone, and they must not call it
  EXPECT_EQ(runs, 5);
}

// How a child of fork ended that ran fn: 0 if fn returned true, the signal's number if it hung.
template <class Fn>
int InAChild(Fn fn) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(fn() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

bool CallsGlobal(int times) {
  std::atomic<int> runs{0};
  for (int i = 0; i < times; ++i)
    CpuContext(&ThreadPool::Global()).ParallelFor(16, [&](int64_t) { ++runs; });
  return runs == 16 * times;
}

#if defined(__SANITIZE_THREAD__)
#define INTARSIA_FORKS DISABLED_ThreadPoolForks  // TSan ends a child that makes threads
#else
#define INTARSIA_FORKS ThreadPoolForks
#endif

// The child inherits the mutex as another thread of the parent left it.
TEST(INTARSIA_FORKS, WhileOthersCall) {
#if defined(INTARSIA_EMULATED)
  GTEST_SKIP() << "qemu's own locks hang in a child that inherits them held";
#endif
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      while (!stop) CallsGlobal(1);
    });
  for (int i = 0; i < (Full() ? 200 : 40); ++i) {
    const int status = InAChild([] { return CallsGlobal(20); });
    EXPECT_EQ(status, 0) << i;
    if (status != 0) break;
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

TEST(INTARSIA_FORKS, TheChildHasThreadsOfItsOwn) {
  ASSERT_TRUE(CallsGlobal(1));
  EXPECT_EQ(InAChild([] {
              const ThreadPool& pool = ThreadPool::Global();
              if (pool.num_threads() == 1) return true;
              std::promise<void> ran;
              pool.Schedule([&] { ran.set_value(); });
              ran.get_future().wait();  // for ever if nobody drains the queue
              return true;
            }),
            0);
}

TEST(ThreadPool, EndsWithTasksInTheQueue) {
  std::atomic<bool> release{false};
  std::thread releaser;
  {
    const ThreadPool pool(2);
    for (int i = 0; i < 100; ++i)
      pool.Schedule([&] {
        while (!release) std::this_thread::yield();
      });
    releaser = std::thread([&] { release = true; });
  }  // the destructor returns
  releaser.join();
}

}  // namespace
}  // namespace intarsia
