// Elementwise operations and the integer sums of single rows. One portable source, compiled once for each instruction
// set with its flags (-ffp-contract=off always): the compiler's vectorisation cannot change a bit of it, because every
// sum is an integer and every floating-point operation is written out.
#include "kernels.h"

#ifndef EXACTLM_ELEMENTWISE
#error "compile with -DEXACTLM_ELEMENTWISE=<symbol> -DEXACTLM_ISA_NAME=\"<name>\""
#endif

namespace exactlm {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr int32_t kExcluded = -0x7f800001;       // ordered(-infinity)
constexpr uint32_t kTinyBits = 0x0d800000u;      // 2^-100
constexpr double kRound52 = 6755399441055744.0;  // 1.5 * 2^52: adding and subtracting it is rne for |x| < 2^51
constexpr int kBlock = 1024;
constexpr float kRound23 = 12582912.0f;  // 1.5 * 2^23: the same for |x| < 2^22
constexpr float kRound24 = 8388608.0f;   // 2^23: the same for 0 <= x <= 2^23

inline uint32_t bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

inline float from_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

inline float power_of_two(int k) { return from_bits(static_cast<uint32_t>(k + 127) << 23); }  // -126 <= k <= 127

inline int64_t bits_64(double x) {
  int64_t i;
  __builtin_memcpy(&i, &x, sizeof i);
  return i;
}

inline double power_of_two_64(int k) {
  const uint64_t u = static_cast<uint64_t>(k + 1023) << 52;
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

inline uint32_t absmax_bits(const float* x, int n) {  // 2.1
  uint32_t m = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t u = bits(x[i]) & 0x7fffffffu;
    m = u > m ? u : m;
  }
  return m;
}

inline void clear(int16_t* codes, int begin, int end) {
  for (int i = begin; i < end; ++i) codes[i] = 0;
}

Status quantise(const float* x, int n, int16_t* codes, int padded, float* scale) {  // 2.2
  const uint32_t m = absmax_bits(x, n);
  if (m >= kInfinityBits) return kNonFinite;
  clear(codes, n, padded);
  if (m < kTinyBits) {
    clear(codes, 0, n);
    *scale = 0.0f;
    return kOk;
  }
  int k = static_cast<int>(m >> 23) - 127 - 14;
  if (from_bits(m) * power_of_two(-k) > 32639.0f) ++k;
  const float inverse = power_of_two(-k);
  for (int i = 0; i < n; ++i) {
    const float t = x[i] * inverse;
    const float r = (t + kRound23) - kRound23;
    codes[i] = static_cast<int16_t>(static_cast<int32_t>(r));
  }
  *scale = power_of_two(k);
  return kOk;
}

Status quantise8(const float* x, int n, int16_t* codes, float* scale) {  // 2.4
  const uint32_t mb = absmax_bits(x, n);
  if (mb >= kInfinityBits) return kNonFinite;
  if (mb < kTinyBits) {
    clear(codes, 0, n);
    *scale = 0.0f;
    return kOk;
  }
  const float m = from_bits(mb);
  const float inverse = 127.0f / m;
  for (int i = 0; i < n; ++i) {
    const float t = x[i] * inverse;
    int32_t q = static_cast<int32_t>((t + kRound23) - kRound23);
    q = q > 127 ? 127 : q;
    q = q < -127 ? -127 : q;
    codes[i] = static_cast<int16_t>(q);
  }
  *scale = m / 127.0f;
  return kOk;
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

Status norm_quantise(float* x, const float* y, const float* gain, int n, double eps, int16_t* codes, int padded,
                     float* scale, float* scratch) {  // 5.1, 5.2
  if (y) add(x, y, n);
  const uint32_t m = absmax_bits(x, n);
  if (m >= kInfinityBits) return kNonFinite;
  if (m < kTinyBits) {
    clear(codes, 0, padded);
    *scale = 0.0f;
    return kOk;
  }
  const int e = static_cast<int>(m >> 23) - 126;
  const double up = power_of_two_64(23 - e);
  uint64_t sum = 0;  // <= 2^46 * n <= 2^61
  for (int i = 0; i < n; ++i) {
    const double t = static_cast<double>(x[i]) * up;
    const int32_t q = static_cast<int32_t>((t + kRound52) - kRound52);
    sum += static_cast<uint64_t>(static_cast<int64_t>(q) * q);
  }
  double ms = static_cast<double>(static_cast<int64_t>(sum)) * power_of_two_64(2 * e - 46);
  ms = ms / static_cast<double>(n);
  ms = ms + eps;
  const float r = static_cast<float>(1.0 / __builtin_sqrt(ms));
  for (int i = 0; i < n; ++i) {
    const float t = x[i] * r;
    scratch[i] = t * gain[i];
  }
  return quantise(scratch, n, codes, padded, scale);
}

inline float exp2_limited(float x) {  // 9.1
  x = x > -126.0f ? x : -126.0f;      // this order also turns NaN into a number
  x = x < 126.0f ? x : 126.0f;
  const float r = (x + kRound23) - kRound23;
  const float n = r > x ? r - 1.0f : r;
  const float f = x - n;
  float y = 0x1.c72114p-13f;
  y = y * f;
  y = y + 0x1.461956p-10f;
  y = y * f;
  y = y + 0x1.3d28p-7f;
  y = y * f;
  y = y + 0x1.c685p-5f;
  y = y * f;
  y = y + 0x1.ebfd9ep-3f;
  y = y * f;
  y = y + 0x1.62e42ap-1f;
  y = y * f;
  y = y + 1.0f;
  const int32_t k = static_cast<int32_t>(n);
  return y * from_bits(static_cast<uint32_t>(k + 127) << 23);
}

Status swiglu_quantise(const float* gate, const float* up, int n, int16_t* codes, int padded, float* scale,
                       float* scratch) {  // 9.2
  for (int i = 0; i < n; ++i) {
    const float g = gate[i];
    const float t = g * -0x1.715476p+0f;
    const float denominator = 1.0f + exp2_limited(t);
    const float s = g / denominator;
    scratch[i] = s * up[i];
  }
  return quantise(scratch, n, codes, padded, scale);
}

// Q60 Taylor coefficients of sin and cos of a quarter turn; spec 12.2.
constexpr int64_t kSin[11] = {1811004864519280711,
                              -744745899218905439,
                              91879342557802013,
                              -5397695021890950,
                              184976092165948,
                              -4149183757585,
                              65626285697,
                              -771077950,
                              6994701,
                              -50464,
                              296};
constexpr int64_t kCos[11] = {1152921504606846976,
                              -1422359894497287770,
                              292461030722154733,
                              -24053955633020904,
                              1059834939193175,
                              -29055976611915,
                              543126883801,
                              -7363252037,
                              75700401,
                              -610403,
                              3963};

inline int64_t mul_q60(int64_t a, int64_t b) { return static_cast<int64_t>((static_cast<__int128>(a) * b) >> 60); }

void rope_table(uint64_t position, const uint64_t* frequency, int half, float factor, float* cosine, float* sine) {
  for (int i = 0; i < half; ++i) {
    const uint64_t angle = position * frequency[i];
    const int quadrant = static_cast<int>(angle >> 62);
    const int64_t u = static_cast<int64_t>((angle << 2) >> 4);
    const int64_t u2 = mul_q60(u, u);
    int64_t a = kSin[10], b = kCos[10];
    for (int k = 9; k >= 0; --k) {
      a = mul_q60(a, u2) + kSin[k];
      b = mul_q60(b, u2) + kCos[k];
    }
    a = mul_q60(a, u);
    const int64_t s = quadrant == 0 ? a : quadrant == 1 ? b : quadrant == 2 ? -a : -b;
    const int64_t c = quadrant == 0 ? b : quadrant == 1 ? -a : quadrant == 2 ? -b : a;
    sine[i] = static_cast<float>(s) * 0x1p-60f;
    cosine[i] = static_cast<float>(c) * 0x1p-60f;
    if (factor != 1.0f) {
      sine[i] = sine[i] * factor;
      cosine[i] = cosine[i] * factor;
    }
  }
}

void rope(const float* x, const float* cosine, const float* sine, int half, float* out) {  // 6.4
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    const float ac = a * cosine[i], bs = b * sine[i];
    const float bc = b * cosine[i], as = a * sine[i];
    out[i] = ac - bs;
    out[i + half] = bc + as;
  }
}

void hadamard(float* x, int d, int is_key) {  // 7.3
  const int block = d & -d;
  int log2_block = 0;
  for (int h = 1; h < block; h *= 2, ++log2_block) {
    for (int base = 0; base < d; base += 2 * h) {
      for (int j = base; j < base + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
  }
  const float f = power_of_two(is_key ? -((log2_block + 1) / 2) : -(log2_block / 2));
  for (int i = 0; i < d; ++i) x[i] = x[i] * f;
}

inline int32_t ordered(float x) {  // an integer that sorts like x
  const uint32_t u = bits(x);
  return static_cast<int32_t>(u ^ ((0u - (u >> 31)) & 0x7fffffffu));
}

inline float from_ordered(int32_t i) {
  const uint32_t u = static_cast<uint32_t>(i);
  return from_bits(u ^ ((0u - (u >> 31)) & 0x7fffffffu));
}

Status softmax(float* t, const float* s_v, int n, uint8_t* const limbs[3], float* rescale) {
  if (absmax_bits(t, n) >= kInfinityBits) return kNonFinite;
  int32_t top = INT32_MIN;
  for (int j = 0; j < n; ++j) {
    const int32_t i = ordered(t[j]);
    top = i > top ? i : top;
  }
  const float m = from_ordered(top);
  uint64_t sum = 0;  // < 2^48 for 131,072 keys
  uint32_t peak = 0;
  for (int j = 0; j < n; ++j) {
    const float e = exp2_limited(t[j] - m);
    const float e30 = e * 0x1p30f;  // from 2^23 on every fp32 is an integer already
    const float r = e30 < kRound24 ? (e30 + kRound24) - kRound24 : e30;
    sum += static_cast<uint32_t>(static_cast<int32_t>(r));
    const float w = e * s_v[j];
    t[j] = w;
    const uint32_t u = bits(w);
    peak = u > peak ? u : peak;
  }
  if (peak < kTinyBits) {
    *rescale = 0.0f;
    return kOk;
  }
  const float wm = from_bits(peak);
  const float inverse = 8388607.0f / wm;
  uint8_t* p0 = limbs[0];
  uint8_t* p1 = limbs[1];
  uint8_t* p2 = limbs[2];
  for (int j = 0; j < n; ++j) {
    const float z = t[j] * inverse;
    const uint32_t p = static_cast<uint32_t>(static_cast<int32_t>((z + kRound24) - kRound24));  // 0 <= z <= 2^23
    p0[j] = static_cast<uint8_t>(p);
    p1[j] = static_cast<uint8_t>(p >> 8);
    p2[j] = static_cast<uint8_t>(p >> 16);
  }
  const float numerator = wm / 8388607.0f;
  const float denominator = static_cast<float>(static_cast<int64_t>(sum)) * 0x1p-30f;
  *rescale = numerator / denominator;
  return kOk;
}

void finish_mix(const int64_t* acc, int d, float rescale, float* out) {
  for (int i = 0; i < d; ++i) out[i] = static_cast<float>(acc[i]) * rescale;
}

void exp2(const float* x, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = exp2_limited(x[i]);
}

// Index of the largest, the lowest of equals; -1 if one is NaN, +infinity or sorts before `least`, or all are
// -infinity.
inline int64_t find_largest(const float* x, int64_t n, int32_t least) {
  int32_t top = INT32_MIN, bottom = INT32_MAX;  // NaN sorts beyond the infinities, by its sign
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i] + 0.0f;  // -0 and +0 are equal logits
    const int32_t o = ordered(v);
    top = o > top ? o : top;
    bottom = o < bottom ? o : bottom;
  }
  if (bottom < least || top <= kExcluded || top >= static_cast<int32_t>(kInfinityBits)) return -1;
  const float best = from_ordered(top);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return -1;
}

int64_t argmax(const float* x, int64_t n) { return find_largest(x, n, kExcluded + 1); }

int64_t argmax_allowed(const float* x, int64_t n) { return find_largest(x, n, kExcluded); }

int64_t weigh(const float* x, int n, float top, float c, int64_t least, uint32_t* keys, int64_t* weights) {
  float e[kBlock];
  int64_t sum = 0;  // < 2^62
  for (int begin = 0; begin < n; begin += kBlock) {
    const int count = n - begin < kBlock ? n - begin : kBlock;
    for (int i = 0; i < count; ++i) {
      const float difference = x[begin + i] - top;
      e[i] = exp2_limited(difference * c);
    }
    for (int i = 0; i < count; ++i) {
      const double t = static_cast<double>(e[i]) * 0x1p40;
      const int64_t w = bits_64(t + kRound52) - bits_64(kRound52);
      const int64_t kept = w >= least ? w : 0;
      weights[begin + i] = kept;
      sum += kept;
    }
    for (int i = 0; i < count; ++i) {
      const float v = x[begin + i] + 0.0f;
      const uint32_t key = static_cast<uint32_t>(ordered(v)) - static_cast<uint32_t>(kExcluded);
      keys[begin + i] = weights[begin + i] >= least ? key : 0;
    }
  }
  return sum;
}

}  // namespace

extern const ElementwiseTable EXACTLM_ELEMENTWISE;
const ElementwiseTable EXACTLM_ELEMENTWISE = {EXACTLM_ISA_NAME, quantise, norm_quantise, swiglu_quantise, add,
                                              rope_table,       rope,     hadamard,      quantise8,       softmax,
                                              finish_mix,       exp2,     argmax,        argmax_allowed,  weigh};

}  // namespace exactlm
