// Checks attention/cuda/sm90/prefill.h against an f64 reference on random ragged batches, then
// times it. On other GPUs than Hopper it says so and checks nothing. Exits with 1 on a failure, 2
// on a hang. Arguments: "check [cases per d]"; "name [cases per d]", which names each case before
// it runs; "time [part of a case's name]"; none for check and time.
#include <cstdlib>
#include <optional>
#include <string>

#include "tests/cuda/attention_sm90_cases.cuh"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::attention {
namespace {

// Times what `only` is part of the name of.
class Timer {
 public:
  explicit Timer(const std::string& only) : only_(only) {}

  void Time(const std::string& what, const Workload& w) const {
    const std::string types = w.q == w.kv ? std::string(Name(w.q)) : NameOf({w.q, w.kv});
    const std::string name = Text(types, " ", w.b, " x ", w.len_q, " ", what);
    if (name.find(only_) == std::string::npos) return;
    std::optional<Workspace> workspace;
    const double us = TimeOf(
        w,
        [&](const Params& p, const CudaContext& context) {
          Require(sm90::LaunchPrefill(p, context));
        },
        [&](Params& p) { workspace.emplace(p).AddTo(p); });
    std::printf("%-42s %9.1f us  %6.1f TFLOP/s\n", name.c_str(), us, w.flops() / us * 1e-6);
    std::fflush(stdout);
  }
  void Mixed(const char* what, DType kv, int64_t prompts, int64_t prompt_q, int64_t prompt_k,
             int64_t rows, int64_t len_q, int64_t len_k) const {
    Time(what, {.kv = kv,
                .b = rows,
                .len_q = len_q,
                .len_k = len_k,
                .prompts = prompts,
                .prompt_q = prompt_q,
                .prompt_k = prompt_k});
  }

 private:
  const std::string only_;
};

// q in bf16.
void TimeOver(DType kv, const Timer& timer) {
  for (const int64_t n : {512, 1024, 2048, 4096, 8192, 16384, 32768})
    timer.Time("page 16", {.kv = kv, .b = 1, .len_q = n, .len_k = n});
  for (const int64_t page : {8, 32, 64, 128})
    timer.Time(Text("page ", page),
               {.kv = kv, .b = 1, .len_q = 8192, .len_k = 8192, .page_size = page});
  timer.Time("page 16", {.kv = kv, .b = 4, .len_q = 4096, .len_k = 4096});
  timer.Time("page 128", {.kv = kv, .b = 4, .len_q = 4096, .len_k = 4096, .page_size = 128});
  timer.Time("dense", {.kv = kv, .b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0});
  timer.Time("dense, full",
             {.kv = kv, .b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0, .right = -1});
  for (const int64_t d : {64, 96, 192, 256}) {
    for (const int64_t n : {2048, 8192, 16384})
      timer.Time(Text("page 16, d ", d), {.kv = kv, .b = 1, .len_q = n, .len_k = n, .d = d});
  }
  timer.Time("dense, 192/128",
             {.kv = kv, .b = 1, .len_q = 8192, .len_k = 8192, .d = 192, .page_size = 0, .dv = 128});
  timer.Time("window 4096", {.kv = kv, .b = 1, .len_q = 32768, .len_k = 32768, .left = 4095});
  timer.Mixed("mixed 2x2k+8x1k", kv, 2, 2048, 2048, 8, 1, 1024);
  timer.Mixed("mixed 4x1k+16x2k", kv, 4, 1024, 1024, 16, 1, 2048);
  timer.Mixed("mixed 2x4k+32x1k", kv, 2, 4096, 4096, 32, 1, 1024);
  timer.Mixed("chunk 1k on 32k + 32x4k", kv, 1, 1024, 32768, 32, 1, 4096);
  timer.Mixed("speculative 16x5 on 4k", kv, 0, 0, 0, 16, 5, 4096);
  for (const int64_t rows : {64, 256, 1024})
    timer.Mixed("chunk on 32k", kv, 0, 0, 0, 1, rows, 32768);
}

void TimeAll(const std::string& only) {
  const Timer timer(only);
  TimeOver(kBF16, timer);
  TimeOver(kF8E4M3, timer);
  timer.Time("page 16", {.kv = kF8E5M2, .b = 1, .len_q = 8192, .len_k = 8192});
  const DType e4m3 = kF8E4M3;
  for (const int64_t n : {512, 2048, 4096, 8192, 16384, 32768})
    timer.Time("page 16", {.q = e4m3, .kv = e4m3, .b = 1, .len_q = n, .len_k = n});
  timer.Time("dense",
             {.q = e4m3, .kv = e4m3, .b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0});
  timer.Time("page 16, d 64",
             {.q = e4m3, .kv = e4m3, .b = 1, .len_q = 8192, .len_k = 8192, .d = 64});
  for (const DType kv : {kF16, e4m3})
    timer.Time("f16, page 16", {.q = kF16, .kv = kv, .b = 4, .len_q = 4096, .len_k = 4096});
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const std::string then = argc > 2 ? argv[2] : "";
  const int cases_per_dim = then.empty() || only == "time" ? 12 : std::atoi(then.c_str());
  intarsia::attention::names_cases = only == "name";
  if (const int arch = intarsia::attention::ContextOn().device->arch;
      arch != intarsia::cuda::kHopper) {
    std::printf("skipped: the kernel is for sm_90a alone, this GPU is seen as sm_%d\n", arch);
    return 0;
  }
  if (only != "time" && !intarsia::attention::CheckAll(cases_per_dim)) return 1;
  if (only != "check" && only != "name") intarsia::attention::TimeAll(only == "time" ? then : "");
  return 0;
}
