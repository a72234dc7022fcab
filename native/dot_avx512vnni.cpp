// Sums of products with AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes, so the biased weight bytes are the
// unsigned operand and the limbs of the input the signed one; sum (w+128)*x = sum w*x + 128*sum x, and the surplus is
// taken off by starting the accumulators at -128*sum x. It does not saturate (vpdpbusds does).
#include <immintrin.h>

#include "kernels.h"

namespace exactlm {
namespace {

// One packed row: hi limbs [kp], lo limbs [kp], then int32: per group {-128*sum hi, -128*sum lo}, and the two totals.
inline size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }
inline size_t start_offset(int k) { return 2 * padded(k); }
inline size_t totals_offset(int k) { return start_offset(k) + padded(k) / kGroup * 8; }

size_t packed_bytes(int k) { return (totals_offset(k) + 8 + 63) / 64 * 64; }

inline __m512i broadcast4(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

inline int32_t load_i32(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  const __m512i half = _mm512_set1_epi16(128);
  const __m256i ones = _mm256_set1_epi8(1);
  for (int m = 0; m < num_rows; ++m, codes += stride, packed += packed_bytes(k)) {
    uint8_t* hi_out = packed;
    uint8_t* lo_out = packed + padded(k);
    uint8_t* start = packed + start_offset(k);
    int32_t hi_total = 0, lo_total = 0;
    for (int i = 0; i < static_cast<int>(padded(k)); i += kGroup, start += 8) {
      const int left = k - i;
      const __mmask32 mask = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1u;
      const __m512i q = _mm512_maskz_loadu_epi16(mask, codes + i);
      const __m512i hi16 = _mm512_srai_epi16(_mm512_add_epi16(q, half), 8);  // (q + 128) >> 8 = (q - lo) / 256
      const __m256i hi = _mm512_cvtepi16_epi8(hi16), lo = _mm512_cvtepi16_epi8(q);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(hi_out + i), hi);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(lo_out + i), lo);
      const __m256i zero = _mm256_setzero_si256();
      const __m256i hs = _mm256_dpbusd_epi32(zero, ones, hi), ls = _mm256_dpbusd_epi32(zero, ones, lo);
      const int32_t h = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(hs));
      const int32_t l = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(ls));
      hi_total += h;
      lo_total += l;
      const int32_t pair[2] = {-128 * h, -128 * l};
      __builtin_memcpy(start, pair, 8);
    }
    const int32_t totals[2] = {-128 * hi_total, -128 * lo_total};  // |.| <= 128*128*32768 = 2^29
    __builtin_memcpy(packed + totals_offset(k), totals, 8);
  }
}

inline void store_scaled(__m512 acc, const float* s_w, float s_x, float* y) {  // 4.2
  _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_mul_ps(acc, _mm512_loadu_ps(s_w)), _mm512_set1_ps(s_x)));
}

inline __m512 join(__m256 low, __m256 high) {
  return _mm512_castsi512_ps(
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_castps_si256(low)), _mm256_castps_si256(high), 1));
}

inline __m512i widen(__m512i v, int half) {
  return _mm512_cvtepi32_epi64(half ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v));
}

// fp32(65536*hh + 256*cross + ll), each an exact int32.
inline __m512 combine16(__m512i hh, __m512i cross, __m512i ll) {
  __m256 part[2];
  for (int half = 0; half < 2; ++half) {
    const __m512i a = _mm512_slli_epi64(widen(hh, half), 16), b = _mm512_slli_epi64(widen(cross, half), 8);
    part[half] = _mm512_cvtepi64_ps(_mm512_add_epi64(_mm512_add_epi64(a, b), widen(ll, half)));
  }
  return join(part[0], part[1]);
}

template <int M>
inline void tile_w16(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                     const float* s_w, float* y, size_t ldy) {
  __m512i hh[M], hl[M], lh[M], ll[M];  // hl and lh apart only for a single row, where the chain of additions limits
  const size_t lo_at = padded(k);
  for (int m = 0; m < M; ++m) {
    const uint8_t* totals = packed + static_cast<size_t>(m) * row_bytes + totals_offset(k);
    hh[m] = _mm512_set1_epi32(load_i32(totals));
    ll[m] = _mm512_set1_epi32(load_i32(totals + 4));
    hl[m] = _mm512_add_epi32(hh[m], ll[m]);
    if (M == 1) lh[m] = _mm512_setzero_si512();
  }
  const int steps = (k + 3) / 4;
  for (int step = 0; step < steps; ++step, w += 128) {
    if (M == 1) _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0);
    if (M == 1) _mm_prefetch(reinterpret_cast<const char*>(w + 4096 + 64), _MM_HINT_T0);
    const __m512i wh = _mm512_loadu_si512(w), wl = _mm512_loadu_si512(w + 64);
    for (int m = 0; m < M; ++m) {
      const uint8_t* x = packed + static_cast<size_t>(m) * row_bytes + static_cast<size_t>(step) * 4;
      const __m512i xh = broadcast4(x), xl = broadcast4(x + lo_at);
      hh[m] = _mm512_dpbusd_epi32(hh[m], wh, xh);
      hl[m] = _mm512_dpbusd_epi32(hl[m], wl, xh);
      if (M == 1) {
        lh[m] = _mm512_dpbusd_epi32(lh[m], wh, xl);
      } else {
        hl[m] = _mm512_dpbusd_epi32(hl[m], wh, xl);
      }
      ll[m] = _mm512_dpbusd_epi32(ll[m], wl, xl);
    }
  }
  for (int m = 0; m < M; ++m) {
    const __m512i cross = M == 1 ? _mm512_add_epi32(hl[m], lh[m]) : hl[m];
    store_scaled(combine16(hh[m], cross, ll[m]), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  }
}

