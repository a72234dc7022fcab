// Sums of products with AVX2. vpmaddwd multiplies signed 16-bit numbers and adds pairs of products in 32 bits; here no
// pair can overflow it. (vpmaddubsw would take the bytes as they are, but it saturates.) The weight bytes are widened
// to 16 bits in registers: 8 outputs x 4 k per 32 bytes.
#include <immintrin.h>

#include "kernels.h"

namespace exactlm {
namespace {

// One packed row: three planes of int16 [padded k]: the codes, their high limbs, their low limbs. Spec 2.3.
inline size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }

size_t packed_bytes(int k) { return 3 * sizeof(int16_t) * padded(k); }

inline __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline void store32(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Weights stream from memory, and the processor's own prefetching ends at every page. Of 1 to 16 KiB ahead, 4 and 8
// were best.
inline void prefetch(const uint8_t* w) { _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0); }

inline __m256i broadcast4(const int16_t* p) {  // four k, for every output
  int64_t v;
  __builtin_memcpy(&v, p, 8);
  return _mm256_set1_epi64x(v);
}

inline __m256i add_products(__m256i acc, __m256i a, __m256i b) {
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
  asm("" : "+x"(acc));  // GCC would add the products of many steps to each other first, more than registers hold
  return acc;
}

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  constexpr int kStep = 16;
  const __m256i half = _mm256_set1_epi16(128);
  const size_t plane = padded(k);
  for (int m = 0; m < num_rows; ++m, codes += stride, packed += packed_bytes(k)) {
    int16_t* out = reinterpret_cast<int16_t*>(packed);
    for (int i = 0; i < static_cast<int>(plane); i += kStep, out += kStep) {
      int16_t part[kStep] = {};
      const int left = k - i < kStep ? k - i : kStep;
      if (left > 0) __builtin_memcpy(part, codes + i, static_cast<size_t>(left) * sizeof(int16_t));
      const __m256i q = load32(part);
      const __m256i hi = _mm256_srai_epi16(_mm256_add_epi16(q, half), 8);  // (q + 128) >> 8 = (q - lo) / 256
      store32(out, q);
      store32(out + plane, hi);
      store32(out + 2 * plane, _mm256_sub_epi16(q, _mm256_slli_epi16(hi, 8)));
    }
  }
}

inline const int16_t* packed_row(const uint8_t* packed, int m, int k) {
  return reinterpret_cast<const int16_t*>(packed + static_cast<size_t>(m) * packed_bytes(k));
}

// Eight outputs x 4 k: even holds outputs 0, 1, 4, 5 and odd 2, 3, 6, 7, so that adding neighbours (vphaddd) of the
// products of both gives the outputs in order.
struct Codes {
  __m256i even, odd;
};

inline Codes widen_w16(const uint8_t* w) {  // 256*(hi - 128) + (lo - 128) = 256*hi + lo - 32896, modulo 2^16
  const __m256i bias = _mm256_set1_epi16(static_cast<int16_t>(65536 - 32896));
  const __m256i hi = load32(w), lo = load32(w + 64);
  return {_mm256_add_epi16(_mm256_unpacklo_epi8(lo, hi), bias), _mm256_add_epi16(_mm256_unpackhi_epi8(lo, hi), bias)};
}

inline Codes widen_w8(const uint8_t* w) {
  const __m256i bias = _mm256_set1_epi16(128), zero = _mm256_setzero_si256(), codes = load32(w);
  return {_mm256_sub_epi16(_mm256_unpacklo_epi8(codes, zero), bias),
          _mm256_sub_epi16(_mm256_unpackhi_epi8(codes, zero), bias)};
}

inline __m256i widen(__m256i v, int half) {
  return _mm256_cvtepi32_epi64(half ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v));
}

// fp32 of four int64 below 2^53: the fp64 between is exact, so there is one rounding. The two halves of the integer are
// put into the significands of 2^52 and 2^84, whose sum is then taken off.
inline __m128 to_fp32(__m256i v) {
  const __m256i low_base = _mm256_set1_epi64x(0x4330000000000000), high_base = _mm256_set1_epi64x(0x4530000080000000);
  const __m256d both_bases = _mm256_set1_pd(0x1p84 + 0x1p63 + 0x1p52);  // exact: 2^84 + 2^63 + 2^52 has 33 bits
  const __m256d low = _mm256_castsi256_pd(_mm256_blend_epi32(low_base, v, 0x55));
  const __m256d high = _mm256_castsi256_pd(_mm256_xor_si256(_mm256_srli_epi64(v, 32), high_base));
  return _mm256_cvtpd_ps(_mm256_add_pd(_mm256_sub_pd(high, both_bases), low));
}

inline void store_scaled(__m256 acc, const float* s_w, float s_x, float* y) {  // 4.2
  _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_mul_ps(acc, _mm256_loadu_ps(s_w)), _mm256_set1_ps(s_x)));
}

// A pair of products is at most 2*128*32639, and a flush adds two pairs: 128 steps make 2,139,029,504 < 2^31.
constexpr int kFlushSteps = 128;

