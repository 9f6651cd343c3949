// Runs an attention kernel on a random batch and compares every element that it writes, or must not
// write, with the f64 reference.
#pragma once
#include <thread>

#include "tests/cuda/attention_batch.cuh"

namespace intarsia::attention {

inline std::vector<int32_t> Narrow(const std::vector<int64_t>& v) { return {v.begin(), v.end()}; }

// An index vector of either width on the device.
struct DeviceIndices {
  DeviceIndices(const std::vector<int64_t>& v, bool wide) : wide(wide), w(v), n(Narrow(v)) {}
  IndexVector view() const { return {wide ? static_cast<void*>(w.data()) : n.data(), wide}; }
  bool wide;
  DeviceArray<int64_t> w;
  DeviceArray<int32_t> n;
};

// A batch on the device, and the Params that name its parts.
struct OnDevice {
  explicit OnDevice(const Batch& x)
      : q(x.q.bits()),
        cache(x.cache.bits()),
        out(static_cast<size_t>(x.offset + x.t * x.c.h * x.c.v_dim()) * Bytes(x.c.out_dtype())),
        lse(static_cast<size_t>(x.t * x.c.h)),
        q_scale(x.q_scale.at),
        k_scale(x.k_scale.at),
        v_scale(x.v_scale.at),
        alibi(x.alibi.at),
        sinks(x.sinks),
        layer(std::vector<int32_t>{x.c.layer}),
        cu_q(x.cu_q, x.c.wide),
        cu_k(x.cu_k, x.c.wide),
        leftpad(x.leftpad, x.c.wide),
        seqused(x.seqused, x.c.wide),
        table(x.table, x.c.wide),
        num_seqs({x.num_seqs()}, x.c.wide) {
    const Case& c = x.c;
    const int64_t kv_bytes = Bytes(c.kv_dtype());
    p.dtype = c.dtype;
    p.out_dtype = c.out_dtype();
    p.q = q.data() + x.offset * Bytes(c.dtype);
    p.q_token_stride = x.q_token;
    p.q_head_stride = c.d;
    p.out = out.data() + x.offset * Bytes(c.out_dtype());
    p.lse = c.with_lse ? lse.data() : nullptr;
    p.num_tokens = x.t;
    p.num_seqs = x.b;
    p.num_heads = c.h;
    p.head_dim = c.d;
    p.max_len_k = c.page_size ? x.m * c.page_size : x.tk;
    p.cu_seqlens_q = cu_q.view();
    if (c.leftpad) p.leftpad_k = leftpad.view();
    if (c.num_seqs >= 0) p.num_seqs_device = num_seqs.view();
    p.cache = {.dtype = c.kv_dtype(),
               .k = cache.data() + x.offset * kv_bytes,
               .v = cache.data() + (x.offset + x.v_at) * kv_bytes,
               .num_pages = x.num_pages,
               .page_size = x.page_size,
               .num_kv_heads = c.hk,
               .num_layers = c.layer < 0 ? 1 : 2,
               .head_dim = c.d,
               .v_head_dim = c.v_dim(),
               .k_strides = x.k_strides,
               .v_strides = x.v_strides,
               .layer = c.layer < 0 ? nullptr : layer.data()};
    if (c.page_size) {
      p.paged = true;
      p.page_table = table.view();
      p.page_table_stride = p.pages_per_seq = x.m;
      p.seqused_k = seqused.view();
    } else {
      p.cu_seqlens_k = cu_k.view();
    }
    p.scale = c.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(c.d)) : c.scale;
    p.softcap = c.softcap;
    p.window_left = c.window_left;
    p.window_right = c.window_right;
    p.q_scale = x.q_scale.View(q_scale);
    p.k_scale = x.k_scale.View(k_scale);
    p.v_scale = x.v_scale.View(v_scale);
    p.alibi_slopes = x.alibi.View(alibi);
    p.sinks = c.sinks ? sinks.data() : nullptr;
  }
  DeviceArray<char> q, cache, out;
  DeviceArray<float> lse, q_scale, k_scale, v_scale, alibi, sinks;
  DeviceArray<int32_t> layer;
  DeviceIndices cu_q, cu_k, leftpad, seqused, table, num_seqs;
  Params p;
};

