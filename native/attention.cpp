#include "attention.h"

#include <algorithm>
#include <atomic>

#include "layout.h"

namespace exactlm {
namespace {

constexpr size_t kScoreBytes = 192 * 1024;  // scores of a task's rows: about what the second-level cache spares

int64_t sequence_of(const Batch& batch, int token) {
  const int32_t* end = batch.first_token + batch.num_sequences + 1;
  return std::upper_bound(batch.first_token, end, token) - batch.first_token - 1;
}

// What one task shares between its rows: one sequence, one key/value head.
struct Keys {
  int first_page, num_pages;          // of the sequence, as far as any row of the task looks
  std::vector<const int8_t*> values;  // pages
  std::vector<float> value_scales;    // [32 * num_pages]
};

struct Task {
  int sequence, first_token, num_tokens, kv_head, first_head, num_heads;
};

class TaskRunner {
 public:
  TaskRunner(const Isa& isa, const Batch& batch, const int16_t* query_codes, const float* query_scales, int num_heads,
             const KvCache& cache, int layer, float softmax_scale, int window, float* out)
      : isa_(isa),
        batch_(batch),
        query_codes_(query_codes),
        query_scales_(query_scales),
        num_heads_(num_heads),
        cache_(cache),
        layer_(layer),
        softmax_scale_(softmax_scale),
        window_(window),
        out_(out) {}

  Status run(const Task& task, Scratch& scratch) const {
    const int rows = task.num_tokens * task.num_heads;
    const int last = batch_.positions[task.first_token + task.num_tokens - 1];
    const int first = first_key(batch_.positions[task.first_token]);
    const int32_t* table =
        batch_.page_table + static_cast<size_t>(task.sequence) * static_cast<size_t>(batch_.max_pages);
    const Keys keys = gather(task, table, first / kPageTokens, last / kPageTokens + 1);

    const size_t width = static_cast<size_t>(keys.num_pages) * kPageTokens;
    const size_t row_bytes = isa_.dot->packed_bytes(cache_.padded_dim);
    const size_t count = static_cast<size_t>(rows), dp = static_cast<size_t>(cache_.padded_dim);
    uint8_t* memory = scratch.get(count * (row_bytes + 64 + width * 4) + 3 * width + 256 + dp * 8);
    uint8_t* packed = memory;
    float* row_scales =
        reinterpret_cast<float*>(packed + count * row_bytes);  // 64 bytes a row keep what follows aligned
    float* scores = row_scales + count * 16;
    int64_t* mixed = reinterpret_cast<int64_t*>(scores + count * width);
    uint8_t* limbs = reinterpret_cast<uint8_t*>(mixed + dp);

    for (int r = 0; r < rows; ++r) {
      const size_t head = query_head(task, r);
      isa_.dot->pack(query_codes_ + head * dp, 1, dp, cache_.padded_dim, packed + static_cast<size_t>(r) * row_bytes);
      row_scales[r] = query_scales_[head] * softmax_scale_;  // 8.1
    }
    score(task, table, keys, packed, row_scales, rows, scores, width);
    for (int r = 0; r < rows; ++r) {
      const Status status = finish_row(task, keys, r, scores + static_cast<size_t>(r) * width, width, limbs, mixed);
      if (status != kOk) return status;
    }
    return kOk;
  }

 private:
  int first_key(int position) const { return window_ > 0 ? std::max(0, position + 1 - window_) : 0; }

  size_t query_head(const Task& task, int row) const {  // index into [T, H]
    const int token = task.first_token + row / task.num_heads;
    return static_cast<size_t>(token) * static_cast<size_t>(num_heads_) +
           static_cast<size_t>(task.first_head + row % task.num_heads);
  }

