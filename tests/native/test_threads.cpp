// The drivers over the thread pool, linear(), write_qkv() and attend(): for every instruction set and number of threads
// the bits of a plain computation, also when the caller has set another rounding mode.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <limits>
#include <new>

#include "attention.h"
#include "check.h"
#include "layout.h"
#include "linear.h"

namespace exactlm::test {
namespace {

const int kThreadCounts[] = {1, 2, 3, 5, 8};

size_t at(int64_t i) { return static_cast<size_t>(i); }

std::string where(const Isa& isa, int num_threads) {
  return std::string(isa.dot->isa) + " threads " + std::to_string(num_threads);
}

// Calls run with another rounding mode set; true if the mode is the same afterwards.
template <class Run>
bool keeps_rounding_mode(const Run& run) {
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  run();
  const bool is_kept = std::fegetround() == FE_UPWARD;
  std::fesetround(before);
  return is_kept;
}

void check_linear(int num_rows, int num_tiles, int k, bool is_w8, Random& random) {
  const size_t stride = at((k + kCodeAlign - 1) / kCodeAlign * kCodeAlign), ldy = at(num_tiles * kTileRows + 5);
  const int groups = (k + kGroup - 1) / kGroup;
  std::vector<int16_t> codes(at(num_rows) * stride);
  for (int m = 0; m < num_rows; ++m)
    for (int i = 0; i < k; ++i) codes[at(m) * stride + at(i)] = static_cast<int16_t>(random.between(-32639, 32639));
  std::vector<float> s_x(at(num_rows)), s_w(at(num_tiles * kTileRows));
  for (float& s : s_x) s = random.finite(-20, 0);
  for (float& s : s_w) s = random.finite(-20, 0);
  std::vector<uint8_t> w(at(num_tiles * kTileRows) * at(is_w8 ? groups * kGroup : (k + 3) / 4 * 8));
  for (uint8_t& byte : w) byte = static_cast<uint8_t>(random.between(1, 255));  // a high limb is at least -127
  std::vector<uint16_t> multipliers(at(num_tiles * kTileRows * groups));
  for (uint16_t& m : multipliers) m = static_cast<uint16_t>(random.between(0, 65535));
  const LinearWeights weights = {num_tiles * kTileRows - 3, k, w.data(), is_w8 ? multipliers.data() : nullptr,
                                 s_w.data()};

  const DotTable& scalar = *isas()[0]->dot;
  std::vector<uint8_t> packed(scalar.packed_bytes(k) * at(num_rows));
  std::vector<float> expected(at(num_rows) * ldy, -1.0f);
  scalar.pack(codes.data(), num_rows, stride, k, packed.data());
  if (is_w8) {
    scalar.linear_w8(packed.data(), s_x.data(), num_rows, k, w.data(), multipliers.data(), s_w.data(), num_tiles,
                     expected.data(), ldy);
  } else {
    scalar.linear_w16(packed.data(), s_x.data(), num_rows, k, w.data(), s_w.data(), num_tiles, expected.data(), ldy);
  }
  for (const int num_threads : kThreadCounts) {
    Pool pool(num_threads);
    Scratch scratch;
    for (const Isa* isa : isas()) {
      const std::string what = where(*isa, num_threads) + (is_w8 ? " w8" : " w16") + " rows " +
                               std::to_string(num_rows) + " tiles " + std::to_string(num_tiles);
      std::vector<float> y(expected.size(), -1.0f);
      const auto run = [&] {
        linear(*isa, pool, scratch, weights, codes.data(), stride, s_x.data(), num_rows, y.data(), ldy);
      };
      run();
      CHECK(same_bits(y.data(), expected.data(), y.size()), what);
      std::fill(y.begin(), y.end(), -1.0f);
      CHECK(keeps_rounding_mode(run), what);
      CHECK(same_bits(y.data(), expected.data(), y.size()), what + " rounding upwards");
    }
  }
}

struct Shape {
  int num_heads, num_kv_heads, d, limbs, window;
  int padded_dim() const { return (d + 15) / 16 * 16; }
};

struct Sequence {
  int begin, end;  // positions whose outputs are asked for; the cache holds [0, end)
};

// Tokens of several sequences with their pages, scattered over the cache.
struct Tokens {
  std::vector<int32_t> first{0}, positions, page_table;
  int max_pages = 0;

