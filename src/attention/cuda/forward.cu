// Which kernels a call launches: a function of shapes alone, since a captured graph replays the
// choice.
#include "src/attention/attention.h"
#include "src/attention/cuda/sm80/decode.h"
#include "src/attention/cuda/sm80/prefill.h"

namespace intarsia::attention {
namespace {

// Sequences with up to this many packed rows (len_q * G) go to the decode kernel: the prefill
// kernel would pad them to its tile and, with few sequences, leave most of the GPU idle.
constexpr int64_t kMaxDecodeRows = 64;

}  // namespace

Status Run(const Params& params, const CudaContext& context) {
  if (params.num_tokens == 0 || params.num_heads == 0) return {};
  const int64_t packed_rows = params.num_tokens * (params.num_heads / params.num_kv_heads());
  const bool only_short = params.num_tokens <= params.num_seqs || packed_rows <= kMaxDecodeRows;
  if (only_short) return LaunchDecode(params, context);
  if (params.num_seqs == 1) return LaunchPrefill(params, context);
  // A mixed batch: which sequence is long is known on the device alone, so each kernel takes its
  // own.
  INTARSIA_RETURN_IF_ERROR(LaunchPrefill(params, context, {.min_packed_rows = kMaxDecodeRows + 1}));
  return LaunchDecode(params, context, {.max_packed_rows = kMaxDecodeRows, .fill_padding = false});
}

}  // namespace intarsia::attention
