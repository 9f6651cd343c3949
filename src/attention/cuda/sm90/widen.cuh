// K and V in codes of fp8: warps of their own widen them to f16, which holds every code exactly, so
// that consumers find the tiles that they have in 16-bit types. bf16 of the codes would take these
// warps three times as many instructions; so the products are f16's where q is bf16, too. Its rows
// become f16 times a power of two that keeps them within f16's range (mma_fp8.cuh), by which scores
// are divided.
//
// With K_n and V_n a task's tiles of keys, all that comes to shared memory comes in the order
//   K_0, Q, K_1, V_0, K_2, V_1, ..., V_last
// and is widened in it. No warp waits forever: a consumer waits for nothing behind K_n+2 before it
// releases V_n, for nothing behind V_n-1 before it releases K_n, and for nothing of the next task
// before it releases Q. So the room for K_n+2, for V_n+2 and for the next Q waits for what comes
// earlier in that order, and with it does all that waits behind them.
#pragma once
#include "src/attention/cuda/sm90/producer.cuh"
#include "src/core/cuda/mma_fp8.cuh"

namespace intarsia::attention::sm90 {

// Copies Q, and K and V in codes; a warp.
template <class S, class T>
__device__ __forceinline__ void CopyCodes(const Params& p, const Maps& maps, const LaunchPlan& plan,
                                          Shared<S>& shared) {
  using Box = typename TileWalk<S>::Box;
  const bool elected = threadIdx.x % 32 == 0;
  const TileWalk<S> walk(p, plan);
  cuda::RingPlace<S::kRawStages> raw;
  uint32_t q_parity = 0;
  const auto copy = [&]<int kPanels>(const CUtensorMap& map, const Box& box, const Task& task,
                                     uint32_t boxes) {
    shared.raw_empty[raw.index].Wait(raw.parity ^ 1);
    cuda::Barrier& full = shared.raw_full[raw.index];
    if (elected) {
      shared.codes.boxes[raw.index] = boxes;
      full.ArriveExpecting(S::kTileKeys * kPanels * cuda::kPanelRowBytes);
    }
    walk.template Copy<kPanels>(shared.raw.tiles[raw.index], map, box, task, full);
    raw.Next();
  };
  const auto copy_query = [&](const Task& task) {
    if constexpr (kNarrowsQuery<S, T>)
      CopyQuery<S>(maps, plan, shared, task, elected, q_parity, shared.codes.q_landed);
    else
      CopyQuery<S>(maps, plan, shared, task, elected, q_parity, shared.q_full);
  };
  ForEachTask(shared, [&](const Task& task) {
    if (task.keys.count == 0) copy_query(task);
    Box before;  // of the tile of keys whose V comes next
    const auto copy_values = [&] {
      copy.template operator()<S::kCopiedValuePanels>(maps.v, before, task, 0);
    };
    walk.ForEachTile(task, [&](int first_key, const Box& box, uint32_t missing) {
      copy.template operator()<S::kCopiedKeyPanels>(maps.k, box, task, ~missing);
      if (first_key == task.keys.last_key)
        copy_query(task);
      else
        copy_values();
      before = box;
    });
    if (task.keys.count > 0) copy_values();
  });
}

template <DType kType>
__device__ __forceinline__ uint4 Widened(const uint2& codes) {
  uint4 unit;
  cuda::Fp8NeighborsToF16<kType>(codes.x, unit.x, unit.y);
  cuda::Fp8NeighborsToF16<kType>(codes.y, unit.z, unit.w);
  return unit;
}

// This warp's part of a tile of kColumns columns: every kWideners-th eight rows.
template <class S, int kColumns, DType kType>
__device__ __forceinline__ void WidenTile(const char* from, char* to, int number) {
  constexpr int kEights = S::kTileKeys / 8, kSteps = (kColumns + 63) / 64;  // of eight rows
  constexpr int kAtOnce = EightsAtOnce((kEights + S::kWideners - 1) / S::kWideners, kSteps);
  constexpr int kPanelBytes = S::kTileKeys * cuda::kPanelRowBytes;
  constexpr int kStride = S::kWideners * cuda::kSwizzleAtomBytes;
  // Of each step, from the first of its eight rows.
  uint32_t read[kSteps], write[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const bool pair = step < kSteps / 2 * 2;
    const WideningLane lane = WideningLaneOf(static_cast<int>(threadIdx.x) % 32, pair, step % 2);
    read[step] = lane.read + step / 2 * kPanelBytes;
    write[step] = lane.write + (step / 2 * 2 + lane.panel) * kPanelBytes;
  }
  const auto exists = [&](int eight) { return kEights % S::kWideners == 0 || eight < kEights; };
#pragma unroll
  for (int first = 0; first < kEights; first += kAtOnce * S::kWideners) {
    const char* const rows = from + (first + number) * cuda::kSwizzleAtomBytes;
    char* const wide_rows = to + (first + number) * cuda::kSwizzleAtomBytes;
    // Loads go ahead of stores, for their latency; the compiler may not exchange the two.
    uint2 codes[kAtOnce][kSteps][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!exists(first + number + i * S::kWideners)) continue;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const char* const at = rows + i * kStride;
        codes[i][step][0] = *reinterpret_cast<const uint2*>(at + read[step]);
        codes[i][step][1] = *reinterpret_cast<const uint2*>(at + (read[step] ^ kOtherHalfRead));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!exists(first + number + i * S::kWideners)) continue;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        char* const at = wide_rows + i * kStride;
        *reinterpret_cast<uint4*>(at + write[step]) = Widened<kType>(codes[i][step][0]);
        *reinterpret_cast<uint4*>(at + (write[step] ^ kOtherHalfWrite)) =
            Widened<kType>(codes[i][step][1]);
      }
    }
  }
}

