// What every <op>.h includes.
#pragma once
#include <optional>
#include <string_view>

#include "src/core/context.h"
#include "src/core/spec.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"
