// Elementwise operations over the rows of a step, shared out over the pool.
#pragma once
#include <cstdint>
#include <vector>

#include "isa.h"
#include "linear.h"
#include "pool.h"

namespace exactlm {

void embed_rows(Pool& pool, const LinearWeights& table, const int64_t* ids, int num_rows, int hidden, float* x);

// x[r] += y[r] (y may be null), then norm and code16, for r = rows[i] (rows null: r = i); output row i.
Status norm_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, float* x, const float* y, size_t ldy,
                 const int32_t* rows, int num_rows, int hidden, const float* gain, double eps, int16_t* codes,
                 size_t stride, float* scales);

Status quantise_rows(const Isa& isa, Pool& pool, const float* x, size_t ldx, int num_rows, int n, int16_t* codes,
                     size_t stride, float* scales);

// Row t of gate_up holds n gate values, then n up values.
Status swiglu_rows(const Isa& isa, Pool& pool, std::vector<Scratch>& scratch, const float* gate_up, size_t ld,
                   int num_rows, int n, int16_t* codes, size_t stride, float* scales);

void add_bias_rows(const Isa& isa, Pool& pool, float* y, size_t ldy, int num_rows, int n, const float* bias);

}  // namespace exactlm
