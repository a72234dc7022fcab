// Sums of products with AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes, so the biased weight bytes are the
// unsigned operand and the limbs of the input the signed one; sum (w+128)*x = sum w*x + 128*sum x, and the surplus is
// taken off by starting the accumulators at -128*sum x. It does not saturate (vpdpbusds does).
#include <immintrin.h>

#include <utility>

#include "kernels.h"

namespace exactlm {
namespace {

// One packed row: a block for each group {hi limbs [32], lo limbs [32], int32 -128*sum hi, -128*sum lo}, then the two
// totals of these sums. So one register addresses all of a block, by constant distances.
constexpr int kBlockBytes = 2 * kGroup + 8;

inline size_t padded(int k) { return static_cast<size_t>((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign); }
inline size_t totals_offset(int k) { return padded(k) / kGroup * kBlockBytes; }

size_t packed_bytes(int k) { return (totals_offset(k) + 8 + 63) / 64 * 64; }

inline __m512i broadcast4(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Weights stream from memory, and the processor's own prefetching ends at every page. Of 1 to 16 KiB ahead, 4 and 8
// were best.
inline void prefetch(const uint8_t* w) { _mm_prefetch(reinterpret_cast<const char*>(w + 4096), _MM_HINT_T0); }

// acc += products of w and the four limbs at x for every output. By hand: GCC 12 loads the limbs by an instruction of
// their own and copies the accumulators, which costs a quarter of the speed.
inline void add_products(__m512i& acc, __m512i w, const uint8_t* x) {
  typedef int32_t __attribute__((may_alias, aligned(1))) Limbs;
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Limbs*>(x)));
}

inline void add_products(__m512i& acc, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
}

void pack(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed) {
  const __m512i half = _mm512_set1_epi16(128);
  const __m256i ones = _mm256_set1_epi8(1);
  for (int m = 0; m < num_rows; ++m, codes += stride, packed += packed_bytes(k)) {
    uint8_t* block = packed;
    int32_t hi_total = 0, lo_total = 0;
    for (int i = 0; i < static_cast<int>(padded(k)); i += kGroup, block += kBlockBytes) {
      const int left = k - i;
      const __mmask32 mask = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1u;
      const __m512i q = _mm512_maskz_loadu_epi16(mask, codes + i);
      const __m512i hi16 = _mm512_srai_epi16(_mm512_add_epi16(q, half), 8);  // (q + 128) >> 8 = (q - lo) / 256
      const __m256i hi = _mm512_cvtepi16_epi8(hi16), lo = _mm512_cvtepi16_epi8(q);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(block), hi);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + kGroup), lo);
      const __m256i zero = _mm256_setzero_si256();
      const __m256i hs = _mm256_dpbusd_epi32(zero, ones, hi), ls = _mm256_dpbusd_epi32(zero, ones, lo);
      const int32_t h = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(hs));
      const int32_t l = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(ls));
      hi_total += h;
      lo_total += l;
      const int32_t pair[2] = {-128 * h, -128 * l};
      __builtin_memcpy(block + 2 * kGroup, pair, 8);
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

// task(0), ..., task(M - 1), with constants once a flattened function has taken it in, and early: accumulators that are
// indexed by anything else end up in memory.
template <int M, typename Task>
[[gnu::always_inline]] inline void unroll(const Task& task) {
  const auto call = [&]<int... m>(std::integer_sequence<int, m...>) __attribute__((always_inline)) { (task(m), ...); };
  call(std::make_integer_sequence<int, M>());
}

// The rows of one call, at one block.
template <int M>
struct Blocks {
  Blocks(const uint8_t* packed, size_t row_bytes) {
    unroll<M>([&](int m) { row[m] = packed + static_cast<size_t>(m) * row_bytes; });
  }
  void advance() {
    unroll<M>([&](int m) { row[m] += kBlockBytes; });
  }
  const uint8_t* row[M];
};

