// Which kernels run a call: a pure function of its shapes and of the GPU, since a captured graph
// replays the choice. Shapes of results never depend on it. A workspace's shape is recorded in a
// program (docs/adr/0003-workspace-size.md), so what a kernel needs of it is part of the choice: a
// program that an earlier release recorded runs by the kernel that it has room for.
#pragma once
#include <span>

#include "src/attention/backward.h"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/core/cuda/report.h"

namespace intarsia::attention {

// One way to run a part of attention.
struct Candidate {
  const char* name;  // in reports: "portable, small tiles"
  int arch;          // cuda::kPortable, or the architecture that it is built for alone
  TileSize tiles;
  // Whether it takes such a call on such a device: dtypes, head dims, shared memory.
  bool (*fits)(const Params&, const cuda::Device&);
  // Floats of the workspace that it needs.
  int64_t (*workspace_floats)(const Params&);
};

// The best first.
std::span<const Candidate> PrefillCandidates();
std::span<const Candidate> DecodeCandidates();
std::span<const Candidate> BackwardCandidates();

// The first that runs the call on the device, with the workspace that it has; null if none does.
const Candidate* Choose(std::span<const Candidate> candidates, const Params& params,
                        const cuda::Device& device);

// Short sequences (workspace.h) go to the decode kernel, unless the prefill kernel takes them: a
// portable one would pad them to its tile and, with few sequences, leave most of the GPU idle.

// The kernels of a forward pass; in a mixed batch both, and which sequence is long is known on the
// device alone, so each takes its own. Null: not needed.
struct ForwardChoice {
  const Candidate* prefill = nullptr;
  const Candidate* decode = nullptr;
};
Status ChooseForward(const Params& params, const cuda::Device& device, ForwardChoice& choice);
Status ChooseBackward(const BackwardParams& params, const cuda::Device& device,
                      const Candidate*& choice);

// What a GPU gets, for usual dtypes and head dims.
std::vector<cuda::KernelChoice> ReportChoices(const cuda::Device& device);

}  // namespace intarsia::attention
