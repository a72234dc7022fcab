// Sums of products in portable C++: what runs on any processor, and what the other instruction sets are compared with
// where NumPy, which defines them, does not run.
#include "kernels.h"

namespace exactlm {
namespace {

size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }

size_t packed_bytes(int k) { return padded(k) * sizeof(int16_t); }

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  for (int m = 0; m < num_rows; ++m) {
    int16_t* out = reinterpret_cast<int16_t*>(packed + static_cast<size_t>(m) * packed_bytes(k));
    const int16_t* row = codes + static_cast<size_t>(m) * stride;
    for (size_t i = 0; i < padded(k); ++i) out[i] = i < static_cast<size_t>(k) ? row[i] : int16_t{0};
  }
}

const int16_t* packed_row(const uint8_t* packed, int m, int k) {
  return reinterpret_cast<const int16_t*>(packed + static_cast<size_t>(m) * packed_bytes(k));
}

void finish_tile(const int64_t* acc, const float* s_w, float s_x, float* y) {  // spec/numerics.md 4.2
  for (int n = 0; n < kTileRows; ++n) {
    const float t = static_cast<float>(acc[n]) * s_w[n];
    y[n] = t * s_x;
  }
}

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const int steps = (k + 3) / 4;
  for (int tile = 0; tile < num_tiles; ++tile, w += static_cast<size_t>(steps) * 128) {
    for (int m = 0; m < num_rows; ++m) {
      const int16_t* x = packed_row(packed, m, k);
      int64_t acc[kTileRows] = {};  // |acc| <= 32639^2 * 32768 < 2^45
      for (int step = 0; step < steps; ++step) {
        const uint8_t* p = w + static_cast<size_t>(step) * 128;
        for (int n = 0; n < kTileRows; ++n) {
          for (int i = 0; i < 4; ++i) {
            const int code = 256 * (p[4 * n + i] - 128) + (p[64 + 4 * n + i] - 128);
            acc[n] += static_cast<int64_t>(code) * x[4 * step + i];
          }
        }
      }
      finish_tile(acc, s_w + tile * kTileRows, s_x[m], y + static_cast<size_t>(m) * ldy + tile * kTileRows);
    }
  }
}

void linear_w8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
               const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const int groups = (k + kGroup - 1) / kGroup;
  for (int tile = 0; tile < num_tiles; ++tile) {
    for (int m = 0; m < num_rows; ++m) {
      const int16_t* x = packed_row(packed, m, k);
      int64_t acc[kTileRows] = {};  // < 2^53
      for (int g = 0; g < groups; ++g) {
        const uint8_t* p = w + static_cast<size_t>(g) * kGroup * kTileRows;
        for (int n = 0; n < kTileRows; ++n) {
          int32_t sum = 0;  // |sum| <= 32*128*32639 < 2^27
          for (int i = 0; i < kGroup; ++i) {
            sum += (p[i / 4 * 64 + 4 * n + i % 4] - 128) * x[g * kGroup + i];
          }
          acc[n] += static_cast<int64_t>(sum) * multipliers[g * kTileRows + n];
        }
      }
      finish_tile(acc, s_w + tile * kTileRows, s_x[m], y + static_cast<size_t>(m) * ldy + tile * kTileRows);
    }
    w += static_cast<size_t>(groups) * kGroup * kTileRows;
    multipliers += static_cast<size_t>(groups) * kTileRows;
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  for (int tile = 0; tile < num_tiles; ++tile, keys += static_cast<size_t>(k) * kTileRows) {
    for (int m = 0; m < num_rows; ++m) {
      const int16_t* x = packed_row(packed, m, k);
      int64_t acc[kTileRows] = {};
      for (int i = 0; i < k; ++i) {
        for (int n = 0; n < kTileRows; ++n) acc[n] += (keys[i / 4 * 64 + 4 * n + i % 4] - 128) * x[i];
      }
      finish_tile(acc, s_k + tile * kTileRows, s_x[m], y + static_cast<size_t>(m) * ldy + tile * kTileRows);
    }
  }
}

void mix(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int num_limbs,
         int64_t* acc) {
  for (int i = 0; i < dp; ++i) acc[i] = 0;
  for (int page = 0; page < num_pages; ++page) {
    for (int j = 0; j < kPageTokens; ++j) {
      const int at = page * kPageTokens + j;
      const int32_t p = limbs[0][at] + 256 * limbs[1][at] + 65536 * limbs[2][at];
      if (p == 0) continue;
      const int8_t* quad = pages[page] + static_cast<size_t>(j / 4 * dp * num_limbs * 4 + j % 4);
      for (int i = 0; i < dp; ++i) {
        const int8_t* v = quad + static_cast<size_t>(i / 16 * 64 * num_limbs + i % 16 * 4);
        const int code = num_limbs == 2 ? 256 * v[0] + v[64] : v[0];
        acc[i] += static_cast<int64_t>(p) * code;  // < 2^55 over 131,072 keys
      }
    }
  }
}

void mix_v16(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix(limbs, pages, num_pages, dp, 2, acc);
}

void mix_v8(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix(limbs, pages, num_pages, dp, 1, acc);
}

}  // namespace

extern const DotTable dot_scalar;
const DotTable dot_scalar = {"scalar", packed_bytes, pack, linear_w16, linear_w8, score_k8, mix_v16, mix_v8};

}  // namespace exactlm
