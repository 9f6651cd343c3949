// Runs CUDA kernels on a CPU, so that tests without a GPU see what Hopper's kernels compute, and
// where their warps wait forever. A kernel is compiled by the host's compiler: headers of
// src/core/cuda that are made of PTX have counterparts under this folder, which comes first on the
// include path, and builtins.h has what CUDA C++ adds to C++.
//
// Blocks run one after the other. Each thread of a block is a fiber that gives up the CPU where it
// has to wait: for the other lanes of a warp, at a barrier. Warps take turns in an order that is
// drawn anew each time, and copies of the copy engine end some turns later, so that a race or a
// deadlock has many chances. What is not seen: caches, fences of the memory model, registers that a
// product in flight should not touch, bank conflicts, and time.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace intarsia::emulator {

// Threads that do something together: a warp, or a warpgroup.
struct Team {
  static constexpr int kMost = 128;
  const char* what = nullptr;  // they do
  int arrived = 0;
  uint32_t generation = 0;
  void* of_thread[kMost];
};

// A barrier of bar.sync.
struct NamedBarrier {
  int arrived = 0, threads = 0;
  uint32_t generation = 0;
  bool any = false, last_any = false;
};

struct Block {
  uint3 index;
  dim3 dim, grid;
  int threads;
  std::vector<Team> warps, warpgroups;
  NamedBarrier barriers[16];
  std::vector<std::function<void()>> copies;  // of the copy engine, on their way
  bool grid_came = false;  // all blocks wait in AwaitGrid, so that none does any longer
  uint64_t progress = 0;   // grows whenever something happens that a fiber may wait for
};

struct Fiber {
  void* stack_pointer = nullptr;
  uint3 index;
  int number;  // in the block
  bool done = false;
  bool waits_for_grid = false;
};

// Of the device, until a kernel is launched: few, so that each block gets several tasks.
inline int multiprocessors = 5;

// Those that run.
extern Block* block;
extern Fiber* fiber;

// Runs the blocks of a grid, each thread of them by `thread`, one block after the other until it
// ends or waits for the grid, as those of a cooperative launch may.
void Run(dim3 grid, dim3 dim, bool cooperative, const std::function<void()>& thread);

// Lets others run.
void Yield();

// Until all threads of all blocks have come here. Shared memory is lost meanwhile.
void AwaitGrid();

// Ends the program, since the kernel has a fault.
[[noreturn]] void Fail(const char* what);

// ---------------------------------------------------------------- shared memory

inline constexpr uint32_t kSharedBytes = 227 * 1024, kSharedBegin = 1024;  // 0 is no address

char* DynamicShared();
// Between pointers and the 32-bit addresses of PTX.
uint32_t AddressOf(const void* shared);
char* At(uint32_t address);

// ---------------------------------------------------------------- together

inline int Lane() { return fiber->number % 32; }
inline Team& OwnWarp() { return block->warps[fiber->number / 32]; }
inline Team& OwnWarpgroup() { return block->warpgroups[fiber->number / 128]; }

// All threads of a team call it. The last one calls run(of_thread), where of_thread[i] is what
// thread i gave.
void Gather(Team& team, int size, int place, const char* what, void* own,
            const std::function<void(void**)>& run);

template <class Data, class F>
void InWarp(const char* what, Data& own, F run) {
  Gather(OwnWarp(), 32, Lane(), what, &own,
         [&](void** all) { run(reinterpret_cast<Data**>(all)); });
}
template <class Data, class F>
void InWarpgroup(const char* what, Data& own, F run) {
  Gather(OwnWarpgroup(), 128, fiber->number % 128, what, &own,
         [&](void** all) { run(reinterpret_cast<Data**>(all)); });
}

// bar.sync, or bar.arrive, which does not wait.
// Returns whether any of the threads at the barrier gave `mine`, if it waits.
bool ArriveAt(int barrier, int threads, bool waits, bool mine = false);

}  // namespace intarsia::emulator