  Keys gather(const Task& task, const int32_t* table, int first_page, int end_page) const {
    Keys keys{first_page, end_page - first_page, {}, {}};
    keys.values.reserve(static_cast<size_t>(keys.num_pages));
    keys.value_scales.resize(static_cast<size_t>(keys.num_pages) * kPageTokens);
    for (int i = 0; i < keys.num_pages; ++i) {
      const int page = table[first_page + i];
      keys.values.push_back(cache_.values(layer_, page, task.kv_head));
      std::copy_n(cache_.value_scales(layer_, page, task.kv_head), kPageTokens,
                  keys.value_scales.begin() + i * kPageTokens);
    }
    return keys;
  }

  void score(const Task& task, const int32_t* table, const Keys& keys, const uint8_t* packed, const float* row_scales,
             int rows, float* scores, size_t width) const {
    const auto multiply = cache_.limbs == 2 ? isa_.dot->linear_w16 : isa_.dot->score_k8;
    for (int i = 0; i < keys.num_pages; ++i) {
      const int page = table[keys.first_page + i];
      multiply(packed, row_scales, rows, cache_.padded_dim, cache_.keys(layer_, page, task.kv_head),
               cache_.key_scales(layer_, page, task.kv_head), kPageTokens / kTileRows,
               scores + static_cast<size_t>(i) * kPageTokens, width);
    }
  }

  Status finish_row(const Task& task, const Keys& keys, int row, float* scores, size_t width, uint8_t* limbs,
                    int64_t* mixed) const {
    const int position = batch_.positions[task.first_token + row / task.num_heads];
    const int begin = first_key(position) - keys.first_page * kPageTokens;
    const int end = position + 1 - keys.first_page * kPageTokens;
    const int first_page = begin / kPageTokens, end_page = (end + kPageTokens - 1) / kPageTokens;
    const size_t from = static_cast<size_t>(first_page) * kPageTokens, to = static_cast<size_t>(end_page) * kPageTokens;
    uint8_t* planes[3] = {limbs, limbs + width, limbs + 2 * width};
    uint8_t* inside[3] = {planes[0] + begin, planes[1] + begin, planes[2] + begin};
    for (uint8_t* plane : planes) {  // keys that do not take part weigh nothing
      std::fill(plane + from, plane + begin, uint8_t{0});
      std::fill(plane + end, plane + to, uint8_t{0});
    }
    float rescale = 0.0f;
    const Status status =
        isa_.elementwise->softmax(scores + begin, keys.value_scales.data() + begin, end - begin, inside, &rescale);
    if (status != kOk) return status;
    float* out = out_ + query_head(task, row) * static_cast<size_t>(cache_.head_dim);
    if (rescale == 0.0f) {
      std::fill_n(out, cache_.head_dim, 0.0f);
      return kOk;
    }
    const uint8_t* const used[3] = {planes[0] + from, planes[1] + from, planes[2] + from};
    const auto mix = cache_.limbs == 2 ? isa_.dot->mix_v16 : isa_.dot->mix_v8;
    mix(used, keys.values.data() + first_page, end_page - first_page, cache_.padded_dim, mixed);
    isa_.elementwise->finish_mix(mixed, cache_.head_dim, rescale, out);
    return kOk;
  }

