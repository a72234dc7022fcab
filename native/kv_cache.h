// The paged integer KV cache: memory and addresses. Who owns which page is decided above (engine/kv_cache.py).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace exactlm {

class KvCache {
 public:
  // limbs: 2 for 16-bit codes, 1 for 8-bit ones. Memory is reserved here and taken by the system when first written.
  // Throws std::bad_alloc, std::invalid_argument.
  KvCache(int num_layers, int num_pages, int num_heads, int head_dim, int limbs);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int num_layers, num_pages, num_heads, head_dim, padded_dim, limbs;

  uint8_t* keys(int layer, int64_t page, int head) const { return block(layer, page, head); }
  int8_t* values(int layer, int64_t page, int head) const {
    return reinterpret_cast<int8_t*>(block(layer, page, head) + codes_bytes());
  }
  float* key_scales(int layer, int64_t page, int head) const {
    return reinterpret_cast<float*>(block(layer, page, head) + 2 * codes_bytes());
  }
  float* value_scales(int layer, int64_t page, int head) const { return key_scales(layer, page, head) + kPageTokens; }
  size_t page_bytes() const { return static_cast<size_t>(num_layers) * static_cast<size_t>(num_heads) * block_bytes(); }

 private:
  size_t codes_bytes() const { return static_cast<size_t>(kPageTokens * padded_dim * limbs); }
  size_t block_bytes() const { return 2 * codes_bytes() + 2 * kPageTokens * sizeof(float); }
  uint8_t* block(int layer, int64_t page, int head) const {
    const size_t index = (static_cast<size_t>(page) * static_cast<size_t>(num_layers) + static_cast<size_t>(layer)) *
                             static_cast<size_t>(num_heads) +
                         static_cast<size_t>(head);
    return memory_ + index * block_bytes();
  }

  uint8_t* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace exactlm