inline std::string Describe(const Case& c) {
  std::string text;
  const auto add = [&](auto... pieces) { text += Text(pieces..., " "); };
  const auto flag = [&](bool is, const char* what) {
    if (is) add(what);
  };
  add(Name(c.dtype), "/", Name(c.kv_dtype()), "/", Name(c.out_dtype()), " h ", c.h, "/", c.hk,
      " d ", c.d, "/", c.v_dim(), " b ", c.len_q.size(), " page ", c.page_size, " window ",
      c.window_left, ",", c.window_right, " cap ", int(c.softcap), " layer ", c.layer, " min ",
      c.min_packed_rows, " front ", c.front, " scales ", int(c.scales), " alibi ", int(c.alibi));
  flag(c.wide, "wide");
  flag(c.strided_q, "strided_q");
  flag(c.combined, "combined");
  flag(c.own_v, "own_v");
  flag(c.unaligned, "unaligned");
  flag(c.bad_page, "bad_page");
  flag(c.falling, "falling");
  flag(c.sinks, "sinks");
  flag(c.leftpad, "leftpad");
  flag(c.scale < 0, "negative scale");
  flag(c.q_size != 1.0f, "extreme q");
  return text;
}

// What may vary in a batch of any lengths.
inline void DrawVariants(Case& c, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  const auto per = [&] { return static_cast<Per>(random() % 4); };
  if (random() % 3 == 0) c.num_seqs = static_cast<int64_t>(random() % (c.len_q.size() + 1));
  c.front = pick({0, 0, 0, 3, 150});
  c.falling = random() % 3 == 0;
  c.softcap = static_cast<float>(pick({0, 0, 0, 5, 30, 1 << 20}));
  if (random() % 10 == 0) c.scale = -0.1f;
  c.wide = random() % 2;
  c.strided_q = random() % 3 == 0;
  c.own_v = random() % 4 == 0;
  if (c.d == 192 && random() % 2) c.dv = 128;
  c.combined = !c.own_v && !c.dv && random() % 3 == 0;
  c.unaligned = random() % 5 == 0;
  c.with_lse = random() % 4 != 0;
  c.bad_page = c.page_size && random() % 3 == 0;
  c.layer = static_cast<int>(pick({-1, -1, 0, 1, 2}));
  c.fill_padding = random() % 4 != 0;
  c.sinks = random() % 3 == 0;
  c.leftpad = random() % 4 == 0;
  if (random() % 3 == 0) c.alibi = random() % 2 ? Per::kHead : Per::kSequence;
  if (Bytes(c.kv_dtype()) > 1) return;
  c.scales = per();
  if (Bytes(c.dtype) > 1) {
    // Beyond f16's range, which the kernels compute in.
    if (c.dtype != kF16 && random() % 4 == 0) c.q_size = random() % 2 ? 3e6f : 1e-7f;
    c.scale = c.q_size == 1.0f ? c.scale : 0.1f / c.q_size;
  } else {
    c.out = pick({0, 1}) ? kF16 : kBF16;
  }
}

// Of one comparison.
struct Errors {
  double out2 = 0.0, ref2 = 0.0, lse = 0.0;
  int64_t wrong = 0;  // elements not written, written against orders, or not finite

  // Adds one row; `expected` is empty if it must not have been touched.
  void Add(const float* out, const float* got_lse, const std::vector<double>& expected,
           double expected_lse, int64_t dv) {
    for (int64_t x = 0; x < dv; ++x) {
      const double want = expected.empty() ? 0.0 : expected[x];
      wrong += expected.empty() ? !std::isnan(out[x]) : !std::isfinite(out[x]);
      if (expected.empty()) continue;
      out2 += (out[x] - want) * (out[x] - want);
      ref2 += want * want;
    }
    if (!got_lse) return;
    if (expected.empty() || expected_lse == -kInfinity) {
      wrong += expected.empty() ? !std::isnan(*got_lse) : *got_lse != -kInfinity;
    } else {
      wrong += !std::isfinite(*got_lse);
      lse = std::max(lse, std::abs(*got_lse - expected_lse));
    }
  }
  void Add(const Errors& other) {
    out2 += other.out2, ref2 += other.ref2, wrong += other.wrong;
    lse = std::max(lse, other.lse);
  }
  double relative() const { return std::sqrt(ref2 > 0 ? out2 / ref2 : out2); }
};