template <int M>
[[gnu::flatten]] inline void tile_w16(const uint8_t* packed, size_t row_bytes, const float* s_x, int k,
                                      const uint8_t* w, const float* s_w, float* y, size_t ldy) {
  __m512i hh[M], hl[M], lh[M], ll[M];  // hl and lh apart only for a single row, where the chain of additions limits
  Blocks<M> x(packed, row_bytes);
  unroll<M>([&](int m) {
    const uint8_t* totals = x.row[m] + totals_offset(k);
    hh[m] = broadcast4(totals);
    ll[m] = broadcast4(totals + 4);
    hl[m] = _mm512_add_epi32(hh[m], ll[m]);
    lh[m] = _mm512_setzero_si512();
  });
  for (int i = 0; i < k; i += kGroup, x.advance()) {
    const int end = k - i < kGroup ? k - i : kGroup;
    for (int at = 0; at < end; at += 4, w += 128) {
      prefetch(w);
      prefetch(w + 64);
      const __m512i wh = _mm512_loadu_si512(w), wl = _mm512_loadu_si512(w + 64);
      unroll<M>([&](int m) {
        const __m512i xh = broadcast4(x.row[m] + at), xl = broadcast4(x.row[m] + at + kGroup);
        add_products(hh[m], wh, xh);
        add_products(hl[m], wl, xh);
        add_products(M == 1 ? lh[m] : hl[m], wh, xl);
        add_products(ll[m], wl, xl);
      });
    }
  }
  unroll<M>([&](int m) {
    const __m512i cross = M == 1 ? _mm512_add_epi32(hl[m], lh[m]) : hl[m];
    store_scaled(combine16(hh[m], cross, ll[m]), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  });
}

template <int M>
[[gnu::flatten]] inline void tile_w8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                                     const uint16_t* multipliers, const float* s_w, float* y, size_t ldy) {
  __m512i even[M], odd[M];
  Blocks<M> x(packed, row_bytes);
  unroll<M>([&](int m) { even[m] = odd[m] = _mm512_setzero_si512(); });
  const int groups = (k + kGroup - 1) / kGroup;
  for (int g = 0; g < groups; ++g, multipliers += kTileRows, x.advance()) {
    __m512i hi[M], lo[M];
    unroll<M>([&](int m) {
      hi[m] = broadcast4(x.row[m] + 2 * kGroup);
      lo[m] = broadcast4(x.row[m] + 2 * kGroup + 4);
    });
#pragma GCC unroll 8
    for (int at = 0; at < kGroup; at += 4, w += 64) {
      prefetch(w);
      const __m512i codes = _mm512_loadu_si512(w);
      unroll<M>([&](int m) {
        add_products(hi[m], codes, x.row[m] + at);
        add_products(lo[m], codes, x.row[m] + at + kGroup);
      });
    }
    const __m512i d = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(multipliers)));
    const __m512i d_odd = _mm512_srli_epi64(d, 32);
    unroll<M>([&](int m) {
      const __m512i z = _mm512_add_epi32(_mm512_slli_epi32(hi[m], 8), lo[m]);  // < 2^27
      even[m] = _mm512_add_epi64(even[m], _mm512_mul_epi32(z, d));
      odd[m] = _mm512_add_epi64(odd[m], _mm512_mul_epi32(_mm512_srli_epi64(z, 32), d_odd));
    });
  }
  const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  unroll<M>([&](int m) {
    const __m512 acc = join(_mm512_cvtepi64_ps(even[m]), _mm512_cvtepi64_ps(odd[m]));
    store_scaled(_mm512_permutexvar_ps(order, acc), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  });
}

template <int M>
[[gnu::flatten]] inline void tile_k8(const uint8_t* packed, size_t row_bytes, const float* s_x, int k, const uint8_t* w,
                                     const float* s_w, float* y, size_t ldy) {
  __m512i hi[M], lo[M];
  Blocks<M> x(packed, row_bytes);
  unroll<M>([&](int m) {
    const uint8_t* totals = x.row[m] + totals_offset(k);
    hi[m] = broadcast4(totals);
    lo[m] = broadcast4(totals + 4);
  });
  for (int i = 0; i < k; i += kGroup, x.advance()) {
    const int end = k - i < kGroup ? k - i : kGroup;
    for (int at = 0; at < end; at += 4, w += 64) {
      const __m512i codes = _mm512_loadu_si512(w);
      unroll<M>([&](int m) {
        add_products(hi[m], codes, x.row[m] + at);
        add_products(lo[m], codes, x.row[m] + at + kGroup);
      });
    }
  }
  unroll<M>([&](int m) {  // |acc| <= 127*32639*256 = 1,061,159,168  < 2^30 fits int32
    const __m512i acc = _mm512_add_epi32(_mm512_slli_epi32(hi[m], 8), lo[m]);
    store_scaled(_mm512_cvtepi32_ps(acc), s_w, s_x[m], y + static_cast<size_t>(m) * ldy);
  });
}

constexpr int kMaxRows = 6;  // of a block: more would not fit the registers

