// THE contract between the instruction-set files and everything above them: two tables of function pointers.
// Knows integers, floats and pointers; no models, no files, no threads, no Python. Clauses: spec/numerics.md.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace exactlm {

// Weight tiles hold 16 outputs. Codes are stored as bytes with a bias of 128, four consecutive k together:
//   w16 tile: [K4/4][2: hi, lo][16][4]   w8 tile: [K32/4][16][4], multipliers [K32/32][16]
// A page of the KV cache holds 32 tokens of one head. Keys: two w16 (or w8, without groups) tiles whose outputs are
// tokens. Values: [32/4][dp/16][limbs][16][4 tokens], signed. dp is the head dimension rounded up to 16.
constexpr int kTileRows = 16;
constexpr int kGroup = 32;
constexpr int kPageTokens = 32;
constexpr int kMaxHeadDim = 256;
constexpr int kCodeAlign = 64;  // rows of codes are padded with zeros to this many elements

// Status of an operation that can meet a non-finite value (spec 2.1).
enum Status : int { kOk = 0, kNonFinite = 1 };

// Sums of products. `packed` is this table's own arrangement of code16 rows, made by `pack`.
struct DotTable {
  const char* isa;

  size_t (*packed_bytes)(int k);  // of one row; a multiple of 64
  void (*pack)(const int16_t* codes, int num_rows, size_t stride, int k, uint8_t* packed);

  // y[m*ldy + n] = (fp32(acc) * s_w[n]) * s_x[m] for n < 16*num_tiles. Spec 4.1, 4.2.
  void (*linear_w16)(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w, const float* s_w,
                     int num_tiles, float* y, size_t ldy);
  void (*linear_w8)(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* w,
                    const uint16_t* multipliers, const float* s_w, int num_tiles, float* y, size_t ldy);
  // The same over 8-bit keys: no groups, k a multiple of 16. Spec 8.1.
  void (*score_k8)(const uint8_t* packed, const float* s_x, int num_rows, int k, const uint8_t* keys, const float* s_k,
                   int num_tiles, float* y, size_t ldy);

  // acc[i] = sum_j P_j * v[j][i] over num_pages pages; the limbs of P are planes of 32*num_pages bytes. Spec 8.4, 8.6.
  void (*mix_v16)(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc);
  void (*mix_v8)(const uint8_t* const limbs[3], const int8_t* const* pages, int num_pages, int dp, int64_t* acc);
};

// Elementwise work of one row: one source (elementwise.cpp), compiled for each instruction set.
struct ElementwiseTable {
  const char* isa;

  Status (*quantise)(const float* x, int n, int16_t* codes, int padded, float* scale);                     // 2.2
  Status (*norm_quantise)(float* x, const float* y, const float* gain, int n, double eps, int16_t* codes,  // 5
                          int padded, float* scale, float* scratch);
  Status (*swiglu_quantise)(const float* gate, const float* up, int n, int16_t* codes, int padded, float* scale,  // 9.2
                            float* scratch);
  void (*add)(float* x, const float* y, int n);

  void (*rope_table)(uint64_t position, const uint64_t* frequency, int half, float factor, float* cosine,
                     float* sine);                                                             // 6
  void (*rope)(const float* x, const float* cosine, const float* sine, int half, float* out);  // 6.4
  void (*hadamard)(float* x, int d, int is_key);                                               // 7.3
  Status (*quantise8)(const float* x, int n, int16_t* codes, float* scale);                    // 2.4

  // Scores t[0..n) of one row become the limbs of P; t is overwritten. What the mixed integers are to be multiplied by
  // goes to *rescale: 0 when the output is zero. 8.2 to 8.4.
  Status (*softmax)(float* t, const float* s_v, int n, uint8_t* const limbs[3], float* rescale);
  void (*finish_mix)(const int64_t* acc, int d, float rescale, float* out);  // 8.4

  void (*exp2)(const float* x, int n, float* y);  // 9.1

  // Index of the largest value, the lowest of equals; -1 if any is not finite. 10.3.
  int64_t (*argmax)(const float* x, int64_t n);
  // The same where -infinity is an excluded id; -1 too if all are. sampling.md 4.
  int64_t (*argmax_allowed)(const float* x, int64_t n);
  // weights[i] = rne(exp2((x[i] - top) * c) * 2^40), and keys that sort like x; both 0 where x[i] is -infinity or the
  // weight below `least`. Returns the sum of the weights. sampling.md 4.1, 5.1, 5.2.
  int64_t (*weigh)(const float* x, int n, float top, float c, int64_t least, uint32_t* keys, int64_t* weights);
};

}  // namespace exactlm
