// Elementwise operations of every instruction set against the scalar compilation of the same source: sizes, memory
// bounds, extremes and ties, and the error for values that are not finite.
#include <algorithm>
#include <limits>

#include "check.h"
#include "layout.h"

namespace exactlm::test {
namespace {

const std::vector<int> kSizes = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,  17,  31,
                                 32, 33, 63, 64, 65, 96, 127, 128, 129, 172, 257, 576};

size_t at(int i) { return static_cast<size_t>(i); }

// One operation over one row in guarded memory; its outputs are digested.
struct Row {
  std::vector<float> x, y, gain;
  int padded;
};
using Operation = Status (*)(const ElementwiseTable&, const Row&, Digest&);

Status finish(Status status, const Guarded<int16_t>& codes, float scale, Digest& digest) {
  if (status == kOk) {
    digest.add(codes.data(), codes.size());
    digest.add(scale);
  }
  return status;
}

Status quantise(const ElementwiseTable& table, const Row& row, Digest& digest) {
  const Guarded<float> x(row.x);
  const Guarded<int16_t> codes(at(row.padded));
  Guarded<float> scale(1);
  return finish(table.quantise(x.data(), static_cast<int>(x.size()), codes.data(), row.padded, scale.data()), codes,
                scale[0], digest);
}

Status quantise8(const ElementwiseTable& table, const Row& row, Digest& digest) {
  const Guarded<float> x(row.x);
  const Guarded<int16_t> codes(x.size());
  Guarded<float> scale(1);
  return finish(table.quantise8(x.data(), static_cast<int>(x.size()), codes.data(), scale.data()), codes, scale[0],
                digest);
}

Status norm_quantise(const ElementwiseTable& table, const Row& row, Digest& digest) {
  const Guarded<float> x(row.x), y(row.y), gain(row.gain), scratch(row.x.size());
  const Guarded<int16_t> codes(at(row.padded));
  Guarded<float> scale(1);
  const Status status = table.norm_quantise(x.data(), y.data(), gain.data(), static_cast<int>(x.size()), 1e-5,
                                            codes.data(), row.padded, scale.data(), scratch.data());
  digest.add(x.data(), status == kOk ? x.size() : 0);
  return finish(status, codes, scale[0], digest);
}

Status swiglu_quantise(const ElementwiseTable& table, const Row& row, Digest& digest) {
  const Guarded<float> gate(row.x), up(row.y), scratch(row.x.size());
  const Guarded<int16_t> codes(at(row.padded));
  Guarded<float> scale(1);
  return finish(table.swiglu_quantise(gate.data(), up.data(), static_cast<int>(gate.size()), codes.data(), row.padded,
                                      scale.data(), scratch.data()),
                codes, scale[0], digest);
}

struct NamedOperation {
  const char* name;
  Operation run;
};
const NamedOperation kOperations[] = {{"quantise", quantise},
                                      {"quantise8", quantise8},
                                      {"norm_quantise", norm_quantise},
                                      {"swiglu_quantise", swiglu_quantise}};

Row make_row(int n, int min_exp, int max_exp, Random& random) {
  Row row;
  for (int i = 0; i < n; ++i) {
    row.x.push_back(random.finite(min_exp, max_exp));
    row.y.push_back(random.finite(-4, 4));
    row.gain.push_back(random.finite(-2, 2));
  }
  row.padded = n + random.between(0, 64);
  return row;
}

void check_row(const Row& row, const char* what) {
  for (const NamedOperation& operation : kOperations) {
    Digest expected;
    const Status status = operation.run(*isas()[0]->elementwise, row, expected);
    CHECK(status == kOk, std::string(operation.name) + " " + what + ": scalar reports an error");
    for (const Isa* isa : isas()) {
      Digest digest;
      const bool ok = operation.run(*isa->elementwise, row, digest) == kOk && digest.value() == expected.value();
      CHECK(ok, std::string(isa->dot->isa) + " " + operation.name + " " + what + " n " + std::to_string(row.x.size()));
    }
  }
}

void test_rows() {
  Random random(5);
  for (const int n : kSizes) {
    check_row(make_row(n, -8, 8, random), "random");
    check_row(make_row(n, -126, 60, random), "wide");
    Row row = make_row(n, -8, 8, random);
    std::fill(row.x.begin(), row.x.end(), 0.0f);
    row.y = row.x;
    check_row(row, "zero");
    for (float& x : row.x) x = random.finite(-126, -101);
    row.y = row.x;
    check_row(row, "below 2^-100");
    for (float& x : row.x) x = float_of(static_cast<uint32_t>(random.between(0, 0x7fffff)));
    row.x[at(n / 2)] = 0x1p-99f;
    check_row(row, "subnormal");
    for (float& x : row.x) x = 0.5f * static_cast<float>(random.between(-65278, 65278));
    row.x[at(n / 3)] = 32639.0f;  // the largest code: every odd half is a tie
    check_row(row, "ties");
    row.x[at(n / 3)] = 32639.5f;  // one more step of k
    check_row(row, "ties above");
    row.x[at(n / 3)] = 0x1.8p98f;
    check_row(row, "outlier");
  }
}

// A value that is not finite, wherever it stands, is an error and never a number.
void test_non_finite() {
  const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(), float_of(0xffc00001u), float_of(0x7f800001u)};
  Random random(6);
  for (const int n : {1, 7, 16, 33, 65}) {
    for (int position = 0; position < n; position += n < 20 || !is_short() ? 1 : 5) {
      Row row = make_row(n, -3, 3, random);
      row.x[at(position)] = bad[position % 5];
      for (const Isa* isa : isas()) {
        Digest unused;
        const std::string where =
            std::string(isa->dot->isa) + " n " + std::to_string(n) + " position " + std::to_string(position);
        for (const NamedOperation& operation : kOperations)
          CHECK(operation.run(*isa->elementwise, row, unused) == kNonFinite, where + " " + operation.name);
        const Guarded<float> logits(row.x);
        CHECK(isa->elementwise->argmax(logits.data(), n) == -1, where + " argmax");
      }
    }
  }
  const Row overflow = {{0x1.8p127f, 1.0f}, {0x1.8p127f, 1.0f}, {1.0f, 1.0f}, 2};
  for (const Isa* isa : isas()) {
    Digest unused;
    CHECK(norm_quantise(*isa->elementwise, overflow, unused) == kNonFinite, "x + y overflows");
    CHECK(swiglu_quantise(*isa->elementwise, overflow, unused) == kNonFinite, "silu(g) * u overflows");
  }
}

