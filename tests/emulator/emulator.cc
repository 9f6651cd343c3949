#include "tests/emulator/emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

namespace intarsia::emulator {

Block* block = nullptr;
Fiber* fiber = nullptr;

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kIdleRounds = 1000;  // without progress: a deadlock

alignas(1024) char shared_memory[kSharedBytes];
std::mt19937 random_order(20261126);
const std::function<void()>* thread_function = nullptr;
void* scheduler_stack_pointer = nullptr;

}  // namespace

// Saves the registers that a function preserves (System V ABI, x86-64), and goes on with another
// stack.
extern "C" void EmulatorSwitch(void** from, void* to);
asm(R"(
.text
EmulatorSwitch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

void Yield() { EmulatorSwitch(&fiber->stack_pointer, scheduler_stack_pointer); }

void Fail(const char* what) {
  std::printf("emulator: %s", what);
  if (block) std::printf(", block %u, %u, %u", block->index.x, block->index.y, block->index.z);
  if (fiber) std::printf(", thread %d", fiber->number);
  std::printf("\n");
  std::fflush(stdout);
  std::abort();
}

namespace {

void RunFiber() {
  (*thread_function)();
  fiber->done = true;
  ++block->progress;
  Yield();
}

// A stack whose first switch begins RunFiber, as if it had been called.
void* FirstStackPointer(char* stack) {
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&RunFiber);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}

using Stacks = std::vector<std::unique_ptr<char[]>>;

std::vector<Fiber> FibersOf(const Block& b, Stacks& stacks) {
  std::vector<Fiber> fibers(b.threads);
  for (int i = 0; i < b.threads; ++i) {
    if (static_cast<int>(stacks.size()) == i)
      stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
    const unsigned n = static_cast<unsigned>(i);
    fibers[i].number = i;
    fibers[i].index = {n % b.dim.x, n / b.dim.x % b.dim.y, n / (b.dim.x * b.dim.y)};
    fibers[i].stack_pointer = FirstStackPointer(stacks[i].get());
  }
  return fibers;
}

// Ends about a third of the copies on their way.
void EndSomeCopies() {
  std::vector<std::function<void()>> left;
  for (auto& copy : block->copies) {
    if (random_order() % 3) {
      left.push_back(std::move(copy));
    } else {
      copy();
      ++block->progress;
    }
  }
  block->copies = std::move(left);
}

// Until all threads of the block have ended or wait for the grid; whether they wait.
bool RunBlock(std::vector<Fiber>& fibers) {
  std::memset(shared_memory, 0xff, sizeof shared_memory);  // NaN in every type
  std::vector<int> warps(block->warps.size());
  std::iota(warps.begin(), warps.end(), 0);
  int left = block->threads, idle = 0;
  const auto stopped = [&](const Fiber& f) {
    return f.done || (f.waits_for_grid && !block->grid_came);
  };
  while (left > 0) {
    const uint64_t before = block->progress;
    std::shuffle(warps.begin(), warps.end(), random_order);
    for (const int warp : warps) {
      for (int i = warp * 32; i < std::min(block->threads, warp * 32 + 32); ++i) {
        if (stopped(fibers[i])) continue;
        fiber = &fibers[i];
        EmulatorSwitch(&scheduler_stack_pointer, fiber->stack_pointer);
        left -= stopped(fibers[i]);
      }
    }
    EndSomeCopies();
    idle = block->progress == before && block->copies.empty() ? idle + 1 : 0;
    if (idle > kIdleRounds) Fail("deadlock");
  }
  fiber = nullptr;
  if (!block->copies.empty()) Fail("a block ended before its copies");
  const auto waiting = std::ranges::count_if(fibers, [](const Fiber& f) { return !f.done; });
  if (waiting > 0 && waiting < block->threads) Fail("not all threads of a block wait for the grid");
  return waiting > 0;
}

}  // namespace

void AwaitGrid() {
  fiber->waits_for_grid = true;
  while (!block->grid_came) Yield();
}

void Run(dim3 grid, dim3 dim, bool cooperative, const std::function<void()>& thread) {
  struct Waiting {
    Block block;
    std::vector<Fiber> fibers;
    Stacks stacks;
  };
  std::vector<Waiting> waiting;
  static Stacks stacks;
  thread_function = &thread;
  const int threads = static_cast<int>(dim.x * dim.y * dim.z);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        Block b{.index = {x, y, z}, .dim = dim, .grid = grid, .threads = threads};
        b.warps.resize((threads + 31) / 32);
        b.warpgroups.resize((threads + 127) / 128);
        block = &b;
        std::vector<Fiber> fibers = FibersOf(b, stacks);
        if (RunBlock(fibers)) waiting.push_back({b, fibers, std::move(stacks)});
        block = nullptr;
      }
    }
  }
  if (waiting.empty()) return;
  if (!cooperative) Fail("blocks of a launch that is not cooperative wait for the grid");
  if (waiting.size() != size_t{grid.x} * grid.y * grid.z)
    Fail("not all blocks of a grid wait for it");
  for (Waiting& w : waiting) {
    block = &w.block;
    block->grid_came = true;
    RunBlock(w.fibers);
    block = nullptr;
  }
}

char* DynamicShared() { return shared_memory; }
uint32_t AddressOf(const void* shared) {
  const auto at = static_cast<const char*>(shared) - shared_memory;
  if (at < 0 || at >= int64_t{kSharedBytes}) Fail("a pointer is not into dynamic shared memory");
  return static_cast<uint32_t>(at) + kSharedBegin;
}
char* At(uint32_t address) {
  if (address < kSharedBegin || address - kSharedBegin >= kSharedBytes)
    Fail("an address beyond shared memory");
  return shared_memory + (address - kSharedBegin);
}

void Gather(Team& team, int size, int place, const char* what, void* own,
            const std::function<void(void**)>& run) {
  if (team.arrived > 0 && std::strcmp(team.what, what) != 0) {
    std::printf("emulator: %s and %s\n", team.what, what);
    Fail("threads that should do the same do not");
  }
  team.what = what;
  team.of_thread[place] = own;
  const uint32_t generation = team.generation;
  if (++team.arrived < size) {
    while (team.generation == generation) Yield();
    return;
  }
  run(team.of_thread);
  team.arrived = 0;
  ++team.generation;
  ++block->progress;
}

bool ArriveAt(int barrier, int threads, bool waits, bool mine) {
  NamedBarrier& b = block->barriers[barrier];
  const uint32_t generation = b.generation;
  b.any |= mine;
  if (b.arrived > 0 && b.threads != threads) Fail("threads at a barrier that count it differently");
  b.threads = threads;
  if (++b.arrived > threads) Fail("more threads at a barrier than it counts");
  if (b.arrived == threads) {
    b.arrived = 0;
    b.last_any = b.any;
    b.any = false;
    ++b.generation;
    ++block->progress;
  } else if (waits) {
    while (b.generation == generation) Yield();
  }
  return b.last_any;
}

}  // namespace intarsia::emulator