// A warp that widens codes: number `number` of kWideners.
template <class S, class T>
class Widener {
 public:
  __device__ Widener(const Params& p, const LaunchPlan& plan, Shared<S>& shared, int number)
      : plan_(plan), shared_(shared), number_(number), e5m2_(p.cache.dtype == DType::kF8E5M2) {}

  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const Task& task) {
      const int count = task.keys.count;
      for (int i = 0; i <= count; ++i) {
        if (i < count) WidenKeys();
        if (i > 0) WidenValues(task, task.keys.last_key - (i - 1) * S::kTileKeys);
        if constexpr (kNarrowsQuery<S, T>) {
          if (i == 0) NarrowQuery(task);
        }
      }
    });
  }

 private:
  static constexpr int kWarpRows = 16;  // of a consumer's warp

  __device__ __forceinline__ bool elected() const { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ void WidenKeys() {
    shared_.raw_full[raw_.index].Wait(raw_.parity);
    shared_.k_empty[k_.index].Wait(k_.parity ^ 1);
    if (number_ == 0 && elected()) shared_.boxes[k_.index] = shared_.codes.boxes[raw_.index];
    Widen<S::kD>(shared_.k[k_.index], shared_.k_full[k_.index]);
    k_.Next();
  }

  __device__ __forceinline__ void WidenValues(const Task& task, int first_key) {
    shared_.raw_full[raw_.index].Wait(raw_.parity);
    const StrayRows stray = StrayRowsOf(first_key, task.first_visible, task.sequence.len_k,
                                        S::kTileKeys, plan_.box_rows);
    if (stray.any()) {
      ClearCodes(stray);
      __syncwarp();
    }
    shared_.v_empty[v_.index].Wait(v_.parity ^ 1);
    Widen<S::kDv>(shared_.v[v_.index], shared_.v_full[v_.index]);
    v_.Next();
  }

  // The next raw tile.
  template <int kColumns>
  __device__ __forceinline__ void Widen(char* to, cuda::Barrier& full) {
    const char* const from = shared_.raw.tiles[raw_.index];
    if (e5m2_)
      WidenTile<S, kColumns, DType::kF8E5M2>(from, to, number_);
    else
      WidenTile<S, kColumns, DType::kF8E4M3>(from, to, number_);
    cuda::FenceForAsyncReads();  // and before the copy engine writes where rows were cleared
    __syncwarp();
    if (elected()) {
      full.Arrive();
      shared_.raw_empty[raw_.index].Arrive();
    }
    raw_.Next();
  }

  // As ClearRows, of the rows that this warp widens.
  __device__ __forceinline__ void ClearCodes(const StrayRows& stray) {
    char* const tile = shared_.raw.tiles[raw_.index];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int eight = number_; eight < S::kTileKeys / 8; eight += S::kWideners) {
      const int row = eight * 8 + lane / 4;
      if (row >= stray.head && (row < stray.tail || row >= stray.tail_end)) continue;
      for (int panel = 0; panel < S::kCopiedValuePanels; ++panel) {
        char* const at = tile + (panel * S::kTileKeys + row) * cuda::kPanelRowBytes + lane % 4 * 32;
        reinterpret_cast<uint4*>(at)[0] = reinterpret_cast<uint4*>(at)[1] = {};
      }
    }
  }

  // Q in bf16 to f16, in its place: 16 rows of a consumer's warp at a time, which share a factor.
  __device__ __forceinline__ void NarrowQuery(const Task& task) {
    shared_.codes.q_landed.Wait(q_parity_);
    q_parity_ ^= 1;
    const int tokens = min(plan_.tokens_per_tile, task.sequence.tokens.size() - task.first_token);
    for (int warp = number_; warp < S::kTileRows / kWarpRows; warp += S::kWideners) {
      const float factor = NarrowRows(warp * kWarpRows, tokens * plan_.group);
      if (elected()) shared_.codes.query_factor[warp] = 1.0f / factor;
    }
    cuda::FenceForAsyncReads();
    __syncwarp();
    if (elected()) shared_.q_full.Arrive();
  }

  // Rows first ... first + 15 times the result, rows from `end` on, which are not the task's, as 0.
  __device__ __forceinline__ float NarrowRows(int first, int end) {
    constexpr int kUnits = kWarpRows * cuda::kPanelRowBytes / 16;  // of a panel
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // visit(unit) for those of the lane.
    const auto for_each = [&](auto visit) {
      for (int panel = 0; panel < S::kPanels; ++panel) {
        char* const rows = shared_.q + (panel * S::kTileRows + first) * cuda::kPanelRowBytes;
#pragma unroll
        for (int i = 0; i < kUnits / 32; ++i)
          visit(reinterpret_cast<uint4*>(rows)[i * 32 + lane], first + i * 4 + lane / 8 < end);
      }
    };
    uint32_t largest = 0;
    for_each([&](const uint4& unit, bool exists) {
      if (!exists) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) largest = cuda::LargestOfPairs(cuda::WordOf(unit, i), largest);
    });
    const float factor =
        cuda::QueryScaleOf(__reduce_max_sync(0xffffffffu, cuda::LargestBits(largest)));
    for_each([&](uint4& unit, bool exists) {
      const auto narrow = [&](uint32_t pair) {
        return exists ? cuda::PairToF16(pair, factor) : 0u;
      };
      unit = {narrow(unit.x), narrow(unit.y), narrow(unit.z), narrow(unit.w)};
    });
    return factor;
  }

  const LaunchPlan& plan_;
  Shared<S>& shared_;
  const int number_;
  const bool e5m2_;
  cuda::RingPlace<S::kRawStages> raw_;
  cuda::RingPlace<S::kKeyStages> k_;
  cuda::RingPlace<S::kValueStages> v_;
  uint32_t q_parity_ = 0;
};

}  // namespace intarsia::attention::sm90