// M rows of input, B blocks of 8 outputs.
template <int M, int B>
inline void tile_w16(const uint8_t* packed, const float* s_x, int k, const uint8_t* w, const float* s_w, float* y,
                     size_t ldy) {
  __m256i sum[M][B][2];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) sum[m][b][0] = sum[m][b][1] = _mm256_setzero_si256();
  const size_t plane = padded(k);
  const int steps = (k + 3) / 4;
  for (int first = 0; first < steps; first += kFlushSteps) {
    const int end = steps < first + kFlushSteps ? steps : first + kFlushSteps;
    __m256i hi[M][B][2], lo[M][B][2];
    for (int m = 0; m < M; ++m)
      for (int b = 0; b < B; ++b) hi[m][b][0] = hi[m][b][1] = lo[m][b][0] = lo[m][b][1] = _mm256_setzero_si256();
    for (int step = first; step < end; ++step, w += 128) {
      Codes codes[B];
      for (int b = 0; b < B; ++b) codes[b] = widen_w16(w + 32 * b);
      prefetch(w);
      prefetch(w + 64);
      for (int m = 0; m < M; ++m) {
        const int16_t* x = packed_row(packed, m, k) + plane + 4 * step;
        const __m256i xh = broadcast4(x), xl = broadcast4(x + plane);
        for (int b = 0; b < B; ++b) {
          hi[m][b][0] = add_products(hi[m][b][0], codes[b].even, xh);
          hi[m][b][1] = add_products(hi[m][b][1], codes[b].odd, xh);
          lo[m][b][0] = add_products(lo[m][b][0], codes[b].even, xl);
          lo[m][b][1] = add_products(lo[m][b][1], codes[b].odd, xl);
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int b = 0; b < B; ++b) {
        const __m256i h = _mm256_hadd_epi32(hi[m][b][0], hi[m][b][1]), l = _mm256_hadd_epi32(lo[m][b][0], lo[m][b][1]);
        for (int half = 0; half < 2; ++half) {
          const __m256i part = _mm256_add_epi64(_mm256_slli_epi64(widen(h, half), 8), widen(l, half));
          sum[m][b][half] = _mm256_add_epi64(sum[m][b][half], part);
        }
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b)
      store_scaled(_mm256_set_m128(to_fp32(sum[m][b][1]), to_fp32(sum[m][b][0])), s_w + 8 * b, s_x[m],
                   y + static_cast<size_t>(m) * ldy + 8 * b);
}

template <int M, int B>
inline void tile_w8(const uint8_t* packed, const float* s_x, int k, const uint8_t* w, const uint16_t* multipliers,
                    const float* s_w, float* y, size_t ldy) {
  __m256i even[M][B], odd[M][B];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) even[m][b] = odd[m][b] = _mm256_setzero_si256();
  const int groups = (k + kGroup - 1) / kGroup;
  for (int g = 0; g < groups; ++g, multipliers += kTileRows) {
    __m256i pairs[M][B][2];
    for (int m = 0; m < M; ++m)
      for (int b = 0; b < B; ++b) pairs[m][b][0] = pairs[m][b][1] = _mm256_setzero_si256();
    for (int step = 0; step < kGroup / 4; ++step, w += 64) {
      Codes codes[B];
      for (int b = 0; b < B; ++b) codes[b] = widen_w8(w + 32 * b);
      prefetch(w);
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(packed_row(packed, m, k) + g * kGroup + 4 * step);
        for (int b = 0; b < B; ++b) {
          pairs[m][b][0] = add_products(pairs[m][b][0], codes[b].even, x);
          pairs[m][b][1] = add_products(pairs[m][b][1], codes[b].odd, x);
        }
      }
    }
    for (int b = 0; b < B; ++b) {
      const void* at = multipliers + 8 * b;
      const __m256i d = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(at)));
      for (int m = 0; m < M; ++m) {
        const __m256i z = _mm256_hadd_epi32(pairs[m][b][0], pairs[m][b][1]);  // a group's sum, < 2^27
        even[m][b] = _mm256_add_epi64(even[m][b], _mm256_mul_epi32(z, d));
        odd[m][b] = _mm256_add_epi64(odd[m][b], _mm256_mul_epi32(_mm256_srli_epi64(z, 32), _mm256_srli_epi64(d, 32)));
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int b = 0; b < B; ++b) {
      const __m128 e = to_fp32(even[m][b]), o = to_fp32(odd[m][b]);  // outputs 0, 2, 4, 6 and 1, 3, 5, 7; < 2^53
      store_scaled(_mm256_set_m128(_mm_unpackhi_ps(e, o), _mm_unpacklo_ps(e, o)), s_w + 8 * b, s_x[m],
                   y + static_cast<size_t>(m) * ldy + 8 * b);
    }
  }
}

