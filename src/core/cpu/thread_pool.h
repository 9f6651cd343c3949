// A pool of threads for calls from outside XLA, which brings its own.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "src/core/context.h"

namespace intarsia {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  // One thread a core. Never destroyed: its threads may outlive main. After a fork the child has
  // one of its own: no thread but the caller's is there, and the parent's may hold the mutex.
  static const ThreadPool& Global();

  int num_threads() const override {
    return static_cast<int>(threads_.size()) + 1;
  }  // and the caller
  void Schedule(std::function<void()> task) const override;

 private:
  void Work();

  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  mutable std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace intarsia
