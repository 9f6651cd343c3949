// fused_add_rms_norm of the sum of x over several GPUs, which is rounded to T: out and residual are
// the same on all of them. The sum is made in f32 in the order of ranks, so all have the same bits.
//
// Each GPU stores its rows into the inboxes of the others and reads theirs in its own, so that
// there is one way across instead of one to ask and one to answer. There are no flags beside the
// rows: an inbox holds words of ones where nothing has come, which no row is sent with. This is
// how NCCL's protocol LL works (its flags, beside each word), TensorRT-LLM's "Lamport" all-reduces
// and MSCCL++'s LL channels.
//
// A row's calls take turns between two halves of the inbox. Its reader takes the words away again
// when it has read them. A GPU can send a row's call c + 2 only after it has read c + 1 of the
// others, which they send after they have done c: so that what arrives never meets what was not
// read yet.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct AllReduceFusedAddRmsNorm {
  // Packs of 16 bytes; threads of a row, and packs of a thread.
  static constexpr int64_t kPackBytes = 16, kMaxThreads = 512, kMaxPacks = 4;

  TensorView x, residual;
  Optional weight;
  TensorView addresses, inbox;
  float eps = 1e-6f;
  std::string_view rounding = "once";
  TensorView out, residual_out;

  static constexpr auto kSpec =
      MakeSpec(
          "all_reduce_fused_add_rms_norm",
          "Sums over GPUs, adds the residual stream, then root-mean-square normalization.",
          "vLLM's pass fuse_allreduce_rms",
          In("x", &AllReduceFusedAddRmsNorm::x, "... n", "T", "this GPU's part of the sum"),
          In("residual", &AllReduceFusedAddRmsNorm::residual, "... n", "T",
             "the residual stream, the same on all"),
          In("weight", &AllReduceFusedAddRmsNorm::weight, "n", "T|f32",
             "scale of each column; 1 if absent"),
          In("addresses", &AllReduceFusedAddRmsNorm::addresses, "ranks+1 2", "i32",
             "64-bit addresses: of this GPU's inbox, then of all GPUs' in the order of their "
             "ranks"),
          In("inbox", &AllReduceFusedAddRmsNorm::inbox, "2*ranks+1 max_rows packs 4", "i32",
             "what other GPUs write to: a plane whose rows begin with the number of their calls, "
             "less "
             "one, then two planes for each rank; at first all ones"),
          Attr("eps", &AllReduceFusedAddRmsNorm::eps, "added to the mean square").NotNegative(),
          Attr("rounding", &AllReduceFusedAddRmsNorm::rounding,
               "\"before_weight\" norms the unrounded sum and rounds to T before the weight")
              .OneOf("once|before_weight"),
          Out("out", &AllReduceFusedAddRmsNorm::out, "... n", "T", "normalized rows"),
          Out("residual", &AllReduceFusedAddRmsNorm::residual_out, "... n", "T", "sum + residual"))
          .On(Platform::kCuda);

  Status Check() const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
