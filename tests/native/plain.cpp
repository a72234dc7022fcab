#include "plain.h"

#include <memory>

namespace exactlm::test {
namespace {

constexpr float kUntouched = -0x1.abcdefp-77f;

size_t at(int i) { return static_cast<size_t>(i); }

int low_limb(int q) { return ((q + 128) & 255) - 128; }

// Biased codes in tiles of 16 outputs; k padded with zeros to a multiple of 4 (w16) or 32 (w8).
std::vector<uint8_t> lay_out_codes(const LinearCase& problem) {
  const int limbs = problem.kind == Weights::kW16 ? 2 : 1;
  const int padded = problem.kind == Weights::kW8 ? problem.num_groups() * kGroup : (problem.k + 3) / 4 * 4;
  std::vector<uint8_t> bytes(at(padded) * at(problem.num_outputs()) * at(limbs), uint8_t{128});
  for (int n = 0; n < problem.num_outputs(); ++n) {
    uint8_t* tile = bytes.data() + at(n / kTileRows) * at(padded) * at(limbs) * kTileRows + n % kTileRows * 4;
    for (int i = 0; i < problem.k; ++i) {
      const int q = problem.w[at(n) * at(problem.k) + at(i)];
      uint8_t* code = tile + at(i / 4) * 64 * at(limbs) + i % 4;
      if (limbs == 2) {
        code[0] = static_cast<uint8_t>((q - low_limb(q)) / 256 + 128);
        code[64] = static_cast<uint8_t>(low_limb(q) + 128);
      } else {
        code[0] = static_cast<uint8_t>(q + 128);
      }
    }
  }
  return bytes;
}

std::vector<uint16_t> lay_out_multipliers(const LinearCase& problem) {
  const int groups = problem.num_groups();
  std::vector<uint16_t> out(at(groups * problem.num_outputs()));
  for (int n = 0; n < problem.num_outputs(); ++n)
    for (int g = 0; g < groups; ++g)
      out[at((n / kTileRows * groups + g) * kTileRows + n % kTileRows)] = problem.multipliers[at(n * groups + g)];
  return out;
}

std::vector<int8_t> lay_out_values(const MixCase& problem, const std::vector<int16_t>& codes) {
  const int limbs = problem.num_limbs;
  std::vector<int8_t> bytes(at(kPageTokens * problem.dp * limbs));
  for (int j = 0; j < kPageTokens; ++j) {
    for (int i = 0; i < problem.dp; ++i) {
      const int q = codes[at(j * problem.dp + i)];
      int8_t* value = bytes.data() + (j / 4 * (problem.dp / 16) + i / 16) * 64 * limbs + i % 16 * 4 + j % 4;
      value[0] = static_cast<int8_t>(limbs == 2 ? (q - low_limb(q)) / 256 : q);
      if (limbs == 2) value[64] = static_cast<int8_t>(low_limb(q));
    }
  }
  return bytes;
}

}  // namespace

LinearCase::LinearCase(Weights kind_, int num_rows_, int num_tiles_, int k_)
    : kind(kind_), num_rows(num_rows_), num_tiles(num_tiles_), k(k_) {
  x.resize(at(num_rows) * at(k));
  s_x.assign(at(num_rows), 1.0f);
  w.resize(at(num_outputs()) * at(k));
  if (kind == Weights::kW8) multipliers.assign(at(num_outputs() * num_groups()), uint16_t{1});
  s_w.assign(at(num_outputs()), 1.0f);
}

std::string LinearCase::name() const {
  const char* kinds[] = {"w16", "w8", "keys8"};
  return std::string(kinds[static_cast<int>(kind)]) + " rows " + std::to_string(num_rows) + " tiles " +
         std::to_string(num_tiles) + " k " + std::to_string(k);
}

int64_t exact_sum(const LinearCase& problem, int m, int n) {
  const int16_t* x = problem.x.data() + at(m) * at(problem.k);
  const int16_t* w = problem.w.data() + at(n) * at(problem.k);
  int64_t sum = 0;
  for (int i = 0; i < problem.k; ++i) {
    const int multiplier =
        problem.kind == Weights::kW8 ? problem.multipliers[at(n * problem.num_groups() + i / kGroup)] : 1;
    sum += int64_t{x[i]} * w[i] * multiplier;
  }
  return sum;
}

int count_linear_mismatches(const DotTable& table, const LinearCase& problem, Placement placement) {
  const int k = problem.k, rows = problem.num_rows, outputs = problem.num_outputs();
  const size_t stride = at(k) + 3, ldy = at(outputs + placement.y_gap);
  const Guarded<int16_t> codes(at(rows - 1) * stride + at(k), placement.edge);
  for (int m = 0; m < rows; ++m)
    std::memcpy(codes.data() + at(m) * stride, problem.x.data() + at(m) * at(k), at(k) * 2);
  const Guarded<float> s_x(problem.s_x, placement.edge), s_w(problem.s_w, placement.edge);
  const Guarded<uint8_t> w(lay_out_codes(problem), placement.edge);
  const Edge packed_edge = placement.edge == Edge::kShifted ? Edge::kBegin : placement.edge;  // always on a cache line
  const Guarded<uint8_t> packed(table.packed_bytes(k) * at(rows), packed_edge);
  const Guarded<float> y(at(rows - 1) * ldy + at(outputs), placement.edge);
  for (size_t i = 0; i < y.size(); ++i) y[i] = kUntouched;

  table.pack(codes.data(), rows, stride, k, packed.data());
  if (problem.kind == Weights::kW8) {
    const Guarded<uint16_t> multipliers(lay_out_multipliers(problem), placement.edge);
    table.linear_w8(packed.data(), s_x.data(), rows, k, w.data(), multipliers.data(), s_w.data(), problem.num_tiles,
                    y.data(), ldy);
  } else {
    const auto multiply = problem.kind == Weights::kW16 ? table.linear_w16 : table.score_k8;
    multiply(packed.data(), s_x.data(), rows, k, w.data(), s_w.data(), problem.num_tiles, y.data(), ldy);
  }

  int mismatches = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const int m = static_cast<int>(i / ldy), n = static_cast<int>(i % ldy);
    float expected = kUntouched;
    if (n < outputs) {
      const float scaled = round_to_fp32(exact_sum(problem, m, n)) * problem.s_w[at(n)];
      expected = scaled * problem.s_x[at(m)];
    }
    mismatches += bits_of(expected) != bits_of(y[i]);
  }
  return mismatches;
}

