// Sums of products with the vector unit every 64-bit Arm has. ld4 takes the four k of 16 outputs apart, so that a lane
// is an output; smlal multiplies signed 16-bit numbers and adds in 32 bits, where no sum below can overflow.
#include <arm_neon.h>

#include "kernels.h"

namespace exactlm {
namespace {

// One packed row: three planes of int16 [padded k]: the codes, their high limbs, their low limbs. Spec 2.3.
inline size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }

size_t packed_bytes(int k) { return 3 * sizeof(int16_t) * padded(k); }

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  constexpr int kStep = 8;
  const size_t plane = padded(k);
  for (int m = 0; m < num_rows; ++m, codes += stride, packed += packed_bytes(k)) {
    int16_t* out = reinterpret_cast<int16_t*>(packed);
    for (int i = 0; i < static_cast<int>(plane); i += kStep, out += kStep) {
      int16_t part[kStep] = {};
      const int left = k - i < kStep ? k - i : kStep;
      if (left > 0) __builtin_memcpy(part, codes + i, static_cast<size_t>(left) * sizeof(int16_t));
      const int16x8_t q = vld1q_s16(part);
      const int16x8_t hi = vshrq_n_s16(vaddq_s16(q, vdupq_n_s16(128)), 8);  // (q + 128) >> 8 = (q - lo) / 256
      vst1q_s16(out, q);
      vst1q_s16(out + plane, hi);
      vst1q_s16(out + 2 * plane, vsubq_s16(q, vshlq_n_s16(hi, 8)));
    }
  }
}

inline const int16_t* packed_row(const uint8_t* packed, int m, int k) {
  return reinterpret_cast<const int16_t*>(packed + static_cast<size_t>(m) * packed_bytes(k));
}

// 16-bit codes of four k (or tokens): [k][0] holds outputs 0..7, [k][1] outputs 8..15.
struct Codes {
  int16x8_t at[4][2];
};

// Unsigned bytes to 256*hi + lo - bias, modulo 2^16.
inline Codes join_limbs(uint8x16x4_t hi, uint8x16x4_t lo, uint16_t bias) {
  const uint16x8_t b = vdupq_n_u16(bias);
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(lo.val[i], hi.val[i]));
    const uint16x8_t second = vreinterpretq_u16_u8(vzip2q_u8(lo.val[i], hi.val[i]));
    codes.at[i][0] = vreinterpretq_s16_u16(vsubq_u16(first, b));
    codes.at[i][1] = vreinterpretq_s16_u16(vsubq_u16(second, b));
  }
  return codes;
}

inline Codes widen_w16(const uint8_t* w) {  // 256*(hi - 128) + (lo - 128)
  return join_limbs(vld4q_u8(w), vld4q_u8(w + 64), 32896);
}

inline Codes widen_w8(const uint8_t* w) {
  const uint8x16x4_t bytes = vld4q_u8(w);
  const uint8x8_t bias = vdup_n_u8(128);
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    codes.at[i][0] = vreinterpretq_s16_u16(vsubl_u8(vget_low_u8(bytes.val[i]), bias));
    codes.at[i][1] = vreinterpretq_s16_u16(vsubl_u8(vget_high_u8(bytes.val[i]), bias));
  }
  return codes;
}

// acc[j] += codes of outputs 4j..4j+3 times x, over four k.
inline void add_products(int32x4_t acc[4], const Codes& codes, int16x4_t x) {
  const auto add = [acc](const int16x8_t w[2], int16_t factor) {
    acc[0] = vmlal_n_s16(acc[0], vget_low_s16(w[0]), factor);
    acc[1] = vmlal_n_s16(acc[1], vget_high_s16(w[0]), factor);
    acc[2] = vmlal_n_s16(acc[2], vget_low_s16(w[1]), factor);
    acc[3] = vmlal_n_s16(acc[3], vget_high_s16(w[1]), factor);
  };
  add(codes.at[0], vget_lane_s16(x, 0));
  add(codes.at[1], vget_lane_s16(x, 1));
  add(codes.at[2], vget_lane_s16(x, 2));
  add(codes.at[3], vget_lane_s16(x, 3));
}

inline void clear(int32x4_t acc[4]) { acc[0] = acc[1] = acc[2] = acc[3] = vdupq_n_s32(0); }

