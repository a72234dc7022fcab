// Digests of elementwise operations over every binary16 number and over random fp32 numbers. The constants are the
// same on every platform and for every instruction set; a change of one is a change of the numerics (CHANGELOG).
#include <cmath>
#include <cstdio>

#include "check.h"

namespace exactlm::test {
namespace {

constexpr int kRow = 64;
constexpr int kHalf = kRow / 2;

// All finite binary16 numbers by pattern, then random fp32 numbers: wide, and near 1.
const std::vector<float>& inputs() {
  static const std::vector<float> all = [] {
    std::vector<float> list;
    for (uint32_t half = 0; half < 65536; ++half)
      if ((half & 0x7c00u) != 0x7c00u) list.push_back(half_to_float(static_cast<uint16_t>(half)));
    Random random(40);
    for (int i = 0; i < 16384; ++i) list.push_back(random.finite(-126, 60));
    for (int i = 0; i < 16384; ++i) list.push_back(random.finite(-12, 6));
    return list;
  }();
  return all;
}

float random_gain(Random& random) { return random.finite(-2, 1); }

void add_codes(const int16_t* codes, float scale, Digest& digest) {
  digest.add(codes, kRow);
  digest.add(scale);
}

void quantise(const ElementwiseTable& table, const float* x, Random&, Digest& digest) {
  int16_t codes[kRow] = {};
  float scale = 0.0f;
  digest.add(static_cast<uint64_t>(table.quantise(x, kRow, codes, kRow, &scale)), 1);
  add_codes(codes, scale, digest);
}

void quantise8(const ElementwiseTable& table, const float* x, Random&, Digest& digest) {
  int16_t codes[kRow] = {};
  float scale = 0.0f;
  digest.add(static_cast<uint64_t>(table.quantise8(x, kRow, codes, &scale)), 1);
  add_codes(codes, scale, digest);
}

void norm_quantise(const ElementwiseTable& table, const float* x, Random& random, Digest& digest) {
  float row[kRow], y[kRow], gain[kRow], scratch[kRow] = {}, scale = 0.0f;
  int16_t codes[kRow] = {};
  for (int i = 0; i < kRow; ++i) {
    row[i] = x[i];
    y[i] = random.finite(-10, 2);
    gain[i] = random_gain(random);
  }
  digest.add(static_cast<uint64_t>(table.norm_quantise(row, y, gain, kRow, 1e-5, codes, kRow, &scale, scratch)), 1);
  add_codes(codes, scale, digest);
  digest.add(row, kRow);
  digest.add(scratch, kRow);
}

void swiglu_quantise(const ElementwiseTable& table, const float* x, Random&, Digest& digest) {  // exp2 is in it
  float up[kRow], scratch[kRow] = {}, scale = 0.0f;
  int16_t codes[kRow] = {};
  for (float& u : up) u = 1.0f;
  digest.add(static_cast<uint64_t>(table.swiglu_quantise(x, up, kRow, codes, kRow, &scale, scratch)), 1);
  add_codes(codes, scale, digest);
  digest.add(scratch, kRow);
}

void rope(const ElementwiseTable& table, const float* x, Random& random, Digest& digest) {
  uint64_t frequency[kHalf];
  float cosine[kHalf], sine[kHalf], out[kRow];
  for (uint64_t& f : frequency) f = random.next();
  const uint64_t position = static_cast<uint64_t>(random.between(0, 131071));
  table.rope_table(position, frequency, kHalf, position % 2 == 0 ? 1.0f : 1.1386294603347778f, cosine, sine);
  table.rope(x, cosine, sine, kHalf, out);
  digest.add(cosine, kHalf);
  digest.add(sine, kHalf);
  digest.add(out, kRow);
}

void hadamard(const ElementwiseTable& table, const float* x, Random&, Digest& digest) {
  float row[kRow];
  for (const int is_key : {0, 1}) {
    for (int i = 0; i < kRow; ++i) row[i] = x[i];
    table.hadamard(row, kRow - 16 * is_key, is_key);
    digest.add(row, kRow);
  }
}

void softmax(const ElementwiseTable& table, const float* x, Random& random, Digest& digest) {
  float t[kRow], s_v[kRow];
  for (int i = 0; i < kRow; ++i) {
    t[i] = x[i];
    s_v[i] = std::fabs(random.finite(-9, -3));
  }
  uint8_t low[kRow] = {}, middle[kRow] = {}, high[kRow] = {};
  uint8_t* const limbs[3] = {low, middle, high};
  float rescale = 0.0f;
  digest.add(static_cast<uint64_t>(table.softmax(t, s_v, kRow, limbs, &rescale)), 1);
  digest.add(t, kRow);
  digest.add(rescale);
  for (int i = 0; i < kRow; ++i) digest.add(low[i] | uint64_t{middle[i]} << 8 | uint64_t{high[i]} << 16, 3);
  int64_t sums[kRow];
  float mixed[kRow];
  for (int64_t& sum : sums) sum = static_cast<int64_t>(random.next()) >> random.between(8, 60);
  table.finish_mix(sums, kRow, rescale, mixed);
  digest.add(mixed, kRow);
}

struct Operation {
  const char* name;
  void (*run)(const ElementwiseTable&, const float*, Random&, Digest&);
  uint64_t expected;
};
const Operation kOperations[] = {
    {"quantise", quantise, 0x878cf897ba593113},
    {"quantise8", quantise8, 0xdd3d39614f4444d8},
    {"norm_quantise", norm_quantise, 0x80ad40bec8c98d43},
    {"swiglu_quantise", swiglu_quantise, 0x0e233b266363665d},
    {"rope", rope, 0x74fbd9d7962b295f},
    {"hadamard", hadamard, 0xb181df80b151e988},
    {"softmax", softmax, 0x7d70877dfa952d15},
};

uint64_t digest_of(const Operation& operation, const ElementwiseTable& table) {
  Digest digest;
  Random random(41);
  for (size_t i = 0; i + kRow <= inputs().size(); i += kRow) operation.run(table, inputs().data() + i, random, digest);
  return digest.value();
}

// What a compiler makes of exp2's chain when it may contract a product and a sum into one operation. Spec 9.
Status swiglu_contracted(const float* gate, const float* up, int n, int16_t* codes, int padded, float* scale,
                         float* scratch) {
  const float coefficients[] = {0x1.461956p-10f, 0x1.3d28p-7f, 0x1.c685p-5f, 0x1.ebfd9ep-3f, 0x1.62e42ap-1f, 1.0f};
  for (int i = 0; i < n; ++i) {
    const float t = std::fmin(std::fmax(gate[i] * -0x1.715476p+0f, -126.0f), 126.0f);
    float y = 0x1.c72114p-13f;
    for (const float c : coefficients) y = std::fma(y, t - std::floor(t), c);
    scratch[i] = gate[i] / (1.0f + std::ldexp(y, static_cast<int>(std::floor(t)))) * up[i];
  }
  return isas()[0]->elementwise->quantise(scratch, n, codes, padded, scale);
}

// Ties away from zero, as round() does, where spec 1.2 says to even.
Status quantise_ties_away(const float* x, int n, int16_t* codes, int padded, float* scale) {
  const Status status = isas()[0]->elementwise->quantise(x, n, codes, padded, scale);
  for (int i = 0; i < n && *scale != 0.0f; ++i) codes[i] = static_cast<int16_t>(std::round(x[i] / *scale));
  return status;
}

void check_controls() {
  ElementwiseTable wrong = *isas()[0]->elementwise;
  wrong.swiglu_quantise = swiglu_contracted;
  wrong.quantise = quantise_ties_away;
  for (const Operation& operation : kOperations) {
    const bool is_wrong = operation.run == swiglu_quantise || operation.run == quantise;
    CHECK((digest_of(operation, wrong) != operation.expected) == is_wrong, operation.name);
  }
}

}  // namespace

void test_digest() {
  CHECK(inputs().size() == 63488 + 2 * 16384, "2 * 31 * 1024 finite binary16 numbers");
  for (const Operation& operation : kOperations) {
    for (const Isa* isa : isas()) {
      char found[40];
      const uint64_t value = digest_of(operation, *isa->elementwise);
      std::snprintf(found, sizeof found, "0x%016llx", static_cast<unsigned long long>(value));
      CHECK(value == operation.expected, std::string(isa->dot->isa) + " " + operation.name + ": " + found);
    }
  }
  check_controls();
}

}  // namespace exactlm::test
