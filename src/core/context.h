// Where an op runs: on the threads of a CPU, or on a stream of a GPU.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace intarsia {

// A pool of threads that somebody else owns: XLA's inside a program, ours outside.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int num_threads() const = 0;
  virtual void Schedule(std::function<void()> task) const = 0;
};

// A callable by reference: no allocation, and no template in the code that calls it.
class TileFn {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, TileFn>)
  TileFn(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t tile) {
          (*static_cast<std::remove_reference_t<F>*>(object))(tile);
        }) {}
  void operator()(int64_t tile) const { call_(object_, tile); }

 private:
  void* object_;
  void (*call_)(void*, int64_t);
};

class CpuContext {
 public:
  explicit CpuContext(const Executor* executor = nullptr) : executor_(executor) {}

  // Threads that ParallelFor may use, the caller among them.
  int num_threads() const { return executor_ ? executor_->num_threads() : 1; }

  // Runs fn(0) ... fn(tiles - 1), each once, on the pool and on the caller, and returns when all
  // are done. fn must not throw. It never waits for a queued task, only for tiles that already run,
  // so it cannot deadlock when the caller is itself a thread of the pool (PyAutoFit issue 1530
  // did).
  void ParallelFor(int64_t tiles, TileFn fn) const;

 private:
  const Executor* executor_;
};

namespace cuda {
struct Device;
}

struct CudaContext {
  void* stream = nullptr;                // a cudaStream_t
  const cuda::Device* device = nullptr;  // the current one; RunCuda looks it up if null
};

}  // namespace intarsia
