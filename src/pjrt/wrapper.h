// A PJRT plugin that is another one with the library's handlers in it, for frameworks that can only
// be told a plugin's path.
#pragma once
#include "intarsia/intarsia.h"

namespace intarsia::pjrt {

// The API of the plugin that INTARSIA_PJRT_PLUGIN names, loaded and wrapped at the first call.
// Never null: what went wrong is reported by each function of the API that is returned then.
const PJRT_Api* WrappedApi();

}  // namespace intarsia::pjrt