template <int M>
inline void tile_w8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                    const uint16_t* multipliers, const float* s_w, float* y, size_t ldy) {
  __m512i even[M], odd[M];
  for (int m = 0; m < M; ++m) even[m] = odd[m] = _mm512_setzero_si512();
  const int groups = (k + kGroup - 1) / kGroup;
  const size_t lo_at = padded(k);
  for (int g = 0; g < groups; ++g, multipliers += kTileRows) {
    __m512i hi[M], lo[M];
    for (int m = 0; m < M; ++m) {
      const uint8_t* start = packed + static_cast<size_t>(m) * row_bytes + start_offset(k) + static_cast<size_t>(g) * 8;
      hi[m] = broadcast4(start);
      lo[m] = broadcast4(start + 4);
    }
    for (int step = 0; step < kGroup / 4; ++step, w += 64) {
      if (M == 1) _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0);
      const __m512i codes = _mm512_loadu_si512(w);
      for (int m = 0; m < M; ++m) {
        const uint8_t* x = packed + static_cast<size_t>(m) * row_bytes + static_cast<size_t>(g) * kGroup +
                           static_cast<size_t>(step) * 4;
        hi[m] = _mm512_dpbusd_epi32(hi[m], codes, broadcast4(x));
        lo[m] = _mm512_dpbusd_epi32(lo[m], codes, broadcast4(x + lo_at));
      }
    }
    const __m512i d = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(multipliers)));
    const __m512i d_odd = _mm512_srli_epi64(d, 32);
    for (int m = 0; m < M; ++m) {
      const __m512i z = _mm512_add_epi32(_mm512_slli_epi32(hi[m], 8), lo[m]);  // < 2^27
      even[m] = _mm512_add_epi64(even[m], _mm512_mul_epi32(z, d));
      odd[m] = _mm512_add_epi64(odd[m], _mm512_mul_epi32(_mm512_srli_epi64(z, 32), d_odd));
    }
  }
  const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  for (int m = 0; m < M; ++m) {
    const __m512 acc = join(_mm512_cvtepi64_ps(even[m]), _mm512_cvtepi64_ps(odd[m]));
    store_scaled(_mm512_permutexvar_ps(order, acc), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  }
}

template <int M>
inline void tile_k8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                    const float* s_w, float* y, size_t ldy) {
  __m512i hi[M], lo[M];
  for (int m = 0; m < M; ++m) {
    const uint8_t* totals = packed + static_cast<size_t>(m) * row_bytes + totals_offset(k);
    hi[m] = broadcast4(totals);
    lo[m] = broadcast4(totals + 4);
  }
  for (int step = 0; step < k / 4; ++step, w += 64) {
    const __m512i codes = _mm512_loadu_si512(w);
    for (int m = 0; m < M; ++m) {
      const uint8_t* x = packed + static_cast<size_t>(m) * row_bytes + static_cast<size_t>(step) * 4;
      hi[m] = _mm512_dpbusd_epi32(hi[m], codes, broadcast4(x));
      lo[m] = _mm512_dpbusd_epi32(lo[m], codes, broadcast4(x + padded(k)));
    }
  }
  for (int m = 0; m < M; ++m) {  // |acc| <= 127*32639*256 = 1,061,159,168  < 2^30 fits int32
    const __m512i acc = _mm512_add_epi32(_mm512_slli_epi32(hi[m], 8), lo[m]);
    store_scaled(_mm512_cvtepi32_ps(acc), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  }
}

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int t = 0; t < num_tiles; ++t, w += tile_bytes, s_w += kTileRows, y += kTileRows) {
    int m = 0;
    for (; m + 6 <= num_rows; m += 6)
      tile_w16<6>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, s_w, y + static_cast<size_t>(m) * ldy,
                  ldy);
    for (; m + 2 <= num_rows; m += 2)
      tile_w16<2>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, s_w, y + static_cast<size_t>(m) * ldy,
                  ldy);
    if (m < num_rows)
      tile_w16<1>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, s_w, y + static_cast<size_t>(m) * ldy,
                  ldy);
  }
}

