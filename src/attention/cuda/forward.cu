// The forward pass: launches what choose.h says.
#include "src/attention/attention.h"
#include "src/attention/cuda/choose.h"
#include "src/attention/cuda/sm80/decode.h"
#include "src/attention/cuda/sm80/prefill.h"
#include "src/attention/cuda/sm90/prefill.h"
#include "src/core/cuda/report.h"

namespace intarsia::attention {

namespace {

Status LaunchPrefillBy(const Candidate& kernel, const Params& params, const CudaContext& context,
                       const PrefillRows& rows = {}) {
  return kernel.arch == cuda::kHopper ? sm90::LaunchPrefill(params, context, rows)
                                      : LaunchPrefill(params, context, kernel.tiles, rows);
}

}  // namespace

Status Run(const Params& params, const CudaContext& context) {
  if (params.num_tokens == 0 || params.num_heads == 0) return {};
  ForwardChoice choice;
  INTARSIA_RETURN_IF_ERROR(ChooseForward(params, *context.device, choice));
  if (!choice.prefill) return LaunchDecode(params, context, choice.decode->tiles);
  if (!choice.decode) return LaunchPrefillBy(*choice.prefill, params, context);
  const bool on_hopper = choice.prefill->arch == cuda::kHopper;
  // One launch for all: it cuts what would make one of its CTAs late.
  if (on_hopper && (!WantsPieces(params) || sm90::HasRoomForPieces(params, context.device->sms)))
    return LaunchPrefillBy(*choice.prefill, params, context);
  Sharing sharing;
  if (on_hopper)
    sharing = {context.device->sms, static_cast<int>(params.num_heads / params.num_kv_heads()),
               static_cast<int>(params.num_kv_heads())};
  INTARSIA_RETURN_IF_ERROR(
      LaunchPrefillBy(*choice.prefill, params, context,
                      {.min_packed_rows = kMaxDecodeRows + 1, .sharing = sharing}));
  return LaunchDecode(
      params, context, choice.decode->tiles,
      {.max_packed_rows = kMaxDecodeRows, .fill_padding = false, .sharing = sharing});
}

namespace {
const cuda::ChoiceReport kReport(&ReportChoices);
}

}  // namespace intarsia::attention
