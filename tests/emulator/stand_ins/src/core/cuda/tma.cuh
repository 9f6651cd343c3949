// The counterpart of src/core/cuda/tma.cuh, which says what each function does.
#pragma once
#include <cuda.h>

#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/ring_place.h"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::cuda {

class Barrier {
 public:
  void Init(int count) {
    count_ = pending_ = static_cast<uint16_t>(count);
    bytes_ = 0;
    phase_ = 0;
  }
  void Arrive(int threads = 1) {
    if (pending_ < threads) emulator::Fail("more arrivals than an mbarrier counts");
    pending_ = static_cast<uint16_t>(pending_ - threads);
    EndPhase();
  }
  void ArriveExpecting(int bytes) {
    bytes_ += bytes;
    Arrive();
  }
  void Receive(int bytes) {
    bytes_ -= bytes;
    EndPhase();
  }
  void Wait(uint32_t parity) {
    while (!Ended(parity)) emulator::Yield();
  }
  bool Ended(uint32_t parity) { return phase_ != parity; }

 private:
  void EndPhase() {
    if (pending_ > 0 || bytes_ != 0) return;
    pending_ = count_;
    phase_ ^= 1;
    ++emulator::block->progress;
  }

  uint16_t count_, pending_;
  int32_t bytes_ : 31;
  uint32_t phase_ : 1;
};
static_assert(sizeof(Barrier) == 8);

inline void PublishBarriers() {}
inline void FenceForAsyncReads() {}
inline void PrefetchMap(const CUtensorMap&) {}
template <int kCount>
void ReleaseRegisters() {}
template <int kCount>
void TakeRegisters() {}

// What the runtime of the emulator keeps in a tensor map, fastest axis first.
struct MapContents {
  static constexpr int kAxes = 5;
  const char* data;
  int element_bytes, axes;
  int64_t size[kAxes], stride_bytes[kAxes];
  int box[kAxes];
  bool swizzled;
};
static_assert(sizeof(MapContents) <= sizeof(CUtensorMap));

// Calls each(shared, element, bytes) for the elements of a box; `element` is null outside of the
// tensor. Returns the box's bytes.
template <class Each>
int ForEachInBox(const MapContents& map, const std::vector<int64_t>& begin, uint32_t shared,
                 Each each) {
  int64_t rows = 1;
  for (int axis = 1; axis < map.axes; ++axis) rows *= map.box[axis];
  const int bytes = map.element_bytes;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = 0, rest = row;
    bool exists = true;
    for (int axis = 1; axis < map.axes; ++axis) {
      const int64_t at = begin[axis] + rest % map.box[axis];
      rest /= map.box[axis];
      exists &= at >= 0 && at < map.size[axis];
      offset += at * map.stride_bytes[axis];
    }
    for (int i = 0; i < map.box[0]; ++i) {
      const int64_t column = begin[0] + i;
      const uint32_t plain = shared + static_cast<uint32_t>((row * map.box[0] + i) * bytes);
      char* const place = emulator::At(map.swizzled ? Swizzle128(plain) : plain);
      const bool inside = exists && column >= 0 && column < map.size[0];
      each(place, inside ? map.data + offset + column * bytes : nullptr, bytes);
    }
  }
  return static_cast<int>(rows * map.box[0] * bytes);
}
template <int kAxes>
const MapContents& ContentsOf(const CUtensorMap& tensor, uint32_t shared) {
  const auto& map = reinterpret_cast<const MapContents&>(tensor);
  if (map.axes != kAxes) emulator::Fail("a copy of other axes than its map");
  if (shared % kPanelRowBytes)
    emulator::Fail("a box that does not begin at a multiple of 128 bytes");
  return map;
}

template <int kAxes>
void CopyBox(void* shared, const CUtensorMap& tensor, const int32_t (&coordinates)[kAxes],
             Barrier& barrier) {
  const uint32_t to = emulator::AddressOf(shared);
  const MapContents& map = ContentsOf<kAxes>(tensor, to);
  const std::vector<int64_t> begin(coordinates, coordinates + kAxes);
  emulator::block->copies.push_back([=, &map, &barrier] {
    barrier.Receive(ForEachInBox(map, begin, to, [](char* place, const char* element, int bytes) {
      element ? std::memcpy(place, element, bytes) : std::memset(place, 0, bytes);
    }));
  });
}

template <int kAxes>
void CopyBox(void* shared, const CUtensorMap& map, const int32_t (&at)[kAxes], Barrier& barrier,
             bool) {
  CopyBox<kAxes>(shared, map, at, barrier);
}

inline void CopyBytes(void* shared, const void* from, int bytes, Barrier& barrier) {
  const uint32_t to = emulator::AddressOf(shared);
  if (bytes % 16 || to % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    emulator::Fail("a copy that is not of whole 16 bytes");
  emulator::block->copies.push_back([=, &barrier] {
    std::memcpy(emulator::At(to), from, bytes);
    barrier.Receive(bytes);
  });
}

inline void BarrierArrive(int id, int threads) { emulator::ArriveAt(id, threads, false); }

inline void StMatrix4(uint32_t shared, const uint32_t (&r)[4]) {
  MatrixRows own{shared, const_cast<uint32_t*>(r)};
  emulator::InWarp("stmatrix", own, [](MatrixRows** lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix)
        std::memcpy(emulator::At(lanes[8 * matrix + lane / 4]->address + lane % 4 * 4),
                    &lanes[lane]->registers[matrix], 4);
    }
  });
}

}  // namespace intarsia::cuda
