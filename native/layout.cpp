#include "layout.h"

namespace exactlm {
namespace {

void embed_w16(const LinearWeights& table, int64_t row, int n, float* x) {
  const size_t k4 = static_cast<size_t>((table.k + 3) / 4);
  const uint8_t* tile =
      table.codes + static_cast<size_t>(row / kTileRows) * k4 * 128 + static_cast<size_t>(row % kTileRows) * 4;
  const float s = table.scales[row];
  for (int i = 0; i < n; ++i) {
    const uint8_t* p = tile + static_cast<size_t>(i / 4) * 128 + i % 4;
    const int q = 256 * (p[0] - 128) + (p[64] - 128);
    x[i] = static_cast<float>(q) * s;
  }
}

void embed_w8(const LinearWeights& table, int64_t row, int n, float* x) {
  const size_t groups = static_cast<size_t>((table.k + kGroup - 1) / kGroup);
  const size_t tile_idx = static_cast<size_t>(row / kTileRows), lane = static_cast<size_t>(row % kTileRows);
  const uint8_t* tile = table.codes + tile_idx * groups * kGroup * kTileRows + lane * 4;
  const uint16_t* m = table.multipliers + tile_idx * groups * kTileRows + lane;
  const float s = table.scales[row];
  for (int i = 0; i < n; ++i) {
    const int q = tile[static_cast<size_t>(i / 4) * 64 + static_cast<size_t>(i % 4)] - 128;
    const int product = q * static_cast<int>(m[static_cast<size_t>(i / kGroup) * kTileRows]);  // < 2^23
    x[i] = static_cast<float>(product) * s;
  }
}

int low_limb(int q) { return ((q + 128) & 255) - 128; }  // 2.3

}  // namespace

void embed(const LinearWeights& table, int64_t row, int n, float* x) {
  if (table.multipliers == nullptr) {
    embed_w16(table, row, n, x);
  } else {
    embed_w8(table, row, n, x);
  }
}

void store_key(const int16_t* codes, int d, int dp, int limbs, int slot, uint8_t* keys) {
  uint8_t* tile = keys + static_cast<size_t>(slot / kTileRows * dp * limbs * kTileRows + slot % kTileRows * 4);
  for (int i = 0; i < dp; ++i) {
    const int q = i < d ? codes[i] : 0;
    uint8_t* p = tile + static_cast<size_t>(i / 4 * 64 * limbs + i % 4);
    if (limbs == 2) {
      const int lo = low_limb(q);
      p[0] = static_cast<uint8_t>((q - lo) / 256 + 128);
      p[64] = static_cast<uint8_t>(lo + 128);
    } else {
      p[0] = static_cast<uint8_t>(q + 128);
    }
  }
}

void load_key(const uint8_t* keys, int d, int dp, int limbs, int slot, int16_t* codes) {
  const uint8_t* tile = keys + static_cast<size_t>(slot / kTileRows * dp * limbs * kTileRows + slot % kTileRows * 4);
  for (int i = 0; i < d; ++i) {
    const uint8_t* p = tile + static_cast<size_t>(i / 4 * 64 * limbs + i % 4);
    codes[i] = static_cast<int16_t>(limbs == 2 ? 256 * (p[0] - 128) + (p[64] - 128) : p[0] - 128);
  }
}

void store_value(const int16_t* codes, int d, int dp, int limbs, int slot, int8_t* values) {
  int8_t* quad = values + static_cast<size_t>(slot / 4 * dp * limbs * 4 + slot % 4);
  for (int i = 0; i < dp; ++i) {
    const int q = i < d ? codes[i] : 0;
    int8_t* p = quad + static_cast<size_t>(i / 16 * 64 * limbs + i % 16 * 4);
    if (limbs == 2) {
      const int lo = low_limb(q);
      p[0] = static_cast<int8_t>((q - lo) / 256);
      p[64] = static_cast<int8_t>(lo);
    } else {
      p[0] = static_cast<int8_t>(q);
    }
  }
}

void load_value(const int8_t* values, int d, int dp, int limbs, int slot, int16_t* codes) {
  const int8_t* quad = values + static_cast<size_t>(slot / 4 * dp * limbs * 4 + slot % 4);
  for (int i = 0; i < d; ++i) {
    const int8_t* p = quad + static_cast<size_t>(i / 16 * 64 * limbs + i % 16 * 4);
    codes[i] = static_cast<int16_t>(limbs == 2 ? 256 * p[0] + p[64] : p[0]);
  }
}

}  // namespace exactlm
