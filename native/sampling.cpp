#include "sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "fp_environment.h"

namespace exactlm {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr int kBucketBits = 11;
constexpr size_t kSorted = 48;  // so few entries are sorted
constexpr float kNear = 10.0f;  // ids that weigh 2^-10 of the first hold most of the weight, and are few
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The beginning of an order: how many ids, and the sum of their weights.
struct Prefix {
  int64_t sum = 0, count = 0;
  bool reaches(const Prefix& limit) const { return sum >= limit.sum || count >= limit.count; }
};

struct Place {
  int64_t sum;  // of the weights up to this id and with it
  int64_t id;
};

// Counts and sums of weights by the upper bits of keys, the largest keys first.
class Histogram {
 public:
  // For keys from low to high.
  Histogram(uint32_t high, uint32_t low)
      : high_(high), shift_(std::max(0, static_cast<int>(std::bit_width(high - low)) - kBucketBits)) {}

  void add(uint32_t key, int64_t weight) {
    Prefix& bucket = buckets_[bucket_of(key)];
    bucket.sum += weight;
    bucket.count += 1;
  }

  size_t bucket_of(uint32_t key) const { return (high_ - key) >> shift_; }
  size_t count_of(size_t bucket) const { return static_cast<size_t>(buckets_[bucket].count); }

  // The bucket in which `limit` is reached, as it must be; `before` grows by those that precede it.
  size_t find(const Prefix& limit, Prefix& before) const {
    for (size_t i = 0;; ++i) {
      const Prefix after = {before.sum + buckets_[i].sum, before.count + buckets_[i].count};
      if (after.reaches(limit)) return i;
      before = after;
    }
  }

 private:
  std::array<Prefix, size_t{1} << kBucketBits> buckets_{};
  uint32_t high_;
  int shift_;
};

// Ids of one bucket, in the order of clause 4 once they are sorted.
class Bucket {
 public:
  struct Entry {
    int64_t weight;
    uint32_t key;
    int32_t id;
  };
  std::vector<Entry> entries;  // the lowest id first

  // The place at which what precedes this bucket and its own beginning reach `limit`. Histograms of ever lower bits
  // leave few to sort.
  Place find(const Prefix& limit, Prefix before) {
    while (entries.size() > kSorted) {
      const auto [low, high] = std::minmax_element(entries.begin(), entries.end(),
                                                   [](const Entry& a, const Entry& b) { return a.key < b.key; });
      if (low->key == high->key) return walk(limit, before);
      Histogram histogram(high->key, low->key);
      for (const Entry& e : entries) histogram.add(e.key, e.weight);
      const size_t wanted = histogram.find(limit, before);
      std::erase_if(entries, [&](const Entry& e) { return histogram.bucket_of(e.key) != wanted; });
    }
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key > b.key : a.id < b.id; });
    return walk(limit, before);
  }

 private:
  Place walk(const Prefix& limit, Prefix before) const {
    for (size_t i = 0;; ++i) {
      before = {before.sum + entries[i].weight, before.count + 1};
      if (before.reaches(limit)) return {before.sum, entries[i].id};
    }
  }
};

// The ids of a row in the order of clause 4, of which only the part that holds the place asked for is sorted.
class Ranking {
 public:
  // near: any key; most places asked for should be among those that are not below it, and those be few.
  Ranking(const uint32_t* keys, const int64_t* weights, int n, int64_t first, uint32_t near)
      : keys_(keys), weights_(weights), n_(n), first_(first), near_(std::max(near, 1u)) {}

  // The first place at which the beginning of the order reaches `limit`, as the whole must.
  Place find(const Prefix& limit) {
    if (Prefix{kOneQ40, 1}.reaches(limit)) return {kOneQ40, first_};
    if (near_ids_.empty()) gather();
    if (near_sum_.reaches(limit)) {
      bucket_.entries = near_ids_;
      return bucket_.find(limit, Prefix());
    }
    if (!histogram_) count();
    Prefix before;
    const size_t wanted = histogram_->find(limit, before);
    bucket_.entries.clear();
    bucket_.entries.reserve(histogram_->count_of(wanted));
    for (int i = 0; i < n_; ++i) {
      if (keys_[i] != 0 && histogram_->bucket_of(keys_[i]) == wanted)
        bucket_.entries.push_back({weights_[i], keys_[i], i});
    }
    return bucket_.find(limit, before);
  }