template <int M, int B>
inline void tile_k8(const uint8_t* packed, const float* s_x, int k, const uint8_t* w, const float* s_w, float* y,
                    size_t ldy) {
  __m256i pairs[M][B][2];
  for (int m = 0; m < M; ++m)
    for (int b = 0; b < B; ++b) pairs[m][b][0] = pairs[m][b][1] = _mm256_setzero_si256();
  for (int step = 0; step < k / 4; ++step, w += 64) {
    Codes codes[B];
    for (int b = 0; b < B; ++b) codes[b] = widen_w8(w + 32 * b);
    for (int m = 0; m < M; ++m) {
      const __m256i x = broadcast4(packed_row(packed, m, k) + 4 * step);
      for (int b = 0; b < B; ++b) {
        pairs[m][b][0] = add_products(pairs[m][b][0], codes[b].even, x);
        pairs[m][b][1] = add_products(pairs[m][b][1], codes[b].odd, x);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int b = 0; b < B; ++b) {  // |acc| <= 128*32639*256 < 2^30
      const __m256i acc = _mm256_hadd_epi32(pairs[m][b][0], pairs[m][b][1]);
      store_scaled(_mm256_cvtepi32_ps(acc), s_w + 8 * b, s_x[m], y + static_cast<size_t>(m) * ldy + 8 * b);
    }
  }
}

// Rows of input by half a tile, then single rows by a whole one: what sixteen registers hold.
constexpr int kRows16 = 2, kRows8 = 3;

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int t = 0; t < num_tiles; ++t, w += tile_bytes, s_w += kTileRows, y += kTileRows) {
    const uint8_t* x = packed;
    float* out = y;
    int m = 0;
    for (; m + kRows16 <= num_rows; m += kRows16, x += kRows16 * row, out += kRows16 * ldy) {
      tile_w16<kRows16, 1>(x, s_x + m, k, w, s_w, out, ldy);
      tile_w16<kRows16, 1>(x, s_x + m, k, w + 32, s_w + 8, out + 8, ldy);
    }
    for (; m < num_rows; ++m, x += row, out += ldy) tile_w16<1, 2>(x, s_x + m, k, w, s_w, out, ldy);
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
    for (; m + kRows8 <= num_rows; m += kRows8, x += kRows8 * row, out += kRows8 * ldy) {
      tile_w8<kRows8, 1>(x, s_x + m, k, w, multipliers, s_w, out, ldy);
      tile_w8<kRows8, 1>(x, s_x + m, k, w + 32, multipliers + 8, s_w + 8, out + 8, ldy);
    }
    for (; m < num_rows; ++m, x += row, out += ldy) tile_w8<1, 2>(x, s_x + m, k, w, multipliers, s_w, out, ldy);
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k);
  for (int t = 0; t < num_tiles; ++t, keys += static_cast<size_t>(k) * kTileRows, s_k += kTileRows, y += kTileRows) {
    const uint8_t* x = packed;
    float* out = y;
    for (int m = 0; m < num_rows; ++m, x += row, out += ldy) tile_k8<1, 2>(x, s_x + m, k, keys, s_k, out, ldy);
  }
}

// Eight columns of values x 4 tokens, L limbs.
template <int L>
inline Codes widen_values(const int8_t* v) {
  const __m256i top = load32(v);
  if (L == 1) {  // a byte twice, then its sign over the upper one
    return {_mm256_srai_epi16(_mm256_unpacklo_epi8(top, top), 8), _mm256_srai_epi16(_mm256_unpackhi_epi8(top, top), 8)};
  }
  const __m256i low = _mm256_xor_si256(load32(v + 64), _mm256_set1_epi8(-128));  // lo + 128, unsigned
  const __m256i bias = _mm256_set1_epi16(128);
  return {_mm256_sub_epi16(_mm256_unpacklo_epi8(low, top), bias),
          _mm256_sub_epi16(_mm256_unpackhi_epi8(low, top), bias)};
}

// A pair of products is at most 2*255*32639, and a flush adds two pairs: 8 pages of 8 steps make 2,130,673,920 < 2^31.
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
    for (int column = 0; column < dp; column += 8) {
      __m256i s[3][2];
      for (int i = 0; i < 3; ++i) s[i][0] = s[i][1] = _mm256_setzero_si256();
      for (int page = 0; page < count; ++page) {
        const int8_t* v = pages[first + page] + column / kTileRows * 64 * L + column % kTileRows * 4;
        for (int j = page * kPageTokens; j < (page + 1) * kPageTokens; j += 4, v += quad_bytes) {
          const Codes codes = widen_values<L>(v);
          for (int i = 0; i < 3; ++i) {
            const __m256i weight = broadcast4(p[i] + j);
            s[i][0] = add_products(s[i][0], codes.even, weight);
            s[i][1] = add_products(s[i][1], codes.odd, weight);
          }
        }
      }
      for (int i = 0; i < 3; ++i) {
        const __m256i sum = _mm256_hadd_epi32(s[i][0], s[i][1]);
        for (int half = 0; half < 2; ++half) {
          int64_t* out = acc + column + 4 * half;
          store32(out, _mm256_add_epi64(load32(out), _mm256_slli_epi64(widen(sum, half), 8 * i)));
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

extern const DotTable dot_avx2;
const DotTable dot_avx2 = {"avx2", packed_bytes, pack, linear_w16, linear_w8, score_k8, mix_v16, mix_v8};

}  // namespace exactlm