inline void store_scaled(float32x4_t acc, const float* s_w, float s_x, float* y) {  // 4.2
  vst1q_f32(y, vmulq_n_f32(vmulq_f32(acc, vld1q_f32(s_w)), s_x));
}

// fp32 of four int64 below 2^53: the fp64 between is exact, so there is one rounding.
inline float32x4_t to_fp32(int64x2_t low, int64x2_t high) {
  return vcvt_high_f32_f64(vcvt_f32_f64(vcvtq_f64_s64(low)), vcvtq_f64_s64(high));
}

// A product is at most 128*32639, four a step: 128 steps make 2,139,029,504 < 2^31.
constexpr int kFlushSteps = 128;

void tile_w16(const uint8_t* packed, float s_x, int k, const uint8_t* w, const float* s_w, float* y) {
  int64x2_t sum[4][2];
  for (int j = 0; j < 4; ++j) sum[j][0] = sum[j][1] = vdupq_n_s64(0);
  const int16_t* x = packed_row(packed, 0, k) + padded(k);
  const int steps = (k + 3) / 4;
  for (int first = 0; first < steps; first += kFlushSteps) {
    const int end = steps < first + kFlushSteps ? steps : first + kFlushSteps;
    int32x4_t hi[4], lo[4];
    clear(hi);
    clear(lo);
    for (int step = first; step < end; ++step, w += 128) {
      const Codes codes = widen_w16(w);
      add_products(hi, codes, vld1_s16(x + 4 * step));
      add_products(lo, codes, vld1_s16(x + padded(k) + 4 * step));
    }
    for (int j = 0; j < 4; ++j) {
      sum[j][0] = vaddq_s64(sum[j][0], vshll_n_s32(vget_low_s32(hi[j]), 8));
      sum[j][1] = vaddq_s64(sum[j][1], vshll_n_s32(vget_high_s32(hi[j]), 8));
      sum[j][0] = vaddw_s32(sum[j][0], vget_low_s32(lo[j]));
      sum[j][1] = vaddw_s32(sum[j][1], vget_high_s32(lo[j]));
    }
  }
  for (int j = 0; j < 4; ++j) store_scaled(to_fp32(sum[j][0], sum[j][1]), s_w + 4 * j, s_x, y + 4 * j);
}

void tile_w8(const uint8_t* packed, float s_x, int k, const uint8_t* w, const uint16_t* multipliers, const float* s_w,
             float* y) {
  int64x2_t sum[4][2];
  for (int j = 0; j < 4; ++j) sum[j][0] = sum[j][1] = vdupq_n_s64(0);
  const int16_t* x = packed_row(packed, 0, k);
  const int groups = (k + kGroup - 1) / kGroup;
  for (int g = 0; g < groups; ++g, multipliers += kTileRows) {
    int32x4_t acc[4];
    clear(acc);
    for (int step = 0; step < kGroup / 4; ++step, w += 64, x += 4) add_products(acc, widen_w8(w), vld1_s16(x));
    for (int j = 0; j < 4; ++j) {  // a group's sum is below 2^27, all groups' below 2^53
      const int32x4_t d = vreinterpretq_s32_u32(vmovl_u16(vld1_u16(multipliers + 4 * j)));
      sum[j][0] = vmlal_s32(sum[j][0], vget_low_s32(acc[j]), vget_low_s32(d));
      sum[j][1] = vmlal_s32(sum[j][1], vget_high_s32(acc[j]), vget_high_s32(d));
    }
  }
  for (int j = 0; j < 4; ++j) store_scaled(to_fp32(sum[j][0], sum[j][1]), s_w + 4 * j, s_x, y + 4 * j);
}

void tile_k8(const uint8_t* packed, float s_x, int k, const uint8_t* w, const float* s_w, float* y) {
  int32x4_t acc[4];  // |acc| <= 128*32639*256 < 2^30
  clear(acc);
  const int16_t* x = packed_row(packed, 0, k);
  for (int step = 0; step < k / 4; ++step, w += 64, x += 4) add_products(acc, widen_w8(w), vld1_s16(x));
  for (int j = 0; j < 4; ++j) store_scaled(vcvtq_f32_s32(acc[j]), s_w + 4 * j, s_x, y + 4 * j);
}

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int t = 0; t < num_tiles; ++t, w += tile_bytes, s_w += kTileRows, y += kTileRows)
    for (size_t m = 0; m < static_cast<size_t>(num_rows); ++m)
      tile_w16(packed + m * row, s_x[m], k, w, s_w, y + m * ldy);
}

