#include <algorithm>

#include "src/core/cuda/ptx.cuh"
#include "src/norm/norm_row.cuh"
#include "src/ops/all_reduce_fused_add_rms_norm/all_reduce_fused_add_rms_norm.h"

namespace intarsia::cuda {
namespace {

constexpr int kMaxThreads = AllReduceFusedAddRmsNorm::kMaxThreads;
constexpr int kMaxPacks = AllReduceFusedAddRmsNorm::kMaxPacks;
constexpr uint32_t kNothing = 0xffffffff;  // a word that nothing has come to

// One GPU's side of the exchange.
struct Exchange {
  const uint64_t* addresses;  // [1 + ranks]
  char* inbox;
  int ranks;
  int64_t row_bytes, plane_bytes;
};

__device__ __forceinline__ bool Came(const uint4& x) {
  return x.x != kNothing && x.y != kNothing && x.z != kNothing && x.w != kNothing;
}

// A word of ones is one NaN, or two, or the second half of one; another NaN goes in its place.
__device__ __forceinline__ uint32_t Sendable(uint32_t word) {
  return word == kNothing ? 0x7fffffff : word;
}
__device__ __forceinline__ uint4 Sendable(const uint4& x) {
  return {Sendable(x.x), Sendable(x.y), Sendable(x.z), Sendable(x.w)};
}

// One row of the exchange as one thread sees it. The inbox: counts of calls, a row's at its
// beginning, then rows by half, which calls take in turn, and sender.
class RowExchange {
 public:
  __device__ __forceinline__ RowExchange(const Exchange& e, int64_t row)
      : e_(e), in_row_(row * e.row_bytes), own_(reinterpret_cast<char*>(e.addresses[0])) {
    // Of its own memory, which does not wait for its address. Should XLA have handed over a copy,
    // then once more.
    calls_ = *Count(e.inbox);
    if (own_ != e.inbox) calls_ = *Count(own_);
    for (int rank = 0; rank < e.ranks; ++rank)
      if (Inbox(rank) == own_) rank_ = rank;
  }

  __device__ __forceinline__ void Send(int64_t pack, const uint4& x) const {
    for (int peer = 0; peer < e_.ranks; ++peer)
      if (peer != rank_) StoreToPeer16(At(Inbox(peer), rank_, pack), Sendable(x));
  }

  // The sum over the ranks in their order, rounded to T. `x` is what this GPU adds.
  template <class T, int kCount>
  __device__ __forceinline__ Pack<T, kCount> Sum(int64_t pack, const Pack<T, kCount>& x) const {
    Pack<float, kCount> sum;
#pragma unroll
    for (float& number : sum.at) number = -0.0f;  // which changes neither zero
    for (int peer = 0; peer < e_.ranks; ++peer) {
      Pack<T, kCount> part = x;
      if (peer != rank_) {
        const uint4 raw = Receive(At(own_, peer, pack));
        part = reinterpret_cast<const Pack<T, kCount>&>(raw);
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum.at[j] += ToFloat(part.at[j]);
    }
    return FromFloats<T>(sum);
  }

  // By one thread of the row, when all have come to know the count.
  __device__ __forceinline__ void CountCall() const { *Count(own_) = calls_ + 1; }

 private:
  __device__ __forceinline__ uint32_t* Count(char* inbox) const {
    return reinterpret_cast<uint32_t*>(inbox + in_row_);
  }
  __device__ __forceinline__ char* Inbox(int rank) const {
    return reinterpret_cast<char*>(e_.addresses[1 + rank]);
  }
  __device__ __forceinline__ char* At(char* inbox, int sender, int64_t pack) const {
    const int64_t plane = 1 + (calls_ & 1) * e_.ranks + sender;
    return inbox + plane * e_.plane_bytes + in_row_ + pack * sizeof(uint4);
  }
  __device__ __forceinline__ static uint4 Receive(char* at) {
    uint4 x;
    do {
      x = LoadFromPeer16(at);
    } while (!Came(x));
    StoreToPeer16(at, {kNothing, kNothing, kNothing, kNothing});
    return x;
  }

  const Exchange& e_;
  int64_t in_row_;
  char* own_;
  uint32_t calls_;
  int rank_ = 0;
};

// A row, shared by the threads of a threadIdx.y, in packs of 16 bytes. All are sent before any is
// waited for, and the residual is there by then.
template <class T>
__device__ __forceinline__ void ExchangeRow(const NormArguments<T, T>& a, const Exchange& exchange,
                                            int64_t row) {
  constexpr int kCount = sizeof(uint4) / sizeof(T);
  using Packed = Pack<T, kCount>;
  const int64_t start = row * a.n, packs = row < a.rows ? a.n / kCount : 0;
  Packed x[kMaxPacks], residual[kMaxPacks];
  RowPack<T, kCount, true> kept[kMaxPacks];
  const auto for_each = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kMaxPacks; ++k) {
      const int64_t i = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
      if (i < packs) f(i, k);
    }
  };