  Tokens(const std::vector<Sequence>& sequences, bool from_start) {
    for (const Sequence& s : sequences) {
      for (int p = from_start ? 0 : s.begin; p < s.end; ++p) positions.push_back(p);
      first.push_back(static_cast<int32_t>(positions.size()));
      max_pages = std::max(max_pages, s.end / kPageTokens + 1);
    }
    const int count = static_cast<int>(sequences.size());
    for (int s = 0; s < count; ++s)
      for (int i = 0; i < max_pages; ++i) page_table.push_back(num_pages() - 1 - (i * count + s));
  }
  int num_pages() const { return static_cast<int>(first.size() - 1) * max_pages; }
  Batch batch() const {
    return {static_cast<int>(positions.size()),
            static_cast<int>(first.size()) - 1,
            first.data(),
            positions.data(),
            page_table.data(),
            max_pages};
  }
};

// Everything a run leaves: codes of the queries, and outputs.
struct Outcome {
  Status status = kOk;
  std::vector<int16_t> query_codes;
  std::vector<float> query_scales, out;
};

struct Problem {
  Shape shape;
  std::vector<Sequence> sequences;
  Tokens all, asked;
  float scale;
  size_t ldq;
  std::vector<float> qkv, cosine, sine;

  Problem(const Shape& shape_, const std::vector<Sequence>& sequences_, Random& random)
      : shape(shape_),
        sequences(sequences_),
        all(sequences, true),
        asked(sequences, false),
        scale(static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(shape.d)))),
        ldq(at((shape.num_heads + 2 * shape.num_kv_heads) * shape.d + 3)),
        qkv(all.positions.size() * ldq),
        cosine(all.positions.size() * at(shape.d / 2)),
        sine(cosine.size()) {
    for (float& x : qkv) x = random.finite(-6, 2);
    for (float& x : cosine) x = random.finite(-3, -1);
    for (float& x : sine) x = random.finite(-3, -1);
  }

  // Row of `all` that holds token `t` of `asked`.
  size_t row_of(size_t t) const {
    size_t s = 0;
    while (at(asked.first[s + 1]) <= t) ++s;
    return at(all.first[s] + asked.positions[t]);
  }

  size_t query_size() const { return at(shape.num_heads * shape.padded_dim()); }
};

void select_queries(const Problem& problem, const Outcome& outcome, std::vector<int16_t>& codes,
                    std::vector<float>& scales) {
  const size_t heads = at(problem.shape.num_heads), size = problem.query_size();
  for (size_t t = 0; t < problem.asked.positions.size(); ++t) {
    const size_t row = problem.row_of(t);
    codes.insert(codes.end(), outcome.query_codes.data() + row * size, outcome.query_codes.data() + (row + 1) * size);
    scales.insert(scales.end(), outcome.query_scales.data() + row * heads,
                  outcome.query_scales.data() + (row + 1) * heads);
  }
}

Status write(const Problem& problem, const Isa& isa, Pool& pool, KvCache& cache, Outcome& outcome) {
  outcome.query_codes.assign(problem.all.positions.size() * problem.query_size(), 0);
  outcome.query_scales.assign(problem.all.positions.size() * at(problem.shape.num_heads), 0.0f);
  return write_qkv(isa, pool, problem.all.batch(), problem.qkv.data(), problem.ldq, problem.shape.num_heads,
                   problem.cosine.data(), problem.sine.data(), cache, 0, outcome.query_codes.data(),
                   outcome.query_scales.data());
}

KvCache make_cache(const Problem& problem) {
  return KvCache(1, problem.all.num_pages(), problem.shape.num_kv_heads, problem.shape.d, problem.shape.limbs);
}

Outcome run(const Problem& problem, const Isa& isa, Pool& pool) {
  KvCache cache = make_cache(problem);
  Outcome outcome;
  outcome.status = write(problem, isa, pool, cache, outcome);
  if (outcome.status != kOk) return outcome;
  std::vector<int16_t> codes;
  std::vector<float> scales;
  select_queries(problem, outcome, codes, scales);
  outcome.out.resize(problem.asked.positions.size() * at(problem.shape.num_heads * problem.shape.d));
  std::vector<Scratch> scratch(at(pool.num_threads()));
  outcome.status = attend(isa, pool, scratch, problem.asked.batch(), codes.data(), scales.data(),
                          problem.shape.num_heads, cache, 0, problem.scale, problem.shape.window, outcome.out.data());
  return outcome;
}