void linear_w8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
               const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
  for (int t = 0; t < num_tiles; ++t, s_w += kTileRows, y += kTileRows) {
    for (size_t m = 0; m < static_cast<size_t>(num_rows); ++m)
      tile_w8(packed + m * row, s_x[m], k, w, multipliers, s_w, y + m * ldy);
    w += groups * kGroup * kTileRows;
    multipliers += groups * kTileRows;
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k);
  for (int t = 0; t < num_tiles; ++t, keys += static_cast<size_t>(k) * kTileRows, s_k += kTileRows, y += kTileRows)
    for (size_t m = 0; m < static_cast<size_t>(num_rows); ++m)
      tile_k8(packed + m * row, s_x[m], k, keys, s_k, y + m * ldy);
}

// Sixteen columns of values x 4 tokens, L limbs.
template <int L>
inline Codes widen_values(const int8_t* v) {
  if (L == 2) {  // the low limb plus 128 is unsigned
    uint8x16x4_t hi = vld4q_u8(reinterpret_cast<const uint8_t*>(v));
    uint8x16x4_t lo = vld4q_u8(reinterpret_cast<const uint8_t*>(v + 64));
    for (int i = 0; i < 4; ++i) lo.val[i] = veorq_u8(lo.val[i], vdupq_n_u8(128));
    return join_limbs(hi, lo, 128);
  }
  const int8x16x4_t bytes = vld4q_s8(v);
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    codes.at[i][0] = vmovl_s8(vget_low_s8(bytes.val[i]));
    codes.at[i][1] = vmovl_s8(vget_high_s8(bytes.val[i]));
  }
  return codes;
}

// A product is at most 255*32639: 8 pages of 32 keys make 2,130,673,920 < 2^31.
constexpr int kFlushPages = 8;

template <int L>
inline void mix(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  for (int i = 0; i < dp; ++i) acc[i] = 0;
  const size_t quad_bytes = static_cast<size_t>(dp) * 4 * L;
  for (int first = 0; first < num_pages; first += kFlushPages) {
    const int count = num_pages - first < kFlushPages ? num_pages - first : kFlushPages;
    int16_t p[3][kFlushPages * kPageTokens];  // the limbs of P as 16-bit numbers
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < count * kPageTokens; ++j) p[i][j] = limbs[i][first * kPageTokens + j];
    for (int column = 0; column < dp; column += kTileRows) {
      int32x4_t s[3][4];
      for (int i = 0; i < 3; ++i) clear(s[i]);
      for (int page = 0; page < count; ++page) {
        const int8_t* v = pages[first + page] + column * 4 * L;
        for (int j = page * kPageTokens; j < (page + 1) * kPageTokens; j += 4, v += quad_bytes) {
          const Codes codes = widen_values<L>(v);
          for (int i = 0; i < 3; ++i) add_products(s[i], codes, vld1_s16(p[i] + j));
        }
      }
      for (int i = 0; i < 3; ++i) {
        const int64x2_t shift = vdupq_n_s64(8 * i);
        for (int j = 0; j < 4; ++j) {
          int64_t* out = acc + column + 4 * j;
          vst1q_s64(out, vaddq_s64(vld1q_s64(out), vshlq_s64(vmovl_s32(vget_low_s32(s[i][j])), shift)));
          vst1q_s64(out + 2, vaddq_s64(vld1q_s64(out + 2), vshlq_s64(vmovl_s32(vget_high_s32(s[i][j])), shift)));
        }
      }
    }
  }
}

void mix_v16(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<2>(limbs, pages, num_pages, dp, acc);
}

void mix_v8(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<1>(limbs, pages, num_pages, dp, acc);
}

}  // namespace

extern const DotTable dot_neon;
const DotTable dot_neon = {"neon", packed_bytes, pack, linear_w16, linear_w8, score_k8, mix_v16, mix_v8};

}  // namespace exactlm