  const Isa& isa_;
  const Batch& batch_;
  const int16_t* query_codes_;
  const float* query_scales_;
  int num_heads_;
  const KvCache& cache_;
  int layer_;
  float softmax_scale_;
  int window_;
  float* out_;
};

std::vector<Task> split(const Batch& batch, int num_heads, int num_kv_heads, int num_threads) {
  const int group = num_heads / num_kv_heads;
  // A step of single tokens has few tasks: then each query head is one of its own, so that threads share evenly.
  const int per_task = batch.num_sequences * num_kv_heads < 4 * num_threads ? 1 : group;
  std::vector<Task> tasks;
  for (int s = 0; s < batch.num_sequences; ++s) {
    const int begin = batch.first_token[s], end = batch.first_token[s + 1];
    for (int token = begin; token < end;) {
      const int context = (batch.positions[token] / kPageTokens + 2) * kPageTokens;
      const size_t row_bytes = static_cast<size_t>(context) * 4 * static_cast<size_t>(group);
      const int count = std::clamp(static_cast<int>(kScoreBytes / row_bytes), 1, std::min(16, end - token));
      const int heads = end - begin == 1 ? per_task : group;
      for (int h = 0; h < num_heads; h += heads) tasks.push_back({s, token, count, h / group, h, heads});
      token += count;
    }
  }
  return tasks;
}

}  // namespace

Status write_qkv(const Isa& isa, Pool& pool, const Batch& batch, const float* qkv, size_t ldq, int num_heads,
                 const float* cosine, const float* sine, KvCache& cache, int layer, int16_t* query_codes,
                 float* query_scales) {
  const ElementwiseTable& op = *isa.elementwise;
  const int d = cache.head_dim, dp = cache.padded_dim, half = d / 2;
  std::atomic<int> failed{0};
  const auto token_task = [&](int64_t token, int) {
    float rotated[kMaxHeadDim];
    int16_t codes[kMaxHeadDim];
    const size_t t = static_cast<size_t>(token);
    const float* c = cosine + t * static_cast<size_t>(half);
    const float* s = sine + t * static_cast<size_t>(half);
    const float* row = qkv + t * ldq;
    int status = kOk;
    for (int h = 0; h < num_heads; ++h) {
      op.rope(row + h * d, c, s, half, rotated);
      if (cache.limbs == 1) op.hadamard(rotated, d, 0);
      const size_t at = t * static_cast<size_t>(num_heads) + static_cast<size_t>(h);
      status |= op.quantise(rotated, d, query_codes + at * static_cast<size_t>(dp), dp, query_scales + at);
    }
    const size_t sequence = static_cast<size_t>(sequence_of(batch, static_cast<int>(token)));
    const int position = batch.positions[t], slot = position % kPageTokens;
    const int page =
        batch.page_table[sequence * static_cast<size_t>(batch.max_pages) + static_cast<size_t>(position / kPageTokens)];
    for (int h = 0; h < cache.num_heads; ++h) {
      const float* value = row + (num_heads + cache.num_heads + h) * d;
      float* s_k = cache.key_scales(layer, page, h) + slot;
      float* s_v = cache.value_scales(layer, page, h) + slot;
      op.rope(row + (num_heads + h) * d, c, s, half, rotated);
      if (cache.limbs == 1) op.hadamard(rotated, d, 1);
      status |= cache.limbs == 2 ? op.quantise(rotated, d, codes, d, s_k) : op.quantise8(rotated, d, codes, s_k);
      store_key(codes, d, dp, cache.limbs, slot, cache.keys(layer, page, h));
      status |= cache.limbs == 2 ? op.quantise(value, d, codes, d, s_v) : op.quantise8(value, d, codes, s_v);
      store_value(codes, d, dp, cache.limbs, slot, cache.values(layer, page, h));
    }
    if (status != kOk) failed.store(1);
  };
  constexpr int kTokensPerTask = 4;
  const int tasks = (batch.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  pool.run(tasks, [&](int64_t task, int thread) {
    const int64_t end = std::min<int64_t>(batch.num_tokens, (task + 1) * kTokensPerTask);
    for (int64_t token = task * kTokensPerTask; token < end; ++token) token_task(token, thread);
  });
  return failed.load() ? kNonFinite : kOk;
}

Status attend(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const Batch& batch, const int16_t* query_codes,
              const float* query_scales, int num_heads, const KvCache& cache, int layer, float softmax_scale,
              int window, float* out) {
  const TaskRunner runner(isa, batch, query_codes, query_scales, num_heads, cache, layer, softmax_scale, window, out);
  const std::vector<Task> tasks = split(batch, num_heads, cache.num_heads, pool.num_threads());
  std::atomic<int> failed{0};
  pool.run(static_cast<int64_t>(tasks.size()), [&](int64_t i, int thread) {
    if (runner.run(tasks[static_cast<size_t>(i)], scratch[static_cast<size_t>(thread)]) != kOk) failed.store(1);
  });
  return failed.load() ? kNonFinite : kOk;
}

}  // namespace exactlm
