// Which token follows: adjusted logits, cuts and draws of rows of logits. spec/sampling.md 3 to 6.
#pragma once
#include <cstdint>
#include <vector>

#include "isa.h"
#include "linear.h"
#include "pool.h"

namespace exactlm {

constexpr int64_t kOneQ40 = int64_t{1} << 40;
constexpr int kMaxSampled = 1 << 21;  // ids of a row: the sum of their weights stays below 2^62

// Distinct ids with their bias; distinct ids of prompt and answer with their counts in the answer.
struct Adjustment {
  const int64_t* bias_ids;
  const float* bias;
  size_t num_bias;
  const int64_t* history_ids;
  const int32_t* counts;
  size_t num_history;
  double repetition, frequency, presence;
};

// Clause 3 on the first n values of x; kNonFinite if one of them is not finite afterwards.
Status adjust_row(const Isa& isa, float* x, int n, const Adjustment& adjustment);

// One entry a row: temperature 0 or from 0.001 to 1000, min_weight and top_p_q40 up to 2^40, top_k 0 for off.
struct Sampling {
  const double* temperature;
  const int64_t* min_weight;
  const int64_t* top_k;
  const int64_t* top_p_q40;
  const uint64_t* u;
};

// chosen[r] among the first n <= kMaxSampled values of row r, where -infinity is an excluded id; -1 if one is NaN or
// +infinity or all are excluded. Clauses 4 to 6.
void sample_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const float* x, size_t ldx, int num_rows,
                 int n, const Sampling& sampling, int64_t* chosen);

}  // namespace exactlm
