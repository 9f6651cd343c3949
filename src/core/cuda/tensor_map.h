// Tensor maps, which tell the copy engine (TMA) of Hopper and newer where a tensor lies. Host code.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <span>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace intarsia::cuda {

// An axis of a tensor, and how much of it one copy takes.
struct MapAxis {
  int64_t size = 1;
  int64_t stride = 0;  // in elements; of an axis of size 1 it may be anything
  int box = 1;
};

// A map of up to 5 axes: first `columns` neighboring elements, of which a copy takes one row of a
// panel (wgmma_layout.h), then `axes`, fastest first. What a copy takes from outside reads as 0.
// Addresses and strides are multiples of 16 bytes, and every size is at least 1. Where a row of the
// box is missing, the L2 cache reads l2_bytes, 128 or 256: a panel, or the next one as well.
Status MakePanelMap(DType dtype, const void* data, int64_t columns, std::span<const MapAxis> axes,
                    CUtensorMap& map, int l2_bytes = 256);
// A map of words of 32 bits, which boxes have as they lie: `box` neighbors, at most 256.
Status MakeWordMap(const void* data, int64_t words, int box, std::span<const MapAxis> axes,
                   CUtensorMap& map);

}  // namespace intarsia::cuda
