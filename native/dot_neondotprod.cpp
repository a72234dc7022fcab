// Sums of products with the Arm dot product extension. sdot multiplies signed bytes, four k at a time for each of four
// outputs, and adds in 32 bits: limbs of the input against limbs of the weights, whose bias of 128 one xor takes off.
#include <arm_neon.h>

#include "kernels.h"

namespace exactlm {
namespace {

// One packed row: hi limbs [padded k], lo limbs [padded k]. Spec 2.3.
inline size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }

size_t packed_bytes(int k) { return 2 * padded(k); }

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  constexpr int kStep = 8;
  const size_t plane = padded(k);
  for (int m = 0; m < num_rows; ++m, codes += stride, packed += packed_bytes(k)) {
    int8_t* out = reinterpret_cast<int8_t*>(packed);
    for (int i = 0; i < static_cast<int>(plane); i += kStep, out += kStep) {
      int16_t part[kStep] = {};
      const int left = k - i < kStep ? k - i : kStep;
      if (left > 0) __builtin_memcpy(part, codes + i, static_cast<size_t>(left) * sizeof(int16_t));
      const int16x8_t q = vld1q_s16(part);
      vst1_s8(out, vshrn_n_s16(vaddq_s16(q, vdupq_n_s16(128)), 8));  // (q + 128) >> 8 = (q - lo) / 256
      vst1_s8(out + plane, vmovn_s16(q));
    }
  }
}

inline int8x16_t broadcast4(const uint8_t* p) {  // four k, for every output
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

inline int8x16_t load_codes(const uint8_t* w) { return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w), vdupq_n_u8(128))); }

inline void store_scaled(float32x4_t acc, const float* s_w, float s_x, float* y) {  // 4.2
  vst1q_f32(y, vmulq_n_f32(vmulq_f32(acc, vld1q_f32(s_w)), s_x));
}

// fp32 of four int64 below 2^53: the fp64 between is exact, so there is one rounding.
inline float32x4_t to_fp32(int64x2_t low, int64x2_t high) {
  return vcvt_high_f32_f64(vcvt_f32_f64(vcvtq_f64_s64(low)), vcvtq_f64_s64(high));
}

// 65536*hh + 256*cross + ll, each an exact int32.
inline int64x2_t combine16(int32x2_t hh, int32x2_t cross, int32x2_t ll) {
  return vaddw_s32(vaddq_s64(vshlq_n_s64(vmovl_s32(hh), 16), vshlq_n_s64(vmovl_s32(cross), 8)), ll);
}

// M rows of input. Spec 4.4: |hh|, |ll| <= 2^14*K and |cross| <= 2*127*128*K, below 2^31 for K <= 32,768.
template <int M>
inline void tile_w16(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                     const float* s_w, float* y, size_t ldy) {
  int32x4_t hh[M][4], cross[M][4], ll[M][4];
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j) hh[m][j] = cross[m][j] = ll[m][j] = vdupq_n_s32(0);
  const int steps = (k + 3) / 4;
  for (int step = 0; step < steps; ++step, w += 128) {
    for (int m = 0; m < M; ++m) {
      const uint8_t* x = packed + static_cast<size_t>(m) * row_bytes + 4 * step;
      const int8x16_t xh = broadcast4(x), xl = broadcast4(x + padded(k));
      for (int j = 0; j < 4; ++j) {
        const int8x16_t wh = load_codes(w + 16 * j), wl = load_codes(w + 64 + 16 * j);
        hh[m][j] = vdotq_s32(hh[m][j], wh, xh);
        cross[m][j] = vdotq_s32(cross[m][j], wl, xh);
        cross[m][j] = vdotq_s32(cross[m][j], wh, xl);
        ll[m][j] = vdotq_s32(ll[m][j], wl, xl);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int j = 0; j < 4; ++j) {
      const int64x2_t low = combine16(vget_low_s32(hh[m][j]), vget_low_s32(cross[m][j]), vget_low_s32(ll[m][j]));
      const int64x2_t high = combine16(vget_high_s32(hh[m][j]), vget_high_s32(cross[m][j]), vget_high_s32(ll[m][j]));
      store_scaled(to_fp32(low, high), s_w + 4 * j, s_x[m], y + static_cast<size_t>(m) * ldy + 4 * j);
    }
  }
}