// Cuts rows into blocks of 1 to kMaxRows, as equal as can be, and calls task(first row, rows as a constant) for each.
template <typename Task>
inline void for_blocks(int num_rows, const Task& task) {
  int first = 0;
  for (int blocks = (num_rows + kMaxRows - 1) / kMaxRows; blocks > 0; --blocks) {
    const int count = (num_rows - first + blocks - 1) / blocks;
    const size_t at = static_cast<size_t>(first);
    switch (count) {
      case 1:
        task(at, std::integral_constant<int, 1>());
        break;
      case 2:
        task(at, std::integral_constant<int, 2>());
        break;
      case 3:
        task(at, std::integral_constant<int, 3>());
        break;
      case 4:
        task(at, std::integral_constant<int, 4>());
        break;
      case 5:
        task(at, std::integral_constant<int, 5>());
        break;
      default:
        task(at, std::integral_constant<int, kMaxRows>());
        break;
    }
    first += count;
  }
}

void linear_w16(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), tile_bytes = static_cast<size_t>((k + 3) / 4) * 128;
  for (int t = 0; t < num_tiles; ++t, w += tile_bytes, s_w += kTileRows, y += kTileRows) {
    for_blocks(num_rows, [&](size_t m, auto count) {
      tile_w16<count>(packed + m * row, row, s_x + m, k, w, s_w, y + m * ldy, ldy);
    });
  }
}

void linear_w8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
               const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k), groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
  for (int t = 0; t < num_tiles;
       ++t, w += groups * kGroup * kTileRows, multipliers += groups * kTileRows, s_w += kTileRows, y += kTileRows) {
    for_blocks(num_rows, [&](size_t m, auto count) {
      tile_w8<count>(packed + m * row, row, s_x + m, k, w, multipliers, s_w, y + m * ldy, ldy);
    });
  }
}

void score_k8(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
              int num_tiles, float* y, size_t ldy) {
  const size_t row = packed_bytes(k);
  for (int t = 0; t < num_tiles; ++t, keys += static_cast<size_t>(k) * kTileRows, s_k += kTileRows, y += kTileRows) {
    for_blocks(num_rows, [&](size_t m, auto count) {
      tile_k8<count>(packed + m * row, row, s_x + m, k, keys, s_k, y + m * ldy, ldy);
    });
  }
}

// Sums by weight 256^i of the products of P's limbs and v's; C blocks of 16 columns, L limbs of v.
template <int C, int L>
[[gnu::flatten]] inline void mix_columns(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages,
                                         int dp, int column, int64_t* acc) {
  __m512i s0[C], s1[C], s2[C], s3[C];
  unroll<C>([&](int m) { s0[m] = s1[m] = s2[m] = s3[m] = _mm512_setzero_si512(); });
  for (int page = 0; page < num_pages; ++page) {
    const int8_t* v = pages[page] + static_cast<size_t>(column) * 4 * L;
    for (int j = page * kPageTokens; j < (page + 1) * kPageTokens; j += 4, v += static_cast<size_t>(dp) * 4 * L) {
      const __m512i p0 = broadcast4(limbs[0] + j), p1 = broadcast4(limbs[1] + j), p2 = broadcast4(limbs[2] + j);
      unroll<C>([&](int m) {
        const __m512i top = _mm512_loadu_si512(v + m * 64 * L);
        add_products(L == 2 ? s1[m] : s0[m], p0, top);
        add_products(L == 2 ? s2[m] : s1[m], p1, top);
        add_products(L == 2 ? s3[m] : s2[m], p2, top);
        if (L == 2) {
          const __m512i low = _mm512_loadu_si512(v + m * 64 * L + 64);
          add_products(s0[m], p0, low);
          add_products(s1[m], p1, low);
          add_products(s2[m], p2, low);
        }
      });
    }
  }
  unroll<C>([&](int m) {
    for (int half = 0; half < 2; ++half) {
      int64_t* out = acc + column + m * 16 + half * 8;
      const __m512i low = _mm512_add_epi64(widen(s0[m], half), _mm512_slli_epi64(widen(s1[m], half), 8));
      const __m512i high = _mm512_add_epi64(widen(s2[m], half), _mm512_slli_epi64(widen(s3[m], half), 8));
      const __m512i sum = _mm512_add_epi64(low, _mm512_slli_epi64(high, 16));
      _mm512_storeu_si512(out, _mm512_add_epi64(_mm512_loadu_si512(out), sum));
    }
  });
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
