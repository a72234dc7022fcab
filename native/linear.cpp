#include "linear.h"

#include <algorithm>

namespace exactlm {
namespace {

constexpr int kBlockRows = 192;  // rows of a task: their packed limbs stay in the second-level cache
constexpr int kParallelPackRows = 16;

}  // namespace

bool has_valid_codes(const LinearWeights& weights) {
  if (weights.multipliers != nullptr) return true;
  const size_t steps = static_cast<size_t>(weights.num_tiles()) * static_cast<size_t>((weights.k + 3) / 4);
  for (size_t step = 0; step < steps; ++step) {
    const uint8_t* high = weights.codes + step * 128;
    uint8_t least = 255;
    for (int i = 0; i < 64; ++i) least = std::min(least, high[i]);
    if (least == 0) return false;
  }
  return true;
}

uint8_t* Scratch::get(size_t bytes) {
  if (storage_.size() < bytes + 64) storage_.resize(bytes + 64);
  const uintptr_t address = reinterpret_cast<uintptr_t>(storage_.data());
  return storage_.data() + (64 - address % 64) % 64;
}

void linear(const Isa& isa, Pool& pool, Scratch& scratch, const LinearWeights& weights, const int16_t* codes,
            size_t stride, const float* s_x, int num_rows, float* y, size_t ldy) {
  const DotTable& dot = *isa.dot;
  const size_t row_bytes = dot.packed_bytes(weights.k);
  uint8_t* packed = scratch.get(row_bytes * static_cast<size_t>(num_rows));
  const auto pack = [&](int first, int count) {
    dot.pack(codes + static_cast<size_t>(first) * stride, count, stride, weights.k,
             packed + static_cast<size_t>(first) * row_bytes);
  };
  if (num_rows < kParallelPackRows) {
    pack(0, num_rows);
  } else {
    const int blocks = (num_rows + kParallelPackRows - 1) / kParallelPackRows;
    pool.run(blocks, [&](int64_t b, int) {
      const int first = static_cast<int>(b) * kParallelPackRows;
      pack(first, std::min(kParallelPackRows, num_rows - first));
    });
  }

  const int num_tiles = weights.num_tiles();
  const size_t k4 = static_cast<size_t>((weights.k + 3) / 4),
               groups = static_cast<size_t>((weights.k + kGroup - 1) / kGroup);
  const int row_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  const int wanted = pool.num_threads() == 1 ? 1 : std::max(1, 8 * pool.num_threads() / row_blocks);
  const int chunk = std::max(1, num_tiles / wanted);
  const int chunks = (num_tiles + chunk - 1) / chunk;
  pool.run(static_cast<int64_t>(chunks) * row_blocks, [&](int64_t task, int) {
    const int first_tile = static_cast<int>(task % chunks) * chunk,
              first_row = static_cast<int>(task / chunks) * kBlockRows;
    const int tiles = std::min(chunk, num_tiles - first_tile), rows = std::min(kBlockRows, num_rows - first_row);
    const size_t tile = static_cast<size_t>(first_tile), row = static_cast<size_t>(first_row);
    const uint8_t* x = packed + row * row_bytes;
    const float* scales = weights.scales + tile * kTileRows;
    float* out = y + row * ldy + tile * kTileRows;
    if (weights.multipliers == nullptr) {
      dot.linear_w16(x, s_x + row, rows, weights.k, weights.codes + tile * k4 * 128, scales, tiles, out, ldy);
    } else {
      dot.linear_w8(x, s_x + row, rows, weights.k, weights.codes + tile * groups * kGroup * kTileRows,
                    weights.multipliers + tile * groups * kTileRows, scales, tiles, out, ldy);
    }
  });
}

}  // namespace exactlm
