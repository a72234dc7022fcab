#include "rows.h"

#include <algorithm>
#include <atomic>

#include "layout.h"

namespace exactlm {
namespace {

// Rows of one task: enough elements that handing it out costs little beside the work.
constexpr int kElementsPerTask = 8192;

template <typename RowTask>
Status for_rows(Pool& pool, int num_rows, int row_size, const RowTask& row_task) {
  const int rows = std::max(1, kElementsPerTask / row_size);
  std::atomic<int> failed{0};
  pool.run((num_rows + rows - 1) / rows, [&](int64_t task, int thread) {
    const int begin = static_cast<int>(task) * rows, end = std::min(num_rows, begin + rows);
    for (int r = begin; r < end; ++r) {
      if (row_task(static_cast<size_t>(r), static_cast<size_t>(thread)) != kOk) failed.store(1);
    }
  });
  return failed.load() ? kNonFinite : kOk;
}

float* floats(Scratch& scratch, int n) {
  return reinterpret_cast<float*>(scratch.get(static_cast<size_t>(n) * sizeof(float)));
}

}  // namespace

void embed_rows(Pool& pool, const LinearWeights& table, const int64_t* ids, int num_rows, int hidden, float* x) {
  for_rows(pool, num_rows, hidden, [&](size_t r, size_t) {
    embed(table, ids[r], hidden, x + r * static_cast<size_t>(hidden));
    return kOk;
  });
}

Status norm_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, float* x, const float* y, size_t ldy,
                 const int32_t* rows, int num_rows, int hidden, const float* gain, double eps, int16_t* codes,
                 size_t stride, float* scales) {
  return for_rows(pool, num_rows, hidden, [&](size_t i, size_t thread) {
    const size_t r = rows != nullptr ? static_cast<size_t>(rows[i]) : i;
    return isa.elementwise->norm_quantise(x + r * static_cast<size_t>(hidden), y != nullptr ? y + r * ldy : nullptr,
                                          gain, hidden, eps, codes + i * stride, static_cast<int>(stride), scales + i,
                                          floats(scratch[thread], hidden));
  });
}

Status quantise_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, int16_t* codes,
                     size_t stride, float* scales) {
  return for_rows(pool, num_rows, n, [&](size_t r, size_t) {
    return isa.elementwise->quantise(x + r * ldx, n, codes + r * stride, static_cast<int>(stride), scales + r);
  });
}

Status swiglu_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const float* gate_up, size_t ld,
                   int num_rows, int n, int16_t* codes, size_t stride, float* scales) {
  return for_rows(pool, num_rows, n, [&](size_t r, size_t thread) {
    const float* gate = gate_up + r * ld;
    return isa.elementwise->swiglu_quantise(gate, gate + n, n, codes + r * stride, static_cast<int>(stride), scales + r,
                                            floats(scratch[thread], n));
  });
}

void add_bias_rows(const Isa& isa, Pool& pool, float* y, size_t ldy, int num_rows, int n, const float* bias) {
  for_rows(pool, num_rows, n, [&](size_t r, size_t) {
    isa.elementwise->add(y + r * ldy, bias, n);
    return kOk;
  });
}

}  // namespace exactlm
