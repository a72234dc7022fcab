// Products of codes (linear_w16, linear_w8, score_k8) of every instruction set: sizes, extremes, bounds, rounding.
#include <algorithm>

#include "plain.h"

namespace exactlm::test {
namespace {

const Edge kEdges[] = {Edge::kBegin, Edge::kEnd, Edge::kShifted};
const Weights kKinds[] = {Weights::kW16, Weights::kW8, Weights::kKeys8};

int max_weight(Weights kind) { return kind == Weights::kW16 ? kMaxCode : 127; }
int min_weight(Weights kind) { return kind == Weights::kW16 ? -kMaxCode : -128; }  // Q8_0 holds -128: spec 3.3

LinearCase random_case(Weights kind, int num_rows, int num_tiles, int k, Random& random) {
  LinearCase problem(kind, num_rows, num_tiles, k);
  for (int16_t& q : problem.x) q = static_cast<int16_t>(random.between(-kMaxCode, kMaxCode));
  for (int16_t& q : problem.w) q = static_cast<int16_t>(random.between(min_weight(kind), max_weight(kind)));
  for (uint16_t& m : problem.multipliers) m = static_cast<uint16_t>(random.between(0, 65535));
  for (float& s : problem.s_w) s = random.finite(-40, 10);
  for (float& s : problem.s_x) s = random.finite(-40, 10);
  return problem;
}

void check_case(const LinearCase& problem, const char* what, Placement placement = {}) {
  for (const Isa* isa : isas()) {
    const int mismatches = count_linear_mismatches(*isa->dot, problem, placement);
    CHECK(mismatches == 0, std::string(isa->dot->isa) + " " + what + " " + problem.name() + ": " +
                               std::to_string(mismatches) + " outputs differ");
  }
}

void test_sizes() {
  Random random(2);
  const std::vector<int> sizes = {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 172, 511, 512, 513, 576, 1536};
  const std::vector<int> key_sizes = {16, 32, 48, 64, 80, 96, 128, 144, 256};
  for (const Weights kind : kKinds) {
    for (const int k : kind == Weights::kKeys8 ? key_sizes : sizes) {
      for (int rows = 1; rows <= 13; ++rows) {
        for (int tiles = 1; tiles <= 5; ++tiles) {
          if (is_short() && (rows * 5 + tiles + k) % 7 != 0) continue;
          const Placement placement = {kEdges[(rows + tiles) % 3], rows % 3};
          check_case(random_case(kind, rows, tiles, k, random), "random", placement);
        }
      }
    }
  }
}

// Every combination of extreme codes that a bound was computed for.
void test_extremes() {
  const int x_codes[] = {kMaxCode, -kMaxCode, 32512 - 128, -32512 + 127, 127, 128, -128, -129, 1, 0};
  const int w_codes[] = {kMaxCode, -kMaxCode, 32512 - 128, -32512 + 127, 128, -128, 0};
  const int w8_codes[] = {127, -127, -128, 1, 0};
  for (const Weights kind : kKinds) {
    const int k = kind == Weights::kKeys8 ? kMaxHeadDim : is_short() ? 1040 : 4104;
    const std::vector<int> weights = kind == Weights::kW16 ? std::vector<int>(std::begin(w_codes), std::end(w_codes))
                                                           : std::vector<int>(std::begin(w8_codes), std::end(w8_codes));
    LinearCase problem(kind, static_cast<int>(std::size(x_codes)), 1, k);
    std::fill(problem.multipliers.begin(), problem.multipliers.end(), uint16_t{65535});
    for (int i = 0; i < k; ++i) {
      for (int m = 0; m < problem.num_rows; ++m) problem.x_at(m, i) = static_cast<int16_t>(x_codes[m]);
      for (int n = 0; n < kTileRows; ++n)
        problem.w_at(n, i) = static_cast<int16_t>(weights[static_cast<size_t>(n) % weights.size()]);
    }
    check_case(problem, "extreme");
    for (int i = 1; i < k; i += 2)  // signs that follow each other, so that products do not
      for (int m = 0; m < problem.num_rows; ++m) problem.x_at(m, i) = static_cast<int16_t>(-problem.x_at(m, i));
    for (int i = 1; i < k; i += 2)
      for (int n = 0; n < kTileRows; ++n) {
        int16_t& w = problem.w_at(n, i);
        w = static_cast<int16_t>(w == -128 && kind != Weights::kW16 ? 127 : -w);
      }
    check_case(problem, "alternating");
  }
}

// The bounds of spec 4.4 at the largest K. Sums in 32 bits that were not transferred in time would differ.
void test_largest_k() {
  constexpr int kLargest = 32768;
  for (const Weights kind : {Weights::kW16, Weights::kW8}) {
    for (const int x : {kMaxCode, -kMaxCode, -32512 + 127, 128 * 255}) {
      LinearCase problem(kind, is_short() ? 1 : 4, 1, kLargest);
      std::fill(problem.x.begin(), problem.x.end(), static_cast<int16_t>(std::min(x, kMaxCode)));
      std::fill(problem.multipliers.begin(), problem.multipliers.end(), uint16_t{65535});
      for (int n = 0; n < kTileRows; ++n) {
        const int w = n % 4 == 0 ? max_weight(kind) : n % 4 == 1 ? min_weight(kind) : n % 4 == 2 ? 127 : -128;
        std::fill_n(&problem.w_at(n, 0), kLargest, static_cast<int16_t>(w));
      }
      check_case(problem, "largest k");
    }
  }
}

// Codes whose w16 product sum is `target`, |target| < 2^44: full products, then the rest in base 32639.
void make_w16_sum(LinearCase& problem, int n, int64_t target) {
  const int64_t sign = target < 0 ? -1 : 1, full = int64_t{kMaxCode} * kMaxCode;
  const int64_t magnitude = target * sign;
  int64_t count = magnitude / full;
  const int64_t rest = magnitude % full;
  int i = 2;
  for (; count > 0; --count, ++i) problem.w_at(n, i) = static_cast<int16_t>(sign * kMaxCode);
  problem.w_at(n, 0) = static_cast<int16_t>(sign * (rest / kMaxCode));
  problem.w_at(n, 1) = static_cast<int16_t>(sign * (rest % kMaxCode));
}

// The same with 8-bit weights of one input row, |target| < 2^52: groups of the largest sum, then what is left.
void make_w8_sum(LinearCase& problem, int n, int64_t target) {
  const int64_t sign = target < 0 ? -1 : 1, chunk = int64_t{kMaxCode} * 127 * 65535;
  int64_t rest = target * sign;
  int g = 3;
  for (; rest >= chunk; ++g) {
    problem.multiplier_at(n, g) = 65535;
    for (int i = 0; i < kGroup - 2 && rest >= chunk; ++i, rest -= chunk)
      problem.w_at(n, g * kGroup + i) = static_cast<int16_t>(sign * 127);
  }
  // rest = 65535 * (127 * a + b) + c: the inputs of groups 0, 1, 2 are fixed below as a, b and 1.
  const int64_t product = rest / 65535;
  problem.multiplier_at(n, 0) = problem.multiplier_at(n, 1) = 65535;
  for (int64_t left = product / kMaxCode, i = 0; left > 0; ++i) {
    const int64_t w = std::min<int64_t>(left, 127);
    problem.w_at(n, static_cast<int>(i)) = static_cast<int16_t>(sign * w);
    left -= w;
  }
  for (int64_t left = product % kMaxCode, i = 0, unit = 16384; left > 0; unit /= 4, ++i) {
    problem.w_at(n, static_cast<int>(kGroup + i)) = static_cast<int16_t>(sign * (left / unit));
    left %= unit;
  }
  problem.multiplier_at(n, 2) = static_cast<uint16_t>(rest % 65535);
  problem.w_at(n, 2 * kGroup) = static_cast<int16_t>(sign);
}

LinearCase rounding_case(Weights kind, int top_exponent) {
  LinearCase problem(kind, 1, 1, kind == Weights::kW16 ? 16448 : 19200);
  std::fill(problem.x.begin(), problem.x.end(), static_cast<int16_t>(kMaxCode));
  if (kind == Weights::kW16) {
    problem.x_at(0, 1) = 1;
  } else {
    for (int i = 0, unit = 16384; i < 8; ++i, unit /= 4) problem.x_at(0, kGroup + i) = static_cast<int16_t>(unit);
    problem.x_at(0, 2 * kGroup) = 1;
  }
  const int64_t ulp = int64_t{1} << (top_exponent - 23);
  for (int n = 0; n < kTileRows; ++n) {  // significands even and odd, at a tie and one beside it, both signs
    const int64_t significand = (int64_t{1} << 23) + n / 8 * 0x155555 + n % 2;
    const int64_t target = (significand * ulp + ulp / 2 + (n / 2 % 3 - 1)) * (n % 3 == 0 ? -1 : 1);
    kind == Weights::kW16 ? make_w16_sum(problem, n, target) : make_w8_sum(problem, n, target);
    CHECK(exact_sum(problem, 0, n) == target, "the case is not what it should be: " + problem.name());
  }
  return problem;
}

void test_rounding() {
  for (int top = 24; top <= 43; ++top) check_case(rounding_case(Weights::kW16, top), "rounding");
  for (int top = 24; top <= 51; ++top) check_case(rounding_case(Weights::kW8, top), "rounding");
}

void test_scales() {
  const float scales[] = {0.0f,   0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep-1f, 0x1p-60f,
                          0x1p5f, 0x1p100f,  0x1.fffffep127f,  -0x1p-3f,  0x1.333332p-70f};
  Random random(3);
  for (const Weights kind : kKinds) {
    LinearCase problem = random_case(kind, 11, 2, 64, random);
    for (size_t i = 0; i < problem.s_x.size(); ++i) problem.s_x[i] = scales[i % std::size(scales)];
    for (size_t i = 0; i < problem.s_w.size(); ++i) {
      const float s = scales[(i * 3 + 1) % std::size(scales)];
      problem.s_w[i] = s > 0x1p60f ? 0x1p60f : s;  // infinity times zero would be a NaN, whose bits are not ours
    }
    for (int i = 0; i < problem.k; ++i) problem.x_at(4, i) = 0;  // a zero row under a huge scale
    check_case(problem, "scales");
  }
}

}  // namespace

void test_linear() {
  test_sizes();
  test_extremes();
  test_largest_k();
  test_rounding();
  test_scales();
}

}  // namespace exactlm::test
