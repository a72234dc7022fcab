// Cases for the kernels in plain row-major codes, with the exact result by the shortest possible code, and runners
// that lay them out as kernels.h says, between inaccessible pages, and count the outputs that differ.
#pragma once
#include "check.h"

namespace exactlm::test {

enum class Weights { kW16, kW8, kKeys8 };

constexpr int kMaxCode = 32639;

struct LinearCase {
  Weights kind = Weights::kW16;
  int num_rows = 0, num_tiles = 0, k = 0;
  std::vector<int16_t> x;             // [num_rows][k]
  std::vector<float> s_x;             // [num_rows]
  std::vector<int16_t> w;             // [16 * num_tiles][k]
  std::vector<uint16_t> multipliers;  // [16 * num_tiles][groups], w8 only
  std::vector<float> s_w;             // [16 * num_tiles]

  LinearCase(Weights kind, int num_rows, int num_tiles, int k);  // zeros, scales 1, multipliers 1
  int num_outputs() const { return kTileRows * num_tiles; }
  int num_groups() const { return (k + kGroup - 1) / kGroup; }
  int16_t& x_at(int m, int i) { return x[static_cast<size_t>(m * k + i)]; }
  int16_t& w_at(int n, int i) { return w[static_cast<size_t>(n) * static_cast<size_t>(k) + static_cast<size_t>(i)]; }
  uint16_t& multiplier_at(int n, int g) { return multipliers[static_cast<size_t>(n * num_groups() + g)]; }
  std::string name() const;
};

int64_t exact_sum(const LinearCase& problem, int m, int n);  // spec 4.1

// How arrays are placed: against the page after them or before them, and how far apart rows of y lie.
struct Placement {
  Edge edge = Edge::kEnd;
  int y_gap = 0;
};

// Outputs (or untouched elements between them) whose bits are not those of spec 4.1, 4.2.
int count_linear_mismatches(const DotTable& table, const LinearCase& problem, Placement placement = {});

struct MixCase {
  int num_limbs = 2, dp = 16, num_pages = 1;
  std::vector<uint32_t> p;                   // [32 * num_pages], below 2^24
  std::vector<std::vector<int16_t>> values;  // distinct pages [32][dp]; page i of the row is values[i % size]

  std::string name() const;
};

int count_mix_mismatches(const DotTable& table, const MixCase& problem, Edge edge = Edge::kEnd);

}  // namespace exactlm::test