 private:
  void gather() {
    for (int i = 0; i < n_; ++i) {
      if (keys_[i] < near_) continue;
      near_ids_.push_back({weights_[i], keys_[i], i});
      near_sum_.sum += weights_[i];
      near_sum_.count += 1;
    }
  }

  void count() {
    histogram_.emplace(keys_[first_], 0);
    for (int i = 0; i < n_; ++i) {
      if (keys_[i] != 0) histogram_->add(keys_[i], weights_[i]);
    }
  }

  const uint32_t* keys_;  // 0: does not take part
  const int64_t* weights_;
  int n_;
  int64_t first_;
  uint32_t near_;
  std::vector<Bucket::Entry> near_ids_;  // the beginning of the order, by id
  Prefix near_sum_;
  std::optional<Histogram> histogram_;
  Bucket bucket_;
};

struct Row {
  double temperature;
  int64_t min_weight, top_k, top_p_q40;
  uint64_t u;
};

int64_t sample(const ElementwiseTable& op, Scratch& scratch, const float* x, int n, const Row& row) {
  const int64_t best = op.argmax_allowed(x, n);
  if (best < 0 || row.temperature == 0.0) return best;  // 4.2
  const float c = static_cast<float>(kLog2E / row.temperature);
  // An id that weighs nothing takes part in nothing but top_k's count.
  const int64_t least = row.top_k > 0 ? row.min_weight : std::max<int64_t>(row.min_weight, 1);
  const size_t size = static_cast<size_t>(n);
  auto* weights = reinterpret_cast<int64_t*>(scratch.get(size * (sizeof(int64_t) + sizeof(uint32_t))));
  auto* keys = reinterpret_cast<uint32_t*>(weights + size);
  int64_t sum = op.weigh(x, n, x[best], c, least, keys, weights);  // 5.1, 5.2
  const float near = x[best] - kNear / c;
  uint32_t near_key;
  int64_t near_weight;
  op.weigh(&near, 1, x[best], c, 0, &near_key, &near_weight);
  Ranking ranking(keys, weights, n, best, near_key);
  if (row.top_k > 0 && row.top_k < n - std::count(keys, keys + n, 0u)) {  // 5.3
    sum = ranking.find({kNoLimit, row.top_k}).sum;
  }
  if (row.top_p_q40 < kOneQ40) {                                                                      // 5.4
    const auto product = static_cast<unsigned __int128>(row.top_p_q40) * static_cast<uint64_t>(sum);  // < 2^102
    sum = ranking.find({static_cast<int64_t>((product + (kOneQ40 - 1)) >> 40), kNoLimit}).sum;
  }
  const auto product = static_cast<unsigned __int128>(row.u) * static_cast<uint64_t>(sum);
  return ranking.find({static_cast<int64_t>(product >> 64) + 1, kNoLimit}).id;  // 6.2
}

}  // namespace

Status adjust_row(const Isa& isa, float* x, int n, const Adjustment& a) {
  const FpEnvironment environment;
  const float r = static_cast<float>(a.repetition), f = static_cast<float>(a.frequency),
              p = static_cast<float>(a.presence);
  for (size_t i = 0; i < a.num_bias; ++i) x[a.bias_ids[i]] = x[a.bias_ids[i]] + a.bias[i];  // 3.1
  for (size_t i = 0; i < a.num_history; ++i) {
    float value = x[a.history_ids[i]];
    if (r != 1.0f) value = value > 0.0f ? value / r : value * r;  // 3.2
    if (a.counts[i] != 0) {
      const float product = f * static_cast<float>(a.counts[i]);
      value = value - product;  // 3.3
      value = value - p;        // 3.4
    }
    x[a.history_ids[i]] = value;
  }
  return isa.elementwise->argmax(x, n) < 0 ? kNonFinite : kOk;  // 3.5
}

void sample_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const float* x, size_t ldx, int num_rows,
                 int n, const Sampling& s, int64_t* chosen) {
  pool.run(num_rows, [&](int64_t r, int thread) {
    const Row row = {s.temperature[r], s.min_weight[r], s.top_k[r], s.top_p_q40[r], s.u[r]};
    chosen[r] =
        sample(*isa.elementwise, scratch[static_cast<size_t>(thread)], x + static_cast<size_t>(r) * ldx, n, row);
  });
}

}  // namespace exactlm
