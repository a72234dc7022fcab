// Attention over the paged cache: writing keys and values, and one exact row per query. spec/numerics.md 6 to 8.
#pragma once
#include <cstdint>
#include <vector>

#include "isa.h"
#include "kv_cache.h"
#include "linear.h"
#include "pool.h"

namespace exactlm {

// The tokens of one step: several sequences, the tokens of each contiguous.
struct Batch {
  int num_tokens;
  int num_sequences;
  const int32_t* first_token;  // [S + 1]
  const int32_t* positions;    // [T]
  const int32_t* page_table;   // [S, max_pages], page of each 32 positions
  int max_pages;
};

// qkv: [T, ldq] holding H query heads, then Hk key heads, then Hk value heads. Writes query codes [T, H, dp] and scales
// [T, H], and the cache at the tokens' positions.
Status write_qkv(const Isa& isa, Pool& pool, const Batch& batch, const float* qkv, size_t ldq, int num_heads,
                 const float* cosine, const float* sine, KvCache& cache, int layer, int16_t* query_codes,
                 float* query_scales);

// out: [T, H * d]. window: keys seen, 0 for all.
Status attend(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const Batch& batch, const int16_t* query_codes,
              const float* query_scales, int num_heads, const KvCache& cache, int layer, float softmax_scale,
              int window, float* out);

}  // namespace exactlm
