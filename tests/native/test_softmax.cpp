// Softmax weights of every instruction set: all short lengths, long rows, ties, extremes, errors; and what must hold of
// any of them (spec 8.3: the largest weight is 8,388,607, or one beside it where its two roundings meet).
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"

namespace exactlm::test {
namespace {

struct Result {
  Status status = kOk;
  float rescale = 0;
  std::vector<uint32_t> p;
  bool operator==(const Result& other) const {
    return status == other.status && bits_of(rescale) == bits_of(other.rescale) && p == other.p;
  }
};

Result run(const ElementwiseTable& table, const std::vector<float>& scores, const std::vector<float>& scales) {
  const size_t n = scores.size();
  const Guarded<float> t(scores), s_v(scales);
  const Guarded<uint8_t> low(n), middle(n), high(n);
  uint8_t* const limbs[3] = {low.data(), middle.data(), high.data()};
  Guarded<float> rescale(1);
  Result result;
  result.status = table.softmax(t.data(), s_v.data(), static_cast<int>(n), limbs, rescale.data());
  if (result.status != kOk) return result;
  result.rescale = rescale[0];
  if (result.rescale == 0.0f) return result;  // the limbs are not used then
  for (size_t j = 0; j < n; ++j) result.p.push_back(low[j] + (uint32_t{middle[j]} << 8) + (uint32_t{high[j]} << 16));
  return result;
}

Result check_row(const std::vector<float>& scores, const std::vector<float>& scales, const char* what) {
  const Result expected = run(*isas()[0]->elementwise, scores, scales);
  for (const Isa* isa : isas()) {
    CHECK(run(*isa->elementwise, scores, scales) == expected,
          std::string(isa->dot->isa) + " " + what + " n " + std::to_string(scores.size()));
  }
  return expected;
}

void check_lengths() {
  Random random(10);
  std::vector<int> lengths = {1000, 4097, is_short() ? 5000 : 131072};
  for (int n = 1; n <= 70; ++n) lengths.push_back(n);
  for (const int n : lengths) {
    const size_t count = static_cast<size_t>(n);
    std::vector<float> scores(count), scales(count);
    for (float& s : scales) s = std::fabs(random.finite(-18, -12));
    for (float& t : scores) t = random.finite(-3, 4);
    Result result = check_row(scores, scales, "random");
    const uint32_t largest = *std::max_element(result.p.begin(), result.p.end());
    CHECK(largest >= 8388606 && largest <= 8388608, "the largest weight");
    for (float& t : scores) t = static_cast<float>(random.between(-40, 0)) * 0.5f;
    check_row(scores, scales, "ties");
    for (float& t : scores) t = random.finite(-10, 12);
    check_row(scores, scales, "spread");
    std::fill(scores.begin(), scores.end(), -0x1.8p10f);
    std::fill(scales.begin(), scales.end(), 0x1p-14f);
    result = check_row(scores, scales, "equal");
    CHECK(std::all_of(result.p.begin(), result.p.end(), [](uint32_t p) { return p == 8388607; }), "equal weights");
    scales[count / 2] = 0.0f;
    result = check_row(scores, scales, "one zero value");
    CHECK(n == 1 ? result.rescale == 0.0f : result.p[count / 2] == 0, "a zero value weighs nothing");
    std::fill(scales.begin(), scales.end(), 0.0f);
    CHECK(check_row(scores, scales, "zero values").rescale == 0.0f, "only zero values");
  }
}

void check_extremes() {
  const float max = std::numeric_limits<float>::max();
  const std::vector<float> ones(4, 1.0f);
  check_row({max, -max, 0.0f, -0.0f}, ones, "largest scores");
  check_row({-max, -max, -max, -max}, ones, "lowest scores");
  check_row({0x1p-149f, -0x1p-149f, 0.0f, -0.0f}, ones, "subnormal scores");
  check_row({0.0f, -126.0f, -125.99999f, -127.0f}, ones, "limits of exp2");
  check_row({0.0f, 0.0f, 0.0f, 0.0f}, {0x1p127f, 0x1p-126f, 0x1p-149f, 1.0f}, "extreme values");
  check_row({0.0f, 0.0f, 0.0f, 0.0f}, {0x1.fffffep-101f, 0x1p-149f, 0.0f, 0x1p-120f}, "below 2^-100");
  check_row({0.0f, 0.0f, 0.0f, 0.0f}, {0x1p-100f, 0x1p-149f, 0.0f, 0x1p-120f}, "at 2^-100");
}

void check_non_finite() {
  const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (const size_t n : {size_t{1}, size_t{9}, size_t{40}}) {
    for (size_t position = 0; position < n; ++position) {
      std::vector<float> scores(n, 0.5f);
      scores[position] = bad[position % 3];
      for (const Isa* isa : isas())
        CHECK(run(*isa->elementwise, scores, std::vector<float>(n, 1.0f)).status == kNonFinite,
              std::string(isa->dot->isa) + " n " + std::to_string(n) + " position " + std::to_string(position));
    }
  }
}

}  // namespace

void test_softmax() {
  check_lengths();
  check_extremes();
  check_non_finite();
}

}  // namespace exactlm::test
