#include "src/core/cpu/thread_pool.h"

#include <algorithm>

namespace intarsia {

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
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
  static const ThreadPool* const pool =
      new ThreadPool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return *pool;
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
