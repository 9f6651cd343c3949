// GPUs of one machine that read and write each other's memory.
#pragma once
#include <cstdint>
#include <span>

#include "src/core/status.h"

namespace intarsia::cuda {

// Lets each of these GPUs (CUDA's ordinals) reach the memory of all others.
Status EnablePeerAccess(std::span<const int32_t> devices);

}  // namespace intarsia::cuda
