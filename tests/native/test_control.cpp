// Negative controls: kernels that are wrong in the ways these tests are for must be noticed by the comparisons they
// use.
#include <algorithm>

#include "plain.h"

namespace exactlm::test {
namespace {

const DotTable& scalar() { return *isas()[0]->dot; }

int16_t weight_w16(const uint8_t* tile, int n, int i) {
  const uint8_t* p = tile + i / 4 * 128 + n * 4 + i % 4;
  return static_cast<int16_t>(256 * (p[0] - 128) + (p[64] - 128));
}

// The float baseline: the same products, summed in fp32.
void sum_in_float(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                  int num_tiles, float* y, size_t ldy) {
  const size_t tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int m = 0; m < num_rows; ++m) {
    const uint8_t* row = packed + static_cast<size_t>(m) * scalar().packed_bytes(k);
    for (int n = 0; n < kTileRows * num_tiles; ++n) {
      float sum = 0.0f;
      for (int i = 0; i < k; ++i) {
        int16_t x;
        std::memcpy(&x, row + 2 * i, sizeof x);
        const int16_t code = weight_w16(w + static_cast<size_t>(n / kTileRows) * tile_bytes, n % kTileRows, i);
        sum += static_cast<float>(x) * static_cast<float>(code);
      }
      const float scaled = sum * s_w[n];
      y[static_cast<size_t>(m) * ldy + static_cast<size_t>(n)] = scaled * s_x[m];
    }
  }
}

void flip_one_bit(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                  int num_tiles, float* y, size_t ldy) {
  scalar().linear_w16(packed, s_x, num_rows, k, w, s_w, num_tiles, y, ldy);
  float& last = y[static_cast<size_t>(num_rows - 1) * ldy + static_cast<size_t>(num_tiles * kTileRows - 1)];
  last = float_of(bits_of(last) ^ 1u);
}

void write_between_rows(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
                        const float* s_w, int num_tiles, float* y, size_t ldy) {
  scalar().linear_w16(packed, s_x, num_rows, k, w, s_w, num_tiles, y, ldy);
  y[static_cast<size_t>(num_tiles * kTileRows)] = 0.0f;
}

void multiply_in_32_bits(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
                         const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const size_t groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
  for (int m = 0; m < num_rows; ++m) {
    const uint8_t* row = packed + static_cast<size_t>(m) * scalar().packed_bytes(k);
    for (int n = 0; n < kTileRows * num_tiles; ++n) {
      const size_t tile = static_cast<size_t>(n / kTileRows) * groups, lane = static_cast<size_t>(n % kTileRows);
      int64_t sum = 0;
      for (int i = 0; i < k; ++i) {
        int16_t x;
        std::memcpy(&x, row + 2 * i, sizeof x);
        const int code =
            w[tile * kGroup * kTileRows + static_cast<size_t>(i / 4) * 64 + lane * 4 + static_cast<size_t>(i % 4)] -
            128;
        const int64_t product =
            int64_t{x} * code * multipliers[(tile + static_cast<size_t>(i / kGroup)) * kTileRows + lane];
        sum = static_cast<int32_t>(static_cast<uint32_t>(sum + product));  // wraps as a 32-bit register does
      }
      const float scaled = round_to_fp32(sum) * s_w[n];
      y[static_cast<size_t>(m) * ldy + static_cast<size_t>(n)] = scaled * s_x[m];
    }
  }
}

void mix_one_off(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  scalar().mix_v16(limbs, pages, num_pages, dp, acc);
  acc[dp - 1] += 1;
}

void mix_without_last_token(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp,
                            int64_t* acc) {
  const size_t n = static_cast<size_t>(num_pages * kPageTokens);
  std::vector<uint8_t> planes[3];
  const uint8_t* shorter[3];
  for (int i = 0; i < 3; ++i) {
    planes[i].assign(limbs[i], limbs[i] + n);
    planes[i][n - 1] = 0;
    shorter[i] = planes[i].data();
  }
  scalar().mix_v16(shorter, pages, num_pages, dp, acc);
}

// Limb by limb in 32 bits for as long as the row is, without the transfers of spec 8.6.
void mix_without_transfer(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp,
                          int64_t* acc) {
  for (int i = 0; i < dp; ++i) acc[i] = 0;
  for (int limb = 0; limb < 3; ++limb) {
    std::vector<uint32_t> cross(static_cast<size_t>(dp));
    for (int j = 0; j < num_pages * kPageTokens; ++j) {
      const int8_t* quad = pages[j / kPageTokens] + j % kPageTokens / 4 * dp * 8 + j % 4;
      for (int i = 0; i < dp; ++i) {
        const int8_t* v = quad + i / 16 * 128 + i % 16 * 4;
        cross[static_cast<size_t>(i)] += static_cast<uint32_t>(limbs[limb][j] * (v[0] + v[64]));
        acc[i] += int64_t{limbs[limb][j]} * (int64_t{255} * v[0]) << (8 * limb);  // the rest, exact
      }
    }
    for (int i = 0; i < dp; ++i)
      acc[i] += static_cast<int64_t>(static_cast<int32_t>(cross[static_cast<size_t>(i)])) << (8 * limb);
  }
}

// Products of unsigned and signed bytes whose pairs saturate at 16 bits, as AVX2's vpmaddubsw does.
void saturate_pairs(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
                    int num_tiles, float* y, size_t ldy) {
  for (int m = 0; m < num_rows; ++m) {
    const uint8_t* row = packed + static_cast<size_t>(m) * scalar().packed_bytes(k);
    for (int n = 0; n < kTileRows * num_tiles; ++n) {
      const uint8_t* tile = keys + n / kTileRows * k * kTileRows + n % kTileRows * 4;
      int64_t sum = 0, sum_x = 0;
      for (int i = 0; i < k; i += 2) {
        int16_t x[2];
        std::memcpy(x, row + 2 * i, sizeof x);
        const uint8_t* w = tile + i / 4 * 64 + i % 4;
        const int lo[2] = {((x[0] + 128) & 255) - 128, ((x[1] + 128) & 255) - 128};
        sum += 256 * ((x[0] - lo[0]) / 256 * w[0] + (x[1] - lo[1]) / 256 * w[1]);
        sum += std::clamp(lo[0] * w[0] + lo[1] * w[1], -32768, 32767);
        sum_x += x[0] + x[1];
      }
      const float scaled = round_to_fp32(sum - 128 * sum_x) * s_k[n];
      y[static_cast<size_t>(m) * ldy + static_cast<size_t>(n)] = scaled * s_x[m];
    }
  }
}

// fp32 by way of two fp32 halves: two roundings.
void round_twice(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                 int num_tiles, float* y, size_t ldy) {
  const size_t tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int m = 0; m < num_rows; ++m) {
    const uint8_t* row = packed + static_cast<size_t>(m) * scalar().packed_bytes(k);
    for (int n = 0; n < kTileRows * num_tiles; ++n) {
      int64_t sum = 0;
      for (int i = 0; i < k; ++i) {
        int16_t x;
        std::memcpy(&x, row + 2 * i, sizeof x);
        sum += int64_t{x} * weight_w16(w + static_cast<size_t>(n / kTileRows) * tile_bytes, n % kTileRows, i);
      }
      const float high = round_to_fp32(sum >> 8) * 256.0f, low = round_to_fp32(sum & 255);
      const float scaled = (high + low) * s_w[n];
      y[static_cast<size_t>(m) * ldy + static_cast<size_t>(n)] = scaled * s_x[m];
    }
  }
}