void linear_w8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
               const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
  for (int t = 0; t < num_tiles;
       ++t, w += groups * kGroup * kTileRows, multipliers += groups * kTileRows, s_w += kTileRows, y += kTileRows) {
    int m = 0;
    for (; m + 6 <= num_rows; m += 6)
      tile_w8<6>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, multipliers, s_w,
                 y + static_cast<size_t>(m) * ldy, ldy);
    for (; m + 2 <= num_rows; m += 2)
      tile_w8<2>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, multipliers, s_w,
                 y + static_cast<size_t>(m) * ldy, ldy);
    if (m < num_rows)
      tile_w8<1>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, w, multipliers, s_w,
                 y + static_cast<size_t>(m) * ldy, ldy);
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k);
  for (int t = 0; t < num_tiles; ++t, keys += static_cast<size_t>(k) * kTileRows, s_k += kTileRows, y += kTileRows) {
    int m = 0;
    for (; m + 4 <= num_rows; m += 4)
      tile_k8<4>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, keys, s_k, y + static_cast<size_t>(m) * ldy,
                 ldy);
    for (; m < num_rows; ++m)
      tile_k8<1>(packed + static_cast<size_t>(m) * row, row, s_x + m, k, keys, s_k, y + static_cast<size_t>(m) * ldy,
                 ldy);
  }
}

// Sums by weight 256^i of the products of P's limbs and v's; C blocks of 16 columns, L limbs of v.
template <int C, int L>
inline void mix_columns(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int column,
                        int64_t* acc) {
  constexpr int kSums = L + 2;
  __m512i s[kSums][C];
  for (int i = 0; i < kSums; ++i)
    for (int c = 0; c < C; ++c) s[i][c] = _mm512_setzero_si512();
  for (int page = 0; page < num_pages; ++page) {
    const int8_t* v = pages[page] + static_cast<size_t>(column) * 4 * L;
    for (int j = page * kPageTokens; j < (page + 1) * kPageTokens; j += 4, v += static_cast<size_t>(dp) * 4 * L) {
      const __m512i p0 = broadcast4(limbs[0] + j), p1 = broadcast4(limbs[1] + j), p2 = broadcast4(limbs[2] + j);
      for (int c = 0; c < C; ++c) {
        const __m512i top = _mm512_loadu_si512(v + static_cast<size_t>(c) * 64 * L);
        s[L - 1][c] = _mm512_dpbusd_epi32(s[L - 1][c], p0, top);
        s[L][c] = _mm512_dpbusd_epi32(s[L][c], p1, top);
        s[L + 1][c] = _mm512_dpbusd_epi32(s[L + 1][c], p2, top);
        if (L == 2) {
          const __m512i low = _mm512_loadu_si512(v + static_cast<size_t>(c) * 64 * L + 64);
          s[0][c] = _mm512_dpbusd_epi32(s[0][c], p0, low);
          s[1][c] = _mm512_dpbusd_epi32(s[1][c], p1, low);
          s[2][c] = _mm512_dpbusd_epi32(s[2][c], p2, low);
        }
      }
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int half = 0; half < 2; ++half) {
      int64_t* out = acc + column + c * 16 + half * 8;
      __m512i sum = _mm512_loadu_si512(out);
      for (int i = 0; i < kSums; ++i)
        sum = _mm512_add_epi64(sum, _mm512_slli_epi64(widen(s[i][c], half), static_cast<unsigned>(8 * i)));
      _mm512_storeu_si512(out, sum);
    }
  }
}

constexpr int kFlushPages = 32767 / kPageTokens;  // 8.6: at most 32,767 keys between transfers to 64 bits

template <int L>
inline void mix(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  for (int i = 0; i < dp; ++i) acc[i] = 0;
  for (int first = 0; first < num_pages; first += kFlushPages) {
    const int count = num_pages - first < kFlushPages ? num_pages - first : kFlushPages;
    const uint8_t* part[3];
    for (int i = 0; i < 3; ++i) part[i] = limbs[i] + static_cast<size_t>(first) * kPageTokens;
    int column = 0;
    for (; column + 64 <= dp; column += 64) mix_columns<4, L>(part, pages + first, count, dp, column, acc);
    for (; column < dp; column += 16) mix_columns<1, L>(part, pages + first, count, dp, column, acc);
  }
}

void mix_v16(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<2>(limbs, pages, num_pages, dp, acc);
}

void mix_v8(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc) {
  mix<1>(limbs, pages, num_pages, dp, acc);
}

}  // namespace

extern const DotTable dot_avx512vnni;
const DotTable dot_avx512vnni = {"avx512vnni", packed_bytes, pack, linear_w16, linear_w8, score_k8, mix_v16, mix_v8};

}  // namespace exactlm