// What errors may be: of out, relative, and of lse.
struct Bounds {
  double out, lse;
};
inline Bounds BoundsOf(const Case& c) {
  const DType out = c.out_dtype();
  return {out == kF32 ? 1e-5 : out == kF16 ? 1e-3 : 6e-3, c.dtype == kF32 ? 5e-5 : 2e-4};
}

// Runs `launch` on poisoned results and compares them. `includes` says which sequences it computes.
template <class Includes, class Launch>
bool CheckBatch(const Batch& batch, const Includes& includes, const Launch& launch, double& worst,
                const Bounds& bounds) {
  const Case& c = batch.c;
  OnDevice device(batch);
  device.out.Poison();
  device.lse.Poison();
  launch(device.p);
  constexpr int kSeconds = 5;
  Await(nullptr, Describe(c), kSeconds);
  const Elements out(c.out_dtype(), device.out.ToHost());
  const std::vector<float> lse = device.lse.ToHost();

  const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<Errors> errors(workers);
  std::vector<std::thread> pool;
  for (int worker = 0; worker < workers; ++worker) {
    pool.emplace_back([&, worker] {
      for (int64_t row = worker; row < batch.t * c.h; row += workers) {
        const int64_t token = row / c.h, h = row % c.h, seq = batch.SequenceOf(token);
        std::vector<double> expected;
        double expected_lse = -kInfinity;
        if (seq < 0) {
          if (c.fill_padding) expected.assign(static_cast<size_t>(c.v_dim()), 0.0);
        } else if (includes(seq)) {
          expected_lse = ReferenceRow(batch, seq, token - batch.begin_q[seq], h, expected);
        }
        errors[worker].Add(out.values() + batch.offset + row * c.v_dim(),
                           c.with_lse ? &lse[h * batch.t + token] : nullptr, expected, expected_lse,
                           c.v_dim());
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  Errors e;
  for (const Errors& part : errors) e.Add(part);
  const bool passes = e.relative() <= bounds.out && e.lse <= bounds.lse && e.wrong == 0;
  worst = std::max(worst, e.relative());
  if (!passes)
    std::printf("FAIL %s: error %.2e, lse %.2e, wrong %ld\n", Describe(c).c_str(), e.relative(),
                e.lse, long(e.wrong));
  return passes;
}

template <class Includes, class Launch>
bool CheckBatch(const Batch& batch, const Includes& includes, const Launch& launch, double& worst) {
  return CheckBatch(batch, includes, launch, worst, BoundsOf(batch.c));
}

// Types of q and of K and V that go together.
struct Types {
  DType q, kv;
};
inline constexpr Types kAllTypes[] = {{kF32, kF32},       {kF16, kF16},      {kBF16, kBF16},
                                      {kBF16, kF8E4M3},   {kBF16, kF8E5M2},  {kF16, kF8E4M3},
                                      {kF16, kF8E5M2},    {kF32, kF8E4M3},   {kF32, kF8E5M2},
                                      {kF8E4M3, kF8E4M3}, {kF8E5M2, kF8E5M2}};
// Few rows of long sums, which show a bias of the tensor cores' additions. The results' type is up
// to the caller.
inline Case LongSums(const Types& types, int64_t d) {
  return {.dtype = types.q,
          .kv = types.kv,
          .h = 4,
          .hk = 1,
          .d = d,
          .len_q = {70},
          .len_k = {8000},
          .page_size = 16,
          .window_right = 0,
          .v_mean = 2.0};
}
inline std::string NameOf(const Types& types) { return Text(Name(types.q), "/", Name(types.kv)); }

}  // namespace intarsia::attention