std::string MixCase::name() const {
  return "limbs " + std::to_string(num_limbs) + " dp " + std::to_string(dp) + " pages " + std::to_string(num_pages);
}

int count_mix_mismatches(const DotTable& table, const MixCase& problem, Edge edge) {
  std::vector<std::unique_ptr<Guarded<int8_t>>> distinct;
  for (const std::vector<int16_t>& codes : problem.values)
    distinct.push_back(std::make_unique<Guarded<int8_t>>(lay_out_values(problem, codes), edge));
  std::vector<const int8_t*> page_list(at(problem.num_pages));
  for (size_t i = 0; i < page_list.size(); ++i) page_list[i] = distinct[i % distinct.size()]->data();
  const Guarded<const int8_t*> pages(page_list, edge);
  const Guarded<uint8_t> low(problem.p.size(), edge), middle(problem.p.size(), edge), high(problem.p.size(), edge);
  std::vector<int64_t> expected(at(problem.dp));
  for (size_t j = 0; j < problem.p.size(); ++j) {
    low[j] = static_cast<uint8_t>(problem.p[j]);
    middle[j] = static_cast<uint8_t>(problem.p[j] >> 8);
    high[j] = static_cast<uint8_t>(problem.p[j] >> 16);
    const std::vector<int16_t>& codes = problem.values[j / kPageTokens % problem.values.size()];
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] += int64_t{problem.p[j]} * codes[j % kPageTokens * expected.size() + i];
  }
  const Guarded<int64_t> acc(expected.size(), edge);
  for (size_t i = 0; i < acc.size(); ++i) acc[i] = INT64_MIN;  // what was there before must not matter
  const uint8_t* const limbs[3] = {low.data(), middle.data(), high.data()};
  const auto mix = problem.num_limbs == 2 ? table.mix_v16 : table.mix_v8;
  mix(limbs, pages.data(), problem.num_pages, problem.dp, acc.data());
  int mismatches = 0;
  for (size_t i = 0; i < acc.size(); ++i) mismatches += acc[i] != expected[i];
  return mismatches;
}

}  // namespace exactlm::test