// One query over its keys as spec 8 says, from the codes in the cache.
void attend_plainly(const Problem& problem, const KvCache& cache, const int32_t* pages, int position, int kv_head,
                    const int16_t* query, float query_scale, float* out) {
  const ElementwiseTable& scalar = *isas()[0]->elementwise;
  const Shape& shape = problem.shape;
  const int first = shape.window > 0 ? std::max(0, position + 1 - shape.window) : 0, n = position + 1 - first;
  const float qc = query_scale * problem.scale;
  std::vector<float> t(at(n)), s_v(at(n));
  std::vector<int16_t> codes(at(shape.d));
  for (int j = 0; j < n; ++j) {
    const int page = pages[(first + j) / kPageTokens], slot = (first + j) % kPageTokens;
    load_key(cache.keys(0, page, kv_head), shape.d, cache.padded_dim, shape.limbs, slot, codes.data());
    int64_t acc = 0;
    for (int i = 0; i < shape.d; ++i) acc += int64_t{query[i]} * codes[at(i)];
    const float scaled = round_to_fp32(acc) * cache.key_scales(0, page, kv_head)[slot];
    t[at(j)] = scaled * qc;
    s_v[at(j)] = cache.value_scales(0, page, kv_head)[slot];
  }
  std::vector<uint8_t> low(at(n)), middle(at(n)), high(at(n));
  uint8_t* const limbs[3] = {low.data(), middle.data(), high.data()};
  float rescale = 0.0f;
  scalar.softmax(t.data(), s_v.data(), n, limbs, &rescale);
  std::vector<int64_t> sums(at(shape.d));
  for (int j = 0; j < n; ++j) {
    const int page = pages[(first + j) / kPageTokens], slot = (first + j) % kPageTokens;
    const int64_t p = low[at(j)] + 256 * middle[at(j)] + 65536 * high[at(j)];
    load_value(cache.values(0, page, kv_head), shape.d, cache.padded_dim, shape.limbs, slot, codes.data());
    for (int i = 0; i < shape.d; ++i) sums[at(i)] += p * codes[at(i)];
  }
  for (int i = 0; i < shape.d; ++i) out[i] = round_to_fp32(sums[at(i)]) * rescale;
}

Outcome run_plainly(const Problem& problem) {
  const Shape& shape = problem.shape;
  KvCache cache = make_cache(problem);
  Pool pool(1);
  Outcome outcome;
  outcome.status = write(problem, *isas()[0], pool, cache, outcome);
  std::vector<int16_t> codes;
  std::vector<float> scales;
  select_queries(problem, outcome, codes, scales);
  outcome.out.resize(problem.asked.positions.size() * at(shape.num_heads * shape.d));
  for (size_t s = 0; s < problem.sequences.size(); ++s) {
    const int32_t* pages = problem.asked.page_table.data() + s * at(problem.asked.max_pages);
    for (int t = problem.asked.first[s]; t < problem.asked.first[s + 1]; ++t) {
      for (int h = 0; h < shape.num_heads; ++h) {
        const size_t head = at(t * shape.num_heads + h);
        attend_plainly(problem, cache, pages, problem.asked.positions[at(t)],
                       h / (shape.num_heads / shape.num_kv_heads), codes.data() + head * at(shape.padded_dim()),
                       scales[head], outcome.out.data() + head * at(shape.d));
      }
    }
  }
  return outcome;
}

