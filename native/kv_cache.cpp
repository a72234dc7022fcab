#include "kv_cache.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>

namespace exactlm {

KvCache::KvCache(int layers, int pages, int heads, int dim, int num_limbs)
    : num_layers(layers),
      num_pages(pages),
      num_heads(heads),
      head_dim(dim),
      padded_dim((dim + 15) / 16 * 16),
      limbs(num_limbs) {
  if (layers < 1 || pages < 1 || heads < 1 || dim < 1 || dim > kMaxHeadDim || (num_limbs != 1 && num_limbs != 2))
    throw std::invalid_argument("a KV cache needs layers, pages and heads, head_dim up to 256, and 1 or 2 limbs");
  size_ = static_cast<size_t>(num_pages) * page_bytes();
  void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<uint8_t*>(p);
}

KvCache::~KvCache() { munmap(memory_, size_); }

}  // namespace exactlm
