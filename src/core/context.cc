#include "src/core/context.h"

#include <algorithm>
#include <atomic>

namespace intarsia {

void CpuContext::ParallelFor(int64_t tiles, TileFn fn) const {
  const int64_t helpers = std::min<int64_t>(num_threads(), tiles) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < tiles; ++i) fn(i);
    return;
  }
  // A helper that starts after all tiles are claimed touches only the job, never fn, whose frame
  // may be gone by then: hence the shared ownership.
  struct Job {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto job = std::make_shared<Job>();
  auto work = [job, tiles, fn] {
    int64_t mine = 0;
    for (int64_t i; (i = job->next.fetch_add(1)) < tiles; ++mine) fn(i);
    if (mine && job->done.fetch_add(mine) + mine == tiles) job->done.notify_all();
  };
  for (int64_t h = 0; h < helpers; ++h) {
    try {
      executor_->Schedule(work);
    } catch (...) {
      break;  // out of memory: fewer helpers do the same work, and those that run need this frame
    }
  }
  work();
  for (int64_t done; (done = job->done.load()) != tiles;) job->done.wait(done);
}

}  // namespace intarsia
