// Memory of a call: each tensor as large as it must be, between a page that may not be touched and
// bytes that must stay as they are.
#pragma once
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace intarsia::fuzz {

// What was drawn, for the text of a finding.
inline std::function<std::string()> describe;

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "FINDING: %s\n%s\n", what.c_str(), describe ? describe().c_str() : "");
  std::abort();
}

inline constexpr size_t kMostBytes = size_t{1} << 14;  // of a tensor
inline constexpr size_t kEdge = 64;                    // bytes beside it that are watched

// What memory holds at first.
inline constexpr unsigned char kPoisons[] = {0xa5, 0x5a};

// What a call may do with a region.
enum class Role {
  kRead,
  kResult,     // must write each byte
  kInPlace,    // must write where `mask` is set, or everywhere if it is empty; initially an operand
  kWorkspace,  // may write
};

struct Region {
  std::string name;
  Role role = Role::kRead;
  size_t bytes = 0;
  bool at_front = false;               // of its slot: an access before it is one to the guard page
  std::vector<unsigned char> initial;  // empty of results
  std::vector<bool> mask;
  unsigned char* begin = nullptr;

  std::vector<unsigned char> Content() const { return {begin, begin + bytes}; }
};

class Arena {
 public:
  static constexpr size_t kSlots = 26, kPage = 4096;
  static constexpr size_t kSlotBytes = kMostBytes + kPage;

  Arena() {
    constexpr size_t kAll = kSlots * (kSlotBytes + kPage) + kPage;
    void* memory = mmap(nullptr, kAll, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    base_ = static_cast<unsigned char*>(memory) + kPage;
    for (size_t i = 0; i < kSlots; ++i)
      if (mprotect(Slot(i), kSlotBytes, PROT_READ | PROT_WRITE) != 0) std::abort();
  }

  void Clear() { count_ = 0; }
  // Room for regions is fixed, so that pointers to them hold.
  Region& Add(std::string name, Role role, size_t bytes, bool at_front) {
    if (count_ == kSlots || bytes > kMostBytes) Fail("the fuzzer asks for too much memory");
    Region& region = regions_[count_];
    region.name = std::move(name);
    region.role = role;
    region.bytes = bytes;
    region.at_front = at_front;
    region.initial.clear();
    region.mask.clear();
    region.begin = at_front ? Slot(count_) : Slot(count_) + kSlotBytes - bytes;
    ++count_;
    return region;
  }

  // Operands as they were drawn, all else `poison`.
  void Fill(unsigned char poison) {
    for (size_t i = 0; i < count_; ++i) {
      Region& region = regions_[i];
      std::memset(Edge(region), poison, kEdge);
      if (region.bytes == 0) continue;
      if (region.initial.empty())
        std::memset(region.begin, poison, region.bytes);
      else
        std::memcpy(region.begin, region.initial.data(), region.bytes);
    }
  }

  // After a call that was refused (`ran` false) or has run over memory filled with `poison`.
  void Check(bool ran, unsigned char poison) const {
    static const std::vector<unsigned char> kPoisoned[] = {
        std::vector<unsigned char>(kMostBytes, kPoisons[0]),
        std::vector<unsigned char>(kMostBytes, kPoisons[1])};
    const unsigned char* const poisoned = kPoisoned[poison == kPoisons[1]].data();
    for (size_t i = 0; i < count_; ++i) {
      const Region& region = regions_[i];
      if (std::memcmp(Edge(region), poisoned, kEdge) != 0) Fail("writes beside " + region.name);
      if (ran && region.role != Role::kRead && region.mask.empty()) continue;
      const unsigned char* want = region.initial.empty() ? poisoned : region.initial.data();
      if (region.bytes == 0 || std::memcmp(region.begin, want, region.bytes) == 0) continue;
      for (size_t byte = 0; byte < region.bytes; ++byte)
        if (region.begin[byte] != want[byte] && !(ran && !region.mask.empty() && region.mask[byte]))
          Fail((ran ? "writes to " : "is refused, but writes to ") + region.name);
    }
  }

  std::vector<std::vector<unsigned char>> Results() const {
    std::vector<std::vector<unsigned char>> results;
    for (size_t i = 0; i < count_; ++i)
      if (regions_[i].role == Role::kResult || regions_[i].role == Role::kInPlace)
        results.push_back(regions_[i].Content());
    return results;
  }

 private:
  unsigned char* Slot(size_t i) const { return base_ + i * (kSlotBytes + kPage); }
  static unsigned char* Edge(const Region& region) {
    return region.at_front ? region.begin + region.bytes : region.begin - kEdge;
  }

  unsigned char* base_;
  size_t count_ = 0;
  std::array<Region, kSlots> regions_;
};

// Runs a call twice over memory that holds different things at first, and checks what it wrote.
// `run` gives 0 where the call has run. The results, where it has.
template <class Run>
std::vector<std::vector<unsigned char>> RunTwice(Arena& arena, bool& ran, Run run) {
  std::vector<std::vector<unsigned char>> results[2];
  bool outcome[2];
  for (int i = 0; i < 2; ++i) {
    arena.Fill(kPoisons[i]);
    outcome[i] = run() == 0;
    arena.Check(outcome[i], kPoisons[i]);
    if (outcome[i]) results[i] = arena.Results();
  }
  ran = outcome[0];
  if (outcome[0] != outcome[1]) Fail("runs once, and is refused once");
  if (results[0] != results[1])
    Fail("leaves bytes of a result, or gives other bits at a repetition");
  return results[0];
}

}  // namespace intarsia::fuzz
