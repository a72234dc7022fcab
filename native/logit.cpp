#include "logit.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace exactlm {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
constexpr double kRound52 = 6755399441055744.0;  // 1.5 * 2^52: adding and subtracting it is rne for |x| < 2^51
constexpr int kBlock = 1024;

double ln_q40(int64_t sum) {  // ln(sum / 2^40) for 2^40 <= sum < 2^62: 10.5
  const uint64_t bits = std::bit_cast<uint64_t>(static_cast<double>(sum));
  int k = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > kSqrt2) {
    m = m / 2.0;
    k = k + 1;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double w = z * z;
  double y = 1.0 / 23.0;
  for (int i = 10; i >= 0; --i) {
    y = y * w;
    y = y + 1.0 / static_cast<double>(2 * i + 1);
  }
  return static_cast<double>(k - 40) * kLn2 + (z + z) * y;
}

Status log_probabilities(const ElementwiseTable& op, const float* x, int n, double* out) {  // 10.4
  const int64_t best = op.argmax(x, n);
  if (best < 0) return kNonFinite;
  const float top = x[best];
  float scaled[kBlock], e[kBlock];
  int64_t sum = 0;  // <= 2^21 tokens * 1.000001 * 2^40 < 2^62
  for (int begin = 0; begin < n; begin += kBlock) {
    const int count = std::min(kBlock, n - begin);
    for (int i = 0; i < count; ++i) {
      const float difference = x[begin + i] - top;
      scaled[i] = difference * kLog2E;
      out[begin + i] = static_cast<double>(difference);
    }
    op.exp2(scaled, count, e);
    for (int i = 0; i < count; ++i) {
      const double t = static_cast<double>(e[i]) * 0x1p40;
      sum += static_cast<int64_t>((t + kRound52) - kRound52);
    }
  }
  const double l = ln_q40(sum);
  for (int i = 0; i < n; ++i) out[i] = out[i] - l;
  return kOk;
}

}  // namespace

void argmax_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, int64_t* best) {
  pool.run(num_rows, [&](int64_t r, int) { best[r] = isa.elementwise->argmax(x + static_cast<size_t>(r) * ldx, n); });
}

Status log_probability_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, double* out) {
  std::atomic<int> failed{0};
  pool.run(num_rows, [&](int64_t r, int) {
    const size_t row = static_cast<size_t>(r);
    if (log_probabilities(*isa.elementwise, x + row * ldx, n, out + row * static_cast<size_t>(n)) != kOk)
      failed.store(1);
  });
  return failed.load() ? kNonFinite : kOk;
}

}  // namespace exactlm