LinearCase random_case(Weights kind, int num_rows, int num_tiles, int k) {
  Random random(30);
  LinearCase problem(kind, num_rows, num_tiles, k);
  for (int16_t& q : problem.x) q = static_cast<int16_t>(random.between(-kMaxCode, kMaxCode));
  const int limit = kind == Weights::kW16 ? kMaxCode : 127;
  for (int16_t& q : problem.w) q = static_cast<int16_t>(random.between(-limit, limit));
  for (uint16_t& m : problem.multipliers) m = static_cast<uint16_t>(random.between(1, 65535));
  return problem;
}

}  // namespace

void test_control() {
  const LinearCase w16 = random_case(Weights::kW16, 5, 2, 172), w8 = random_case(Weights::kW8, 2, 1, 172);
  const int outputs = w16.num_rows * w16.num_outputs();
  DotTable wrong = scalar();
  CHECK(count_linear_mismatches(wrong, w16) == 0, "the definition has no mismatch");
  wrong.linear_w16 = sum_in_float;
  const int in_float = count_linear_mismatches(wrong, w16);
  CHECK(in_float > outputs / 2, "sums in fp32: " + std::to_string(in_float) + " of " + std::to_string(outputs));
  wrong.linear_w16 = flip_one_bit;
  CHECK(count_linear_mismatches(wrong, w16) == 1, "one wrong bit");
  wrong.linear_w16 = write_between_rows;
  CHECK(count_linear_mismatches(wrong, w16, {Edge::kEnd, 2}) == 1, "a write between the rows of y");
  wrong.linear_w8 = multiply_in_32_bits;
  CHECK(count_linear_mismatches(wrong, w8) > 0, "multipliers in 32 bits");

  wrong.linear_w16 = round_twice;
  CHECK(count_linear_mismatches(wrong, random_case(Weights::kW16, 16, 4, 64)) > 0, "two roundings");
  const LinearCase keys = random_case(Weights::kKeys8, 2, 1, 64);
  CHECK(count_linear_mismatches(wrong, keys) == 0, "the definition has no mismatch");
  wrong.score_k8 = saturate_pairs;
  CHECK(count_linear_mismatches(wrong, keys) > 0, "pairs that saturate");

  MixCase mix{2, 32, 2, {}, {}};
  mix.p.assign(64, 8388607);
  mix.values.emplace_back(static_cast<size_t>(kPageTokens * mix.dp), int16_t{-3});
  CHECK(count_mix_mismatches(wrong, mix) == 0, "the definition has no mismatch");
  wrong.mix_v16 = mix_one_off;
  CHECK(count_mix_mismatches(wrong, mix) == 1, "a sum that is one off");
  wrong.mix_v16 = mix_without_last_token;
  CHECK(count_mix_mismatches(wrong, mix) == mix.dp, "a token left out");
  wrong.mix_v16 = mix_without_transfer;
  CHECK(count_mix_mismatches(wrong, mix) == 0, "32 bits are enough for a short row");
  MixCase longest{2, 16, 1100, {}, {}};
  longest.p.assign(1100 * kPageTokens, 0xffffff);
  longest.values.emplace_back(static_cast<size_t>(kPageTokens * longest.dp), static_cast<int16_t>(kMaxCode));
  CHECK(count_mix_mismatches(wrong, longest) == longest.dp, "no transfer to 64 bits in 35,200 keys");
}

}  // namespace exactlm::test