// hi and lo sums of one 8-bit tile over `steps` quads of k, joined: 256*hi + lo < 2^31 for k <= 256.
template <int M>
inline void sum_codes8(const uint8_t* x, size_t row_bytes, size_t lo_at, int steps, const uint8_t* w,
                       int32x4_t out[M][4]) {
  int32x4_t hi[M][4], lo[M][4];
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j) hi[m][j] = lo[m][j] = vdupq_n_s32(0);
  for (int step = 0; step < steps; ++step, w += 64, x += 4) {
    for (int m = 0; m < M; ++m) {
      const uint8_t* row = x + static_cast<size_t>(m) * row_bytes;
      const int8x16_t xh = broadcast4(row), xl = broadcast4(row + lo_at);
      for (int j = 0; j < 4; ++j) {
        const int8x16_t codes = load_codes(w + 16 * j);
        hi[m][j] = vdotq_s32(hi[m][j], codes, xh);
        lo[m][j] = vdotq_s32(lo[m][j], codes, xl);
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j) out[m][j] = vaddq_s32(vshlq_n_s32(hi[m][j], 8), lo[m][j]);
}

template <int M>
inline void tile_w8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                    const uint16_t* multipliers, const float* s_w, float* y, size_t ldy) {
  int64x2_t sum[M][4][2];
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j) sum[m][j][0] = sum[m][j][1] = vdupq_n_s64(0);
  const int groups = (k + kGroup - 1) / kGroup;
  for (int g = 0; g < groups; ++g, w += kGroup * kTileRows, multipliers += kTileRows) {
    int32x4_t z[M][4];  // < 2^27
    sum_codes8<M>(packed + g * kGroup, row_bytes, padded(k), kGroup / 4, w, z);
    for (int j = 0; j < 4; ++j) {
      const int32x4_t d = vreinterpretq_s32_u32(vmovl_u16(vld1_u16(multipliers + 4 * j)));
      for (int m = 0; m < M; ++m) {
        sum[m][j][0] = vmlal_s32(sum[m][j][0], vget_low_s32(z[m][j]), vget_low_s32(d));
        sum[m][j][1] = vmlal_s32(sum[m][j][1], vget_high_s32(z[m][j]), vget_high_s32(d));
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j)
      store_scaled(to_fp32(sum[m][j][0], sum[m][j][1]), s_w + 4 * j, s_x[m], y + static_cast<size_t>(m) * ldy + 4 * j);
}

template <int M>
inline void tile_k8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                    const float* s_w, float* y, size_t ldy) {
  int32x4_t z[M][4];
  sum_codes8<M>(packed, row_bytes, padded(k), k / 4, w, z);
  for (int m = 0; m < M; ++m)
    for (int j = 0; j < 4; ++j)
      store_scaled(vcvtq_f32_s32(z[m][j]), s_w + 4 * j, s_x[m], y + static_cast<size_t>(m) * ldy + 4 * j);
}

constexpr int kRows = 2;  // rows of input at a time: 24 of the 32 registers are sums then

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int t = 0; t < num_tiles; ++t, w += tile_bytes, s_w += kTileRows, y += kTileRows) {
    const uint8_t* x = packed;
    float* out = y;
    int m = 0;
    for (; m + kRows <= num_rows; m += kRows, x += kRows * row, out += kRows * ldy)
      tile_w16<kRows>(x, row, s_x + m, k, w, s_w, out, ldy);
    if (m < num_rows) tile_w16<1>(x, row, s_x + m, k, w, s_w, out, ldy);
  }
}

void linear_w8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
               const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
  for (int t = 0; t < num_tiles;
       ++t, w += groups * kGroup * kTileRows, multipliers += groups * kTileRows, s_w += kTileRows, y += kTileRows) {
    const uint8_t* x = packed;
    float* out = y;
    int m = 0;
    for (; m + kRows <= num_rows; m += kRows, x += kRows * row, out += kRows * ldy)
      tile_w8<kRows>(x, row, s_x + m, k, w, multipliers, s_w, out, ldy);
    if (m < num_rows) tile_w8<1>(x, row, s_x + m, k, w, multipliers, s_w, out, ldy);
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k);
  for (int t = 0; t < num_tiles; ++t, keys += static_cast<size_t>(k) * kTileRows, s_k += kTileRows, y += kTileRows) {
    const uint8_t* x = packed;
    float* out = y;
    int m = 0;
    for (; m + kRows <= num_rows; m += kRows, x += kRows * row, out += kRows * ldy)
      tile_k8<kRows>(x, row, s_x + m, k, keys, s_k, out, ldy);
    if (m < num_rows) tile_k8<1>(x, row, s_x + m, k, keys, s_k, out, ldy);
  }
}

