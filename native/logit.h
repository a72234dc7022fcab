// Choices and probabilities from logits. spec/numerics.md 10.3 to 10.5.
#pragma once
#include <cstdint>

#include "isa.h"
#include "pool.h"

namespace exactlm {

// best[t] = argmax of the first n values of row t, or -1 where one is not finite.
void argmax_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, int64_t* best);

// out[t, i] = log-probability of i among the first n values of row t; kNonFinite if one is not finite.
Status log_probability_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, double* out);

}  // namespace exactlm
