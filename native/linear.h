// Linear layers over the thread pool: packs the inputs once, then hands out tiles of 16 outputs.
#pragma once
#include <cstdint>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace exactlm {

struct LinearWeights {
  int num_outputs;  // N; rows are padded to a multiple of 16 in the file and in y
  int k;
  const uint8_t* codes;
  const uint16_t* multipliers;  // null for w16
  const float* scales;          // [padded N]
  int num_tiles() const { return (num_outputs + kTileRows - 1) / kTileRows; }
};

// Whether every w16 code is one that spec/numerics.md 2.3 allows: a high limb of -128 would overflow 16 bits. True for
// w8.
bool has_valid_codes(const LinearWeights& weights);

// Memory that starts on a cache line and only grows.
class Scratch {
 public:
  uint8_t* get(size_t bytes);

 private:
  std::vector<uint8_t> storage_;
};

// y[t, n] for t < num_rows, row stride ldy >= 16 * num_tiles.
void linear(const Isa& isa, Pool& pool, Scratch& scratch, const LinearWeights& weights, const int16_t* codes,
            size_t stride, const float* s_x, int num_rows, float* y, size_t ldy);

}  // namespace exactlm