void check_attention(const Shape& shape, const std::vector<Sequence>& sequences, Random& random) {
  const Problem problem(shape, sequences, random);
  const Outcome expected = run_plainly(problem);
  for (const int num_threads : kThreadCounts) {
    Pool pool(num_threads);
    for (const Isa* isa : isas()) {
      const std::string what = where(*isa, num_threads) + " d " + std::to_string(shape.d) + " limbs " +
                               std::to_string(shape.limbs) + " window " + std::to_string(shape.window);
      Outcome outcome = run(problem, *isa, pool);
      const auto check_outcome = [&](const char* mode) {
        CHECK(outcome.status == kOk, what + mode);
        CHECK(outcome.query_codes == expected.query_codes, what + mode);
        CHECK(same_bits(outcome.out.data(), expected.out.data(), expected.out.size()), what + mode);
      };
      check_outcome("");
      CHECK(keeps_rounding_mode([&] { outcome = run(problem, *isa, pool); }), what);
      check_outcome(" rounding upwards");
    }
  }
  float largest = 0.0f;
  for (const float x : expected.out) largest = std::max(largest, std::fabs(x));
  CHECK(largest > 0x1p-8f && largest < 8.0f, "an average of values lies between them and is not nothing");
}

// A value that is not finite, in a query, a key or a value, is reported whichever thread meets it.
void check_non_finite(Random& random) {
  const Shape shape = {4, 2, 16, 2, 0};
  for (const int head : {0, 5, 7}) {
    Problem problem(shape, {{0, 40}, {20, 21}}, random);
    problem.qkv[problem.ldq * 33 + at(head * shape.d + 2)] = std::numeric_limits<float>::quiet_NaN();
    for (const int num_threads : kThreadCounts) {
      Pool pool(num_threads);
      for (const Isa* isa : isas()) CHECK(run(problem, *isa, pool).status == kNonFinite, where(*isa, num_threads));
    }
  }
  const Problem problem(shape, {{39, 40}, {20, 21}}, random);
  for (const Isa* isa : isas()) {
    Pool pool(3);
    KvCache cache = make_cache(problem);
    Outcome outcome;
    CHECK(write(problem, *isa, pool, cache, outcome) == kOk, isa->dot->isa);
    std::vector<int16_t> codes;
    std::vector<float> scales, out(at(2 * shape.num_heads * shape.d));
    select_queries(problem, outcome, codes, scales);
    scales[6] = 0x1p127f;  // a score beyond fp32
    std::vector<Scratch> scratch(3);
    CHECK(attend(*isa, pool, scratch, problem.asked.batch(), codes.data(), scales.data(), shape.num_heads, cache, 0,
                 problem.scale, 0, out.data()) == kNonFinite,
          isa->dot->isa);
  }
}

// What a task throws reaches the caller when no thread works on the job any more, and the pool goes on.
void check_errors() {
  for (const int num_threads : kThreadCounts) {
    Pool pool(num_threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::atomic<int> working{0}, done{0};
      bool is_caught = false;
      try {
        pool.run(64, [&](int64_t i, int) {
          working.fetch_add(1);
          if (i % 8 == repeat % 8) {
            working.fetch_sub(1);
            throw std::bad_alloc();
          }
          working.fetch_sub(1);
        });
      } catch (const std::bad_alloc&) {
        is_caught = working.load() == 0;
      }
      CHECK(is_caught, "threads " + std::to_string(num_threads));
      pool.run(64, [&](int64_t, int) { done.fetch_add(1); });
      CHECK(done.load() == 64, "threads " + std::to_string(num_threads));
    }
  }
}

}  // namespace

void test_threads() {
  Random random(20);
  for (const bool is_w8 : {false, true}) {
    check_linear(1, 1, 33, is_w8, random);
    check_linear(1, 21, 172, is_w8, random);
    check_linear(7, 13, 96, is_w8, random);
    check_linear(40, 9, 64, is_w8, random);
    check_linear(is_short() ? 193 : 401, 3, 65, is_w8, random);  // more rows than a task takes
  }
  const std::vector<Sequence> decode = {{0, 1}, {31, 32}, {32, 33}, {100, 101}}, prefill = {{0, 37}},
                              mixed = {{50, 83}, {7, 8}, {0, 5}, {64, 66}};
  for (const int limbs : {1, 2}) {
    for (const int window : {0, 1, 40}) {
      check_attention({4, 2, 64, limbs, window}, decode, random);
      check_attention({3, 1, 6, limbs, window}, prefill, random);
      check_attention({6, 3, 80, limbs, window}, mixed, random);
    }
  }
  check_non_finite(random);
  check_errors();
}

}  // namespace exactlm::test