constexpr int kFlushPages = 32767 / kPageTokens;  // 8.6: at most 32,767 keys between transfers to 64 bits

// Sixteen columns. sdot wants P's limbs signed: sum p*v = sum (p - 128)*v + 128*sum v, so the sum of v runs along.
template <int L>
inline void mix_columns(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int column,
                        int64_t* acc) {
  constexpr int kSums = L + 2;  // by weight 256^i
  int32x4_t s[kSums][4], total[L][4];
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kSums; ++i) s[i][j] = vdupq_n_s32(0);
    for (int i = 0; i < L; ++i) total[i][j] = vdupq_n_s32(0);
  }
  const int8x16_t ones = vdupq_n_s8(1), sign = vdupq_n_s8(-128);
  for (int page = 0; page < num_pages; ++page) {
    const int8_t* v = pages[page] + static_cast<size_t>(column) * 4 * L;
    for (int at = page * kPageTokens; at < (page + 1) * kPageTokens; at += 4, v += static_cast<size_t>(dp) * 4 * L) {
      int8x16_t p[3];
      for (int i = 0; i < 3; ++i) p[i] = veorq_s8(broadcast4(limbs[i] + at), sign);
      for (int limb = 0; limb < L; ++limb) {  // of v: the low one comes second in memory
        const int weight = L - 1 - limb;
        for (int j = 0; j < 4; ++j) {
          const int8x16_t values = vld1q_s8(v + 64 * limb + 16 * j);
          for (int i = 0; i < 3; ++i) s[weight + i][j] = vdotq_s32(s[weight + i][j], values, p[i]);
          total[weight][j] = vdotq_s32(total[weight][j], values, ones);
        }
      }
    }
  }
  constexpr int32_t kBias = 128 * (1 + 256 + 65536);
  for (int j = 0; j < 4; ++j) {
    int64x2_t low = vdupq_n_s64(0), high = vdupq_n_s64(0);
    for (int i = 0; i < kSums; ++i) {
      const int64x2_t shift = vdupq_n_s64(8 * i);
      low = vaddq_s64(low, vshlq_s64(vmovl_s32(vget_low_s32(s[i][j])), shift));
      high = vaddq_s64(high, vshlq_s64(vmovl_s32(vget_high_s32(s[i][j])), shift));
    }
    const int32x4_t sum = L == 2 ? vaddq_s32(vshlq_n_s32(total[L - 1][j], 8), total[0][j]) : total[0][j];  // < 2^30
    low = vmlal_n_s32(low, vget_low_s32(sum), kBias);
    high = vmlal_n_s32(high, vget_high_s32(sum), kBias);
    int64_t* out = acc + column + 4 * j;
    vst1q_s64(out, vaddq_s64(vld1q_s64(out), low));
    vst1q_s64(out + 2, vaddq_s64(vld1q_s64(out + 2), high));
  }
}

template <int L>
inline void mix(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  for (int i = 0; i < dp; ++i) acc[i] = 0;
  for (int first = 0; first < num_pages; first += kFlushPages) {
    const int count = num_pages - first < kFlushPages ? num_pages - first : kFlushPages;
    const uint8_t* part[3];
    for (int i = 0; i < 3; ++i) part[i] = limbs[i] + static_cast<size_t>(first) * kPageTokens;
    for (int column = 0; column < dp; column += kTileRows) mix_columns<L>(part, pages + first, count, dp, column, acc);
  }
}

void mix_v16(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<2>(limbs, pages, num_pages, dp, acc);
}

void mix_v8(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<1>(limbs, pages, num_pages, dp, acc);
}

}  // namespace

extern const DotTable dot_neondotprod;
const DotTable dot_neondotprod = {"neondotprod", packed_bytes, pack, linear_w16, linear_w8, score_k8, mix_v16, mix_v8};

}  // namespace exactlm