void test_argmax() {
  Random random(7);
  for (const int n : {1, 2, 15, 16, 17, 64, 1000, 49152}) {
    for (int kind = 0; kind < 6; ++kind) {
      std::vector<float> x(at(n));
      for (float& v : x) {
        const float few = static_cast<float>(random.between(-2, 2));  // ties everywhere
        v = kind == 0 ? random.finite(-20, 20) : kind == 1 ? few : kind == 2 ? -random.finite(-9, 9) : -0.0f;
      }
      if (kind == 3) x[at(n / 2)] = 0.0f;  // equals the -0 before it
      if (kind == 4) x[at(n - 1)] = 0x1p-149f;
      if (kind == 5) std::fill(x.begin(), x.end(), -0x1.fffffep127f);
      const int64_t expected = std::max_element(x.begin(), x.end()) - x.begin();  // the first of equals
      for (const Isa* isa : isas()) {
        const Guarded<float> logits(x);
        CHECK(isa->elementwise->argmax(logits.data(), n) == expected,
              std::string(isa->dot->isa) + " n " + std::to_string(n) + " kind " + std::to_string(kind));
      }
    }
  }
}

void test_rotation() {
  Random random(8);
  for (const int d : {2, 4, 6, 16, 30, 48, 64, 80, 128, 256}) {
    std::vector<float> x(at(d)), cosine(at(d / 2)), sine(at(d / 2)), rotated(at(d)), expected(at(d));
    for (float& v : x) v = random.finite(-20, 20);
    for (float& v : cosine) v = random.finite(-9, -1);
    for (float& v : sine) v = random.finite(-9, -1);
    for (int i = 0; i < d / 2; ++i) {
      const float a = x[at(i)], b = x[at(i + d / 2)];
      const float ac = a * cosine[at(i)], bs = b * sine[at(i)], bc = b * cosine[at(i)], as = a * sine[at(i)];
      expected[at(i)] = ac - bs;
      expected[at(i + d / 2)] = bc + as;
    }
    for (const Isa* isa : isas()) {
      const Guarded<float> in(x), c(cosine), s(sine), out(at(d));
      isa->elementwise->rope(in.data(), c.data(), s.data(), d / 2, out.data());
      CHECK(same_bits(out.data(), expected.data(), at(d)), std::string(isa->dot->isa) + " rope " + std::to_string(d));
      for (const int is_key : {0, 1}) {
        const Guarded<float> one(x), other(x);
        isas()[0]->elementwise->hadamard(one.data(), d, is_key);
        isa->elementwise->hadamard(other.data(), d, is_key);
        CHECK(same_bits(one.data(), other.data(), at(d)),
              std::string(isa->dot->isa) + " hadamard " + std::to_string(d));
      }
    }
  }
}

// Codes written to a page come back, whatever the slot, and only that slot of the page changes.
void test_cache_slots() {
  Random random(9);
  for (const int limbs : {1, 2}) {
    for (const int d : {2, 6, 16, 64, 80, 256}) {
      const int dp = (d + 15) / 16 * 16, limit = limbs == 2 ? 32639 : 127;
      const size_t page_bytes = at(kPageTokens * dp * limbs);
      const Guarded<uint8_t> keys(page_bytes);
      const Guarded<int8_t> values(page_bytes);
      std::vector<std::vector<int16_t>> written;
      for (int slot = 0; slot < kPageTokens; ++slot) {
        Guarded<int16_t> codes(at(d));
        for (int i = 0; i < d; ++i) codes[at(i)] = static_cast<int16_t>(random.between(-limit, limit));
        store_key(codes.data(), d, dp, limbs, slot, keys.data());
        store_value(codes.data(), d, dp, limbs, slot, values.data());
        written.emplace_back(codes.data(), codes.data() + d);
      }
      bool equal = true;
      for (int slot = 0; slot < kPageTokens; ++slot) {
        const Guarded<int16_t> key(at(d)), value(at(d));
        load_key(keys.data(), d, dp, limbs, slot, key.data());
        load_value(values.data(), d, dp, limbs, slot, value.data());
        equal = equal && std::equal(written[at(slot)].begin(), written[at(slot)].end(), key.data());
        equal = equal && std::equal(written[at(slot)].begin(), written[at(slot)].end(), value.data());
      }
      CHECK(equal, "d " + std::to_string(d) + " limbs " + std::to_string(limbs));
    }
  }
}

}  // namespace

void test_elementwise() {
  test_rows();
  test_non_finite();
  test_argmax();
  test_rotation();
  test_cache_slots();
}

}  // namespace exactlm::test
