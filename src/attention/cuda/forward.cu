// The forward pass: launches what choose.h says.
#include "src/attention/attention.h"
#include "src/attention/cuda/choose.h"
#include "src/attention/cuda/sm80/decode.h"
#include "src/attention/cuda/sm80/prefill.h"
#include "src/core/cuda/report.h"

namespace intarsia::attention {

Status Run(const Params& params, const CudaContext& context) {
  if (params.num_tokens == 0 || params.num_heads == 0) return {};
  ForwardChoice choice;
  INTARSIA_RETURN_IF_ERROR(ChooseForward(params, *context.device, choice));
  if (!choice.prefill) return LaunchDecode(params, context, choice.decode->tiles);
  if (!choice.decode) return LaunchPrefill(params, context, choice.prefill->tiles);
  INTARSIA_RETURN_IF_ERROR(LaunchPrefill(params, context, choice.prefill->tiles,
                                         {.min_packed_rows = kMaxDecodeRows + 1}));
  return LaunchDecode(params, context, choice.decode->tiles,
                      {.max_packed_rows = kMaxDecodeRows, .fill_padding = false});
}

namespace {
const cuda::ChoiceReport kReport(&ReportChoices);
}

}  // namespace intarsia::attention