  for_each(
      [&](int64_t i, int k) { x[k] = *reinterpret_cast<const Packed*>(a.x + start + i * kCount); });
  const RowExchange row_exchange(exchange, row < a.rows ? row : 0);
  for_each([&](int64_t i, int k) {
    residual[k] = *reinterpret_cast<const Packed*>(a.residual + start + i * kCount);
    row_exchange.Send(i, reinterpret_cast<const uint4&>(x[k]));
  });
  float squares = 0.0f;
  for_each([&](int64_t i, int k) {
    kept[k].Add(a, row_exchange.Sum(i, x[k]), residual[k]);
    squares += kept[k].SumOfSquares();
  });
  const float rstd = rsqrtf(ReduceRow<Plus>(squares) / static_cast<float>(a.n) + a.eps);
  for_each([&](int64_t i, int k) {
    kept[k].StoreSum(a, start + i * kCount);
    *reinterpret_cast<Packed*>(a.out + start + i * kCount) =
        FromFloats<T>(kept[k].Normed(a, i * kCount, kept[k].Weight(a, i * kCount), rstd));
  });
  if (threadIdx.x == 0 && row < a.rows) row_exchange.CountCall();
}

// A block waits for rows of other GPUs, and these for its own: the grid is small enough that all of
// a GPU's blocks run at a time. Whatever the grids of different GPUs, the first row that is not
// done is at its turn everywhere.
template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    ExchangeNormKernel(NormArguments<T, T> a, Exchange exchange) {
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < a.rows;
       first += int64_t{gridDim.x} * blockDim.y) {
    ExchangeRow(a, exchange, first + threadIdx.y);
    __syncthreads();  // before ReduceRow's shared memory is written again
  }
}

template <class T>
const Kernel kExchangeNormKernel("ExchangeNormKernel",
                                 reinterpret_cast<const void*>(&ExchangeNormKernel<T>));

}  // namespace
}  // namespace intarsia::cuda

namespace intarsia {

Status AllReduceFusedAddRmsNorm::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    const auto a = cuda::ArgumentsOf<T, T>({.x = x,
                                            .weight = weight,
                                            .out = out,
                                            .eps = eps,
                                            .rounding = rounding,
                                            .residual = &residual,
                                            .residual_out = &residual_out});
    const int64_t bytes = a.n * Bytes(kType);
    if (!cuda::AllAligned16(bytes, a.x, a.residual, a.weight, inbox.as<char>(),
                            addresses.as<char>(), a.out, a.residual_out))
      return InvalidArgument("operands and results must be aligned to 16 bytes");
    const dim3 block =
        cuda::RowBlock(*context.device, a.rows, bytes / kPackBytes, 1, cuda::kMaxThreads);
    const int64_t blocks =
        std::min<int64_t>(CeilDiv<int64_t>(a.rows, block.y), context.device->sms);
    const int64_t row_bytes = inbox.dim(2) * kPackBytes;
    return cuda::Launch(context, cuda::kExchangeNormKernel<T>, {{blocks}, block}, a,
                        cuda::Exchange{.addresses = addresses.as<const uint64_t>(),
                                       .inbox = inbox.as<char>(),
                                       .ranks = static_cast<int>(addresses.dim(0) - 1),
                                       .row_bytes = row_bytes,
                                       .plane_bytes = inbox.dim(1) * row_bytes});
  });
}

}  // namespace intarsia
