#include "src/core/cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

namespace intarsia {
namespace {

// No mutex and no static that a function initializes: a fork might find either half done.
std::atomic<const ThreadPool*> global_pool{nullptr};

// At load, so that no fork comes before it. What the child forgets is leaked, once: it may be in
// any state. The child makes its pool at its first call, since most children only exec.
[[maybe_unused]] const int forgets_at_fork =
    pthread_atfork(nullptr, nullptr, [] { global_pool.store(nullptr); });

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::exception&) {
    // The system gives no more threads, or no memory for one: those that there are do the work.
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

const ThreadPool& ThreadPool::Global() {
  if (const ThreadPool* pool = global_pool.load(std::memory_order_acquire)) return *pool;
  auto made = std::make_unique<const ThreadPool>(
      std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const ThreadPool* pool = nullptr;  // another thread's, if it was faster
  return global_pool.compare_exchange_strong(pool, made.get()) ? *made.release() : *pool;
}

void ThreadPool::Schedule(std::function<void()> task) const {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void ThreadPool::Work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace intarsia
