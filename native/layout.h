// Single rows out of the stored orders of kernels.h, and into those of the KV cache. Integer work, but for the one
// multiplication of an embedding; the same for every instruction set.
#pragma once
#include <cstdint>

#include "linear.h"

namespace exactlm {

// x[0..n) = the first n values of row `row`. spec/numerics.md 10.1
void embed(const LinearWeights& table, int64_t row, int n, float* x);

// One token's key (value) codes into slot `slot` of a page, and back. `limbs` is 2 for code16, 1 for code8. Clause 7.
void store_key(const int16_t* codes, int d, int dp, int limbs, int slot, uint8_t* keys);
void store_value(const int16_t* codes, int d, int dp, int limbs, int slot, int8_t* values);
void load_key(const uint8_t* keys, int d, int dp, int limbs, int slot, int16_t* codes);
void load_value(const int8_t* values, int d, int dp, int limbs, int slot, int16_t* codes);

}  // namespace exactlm
