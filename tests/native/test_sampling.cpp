// Choices of every instruction set against a plain computation that sorts the whole row: ties, zeros of both signs,
// excluded ids, narrow and huge spreads, every combination of cuts, the ends of u; also beside inaccessible pages.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <numeric>

#include "check.h"
#include "sampling.h"

namespace exactlm::test {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Row {
  double temperature;
  int64_t min_weight, top_k, top_p_q40;
  uint64_t u;
};

// Clauses 4 to 6 as they read; weights come from the scalar table, since exp2 has a test of its own.
int64_t choose_plainly(const std::vector<float>& x, const Row& row) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] != kExcluded) order.push_back(static_cast<int64_t>(i));
  if (order.empty()) return -1;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[at(a)] > x[at(b)]; });
  if (row.temperature == 0.0) return order[0];
  const float c = static_cast<float>(0x1.71547652b82fep+0 / row.temperature), top = x[at(order[0])];
  std::vector<int64_t> ids, weights;
  for (const int64_t id : order) {
    const float difference = x[at(id)] - top, scaled = difference * c;
    float e = 0.0f;
    isas()[0]->elementwise->exp2(&scaled, 1, &e);
    const int64_t weight = std::llrint(static_cast<double>(e) * 0x1p40);
    if (weight < row.min_weight) continue;
    ids.push_back(id);
    weights.push_back(weight);
  }
  if (row.top_k > 0 && at(row.top_k) < weights.size()) weights.resize(at(row.top_k));
  using Wide = unsigned __int128;
  const auto wide = [](int64_t value) { return static_cast<Wide>(static_cast<uint64_t>(value)); };
  const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  int64_t running = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    running += weights[i];
    if ((wide(running) << 40) >= wide(row.top_p_q40) * wide(sum)) weights.resize(i + 1);
  }
  const int64_t kept = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  const int64_t v = static_cast<int64_t>((wide(kept) * row.u) >> 64);
  running = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    running += weights[i];
    if (running > v) return ids[i];
  }
  return -2;
}

float value_of(int kind, Random& random) {
  switch (kind) {
    case 0:
      return static_cast<float>(random.between(-2, 2));
    case 1:
      return random.between(0, 1) == 0 ? 0.0f : -0.0f;
    case 2:
      return 1.0f + 0x1p-23f * static_cast<float>(random.between(0, 4095));
    case 3:
      return random.finite(-126, 126);
    case 4:
      return random.between(0, 99) == 0 ? kExcluded : random.finite(-3, 3);
    default:
      return 2.5f;
  }
}

void check_row(const std::vector<float>& x, const std::vector<Row>& rows, const std::string& detail) {
  const int count = static_cast<int>(rows.size()), n = static_cast<int>(x.size());
  std::vector<double> temperature;
  std::vector<int64_t> min_weight, top_k, top_p, expected;
  std::vector<uint64_t> u;
  std::vector<float> table;
  for (const Row& row : rows) {
    temperature.push_back(row.temperature);
    min_weight.push_back(row.min_weight);
    top_k.push_back(row.top_k);
    top_p.push_back(row.top_p_q40);
    u.push_back(row.u);
    table.insert(table.end(), x.begin(), x.end());
    expected.push_back(choose_plainly(x, row));
  }
  const Guarded<float> guarded(table);
  const Sampling sampling = {temperature.data(), min_weight.data(), top_k.data(), top_p.data(), u.data()};
  for (const Isa* isa : isas()) {
    Pool pool(2);
    std::vector<Scratch> scratch(2);
    std::vector<int64_t> chosen(rows.size(), -7);
    const int before = std::fegetround();
    std::fesetround(FE_UPWARD);
    sample_rows(*isa, pool, scratch, guarded.data(), x.size(), count, n, sampling, chosen.data());
    std::fesetround(before);
    CHECK(chosen == expected, detail + " " + isa->dot->isa);
  }
}

void test_choices() {
  Random random(30);
  const double temperatures[] = {0.0, 0.001, 0.7, 1.0, 1000.0};
  const int64_t least[] = {0, 1, kOneQ40 / 20, kOneQ40}, ks[] = {0, 0, 1, 7, 300, 1 << 20},
                ps[] = {kOneQ40, kOneQ40, 0, 1, kOneQ40 / 2, kOneQ40 - 1};
  for (const int n : {1, 2, 3, 15, 16, 17, 47, 48, 49, 517, 1023, 1024, 1025, 3001}) {
    for (int kind = 0; kind < 6; ++kind) {
      for (int repeat = is_short() && n > 517 ? 2 : 0; repeat < 3; ++repeat) {
        std::vector<float> x(at(n));
        for (float& value : x) value = value_of(kind, random);
        std::vector<Row> rows;
        for (int i = 0; i < 12; ++i) {
          const uint64_t u = i == 0 ? 0 : i == 1 ? ~uint64_t{0} : random.next();
          rows.push_back({temperatures[random.between(0, 4)], least[random.between(0, 3)], ks[random.between(0, 5)],
                          ps[random.between(0, 5)], u});
        }
        check_row(x, rows, "kind " + std::to_string(kind) + " n " + std::to_string(n));
      }
    }
  }
  check_row(std::vector<float>(9, kExcluded), {{0.0, 0, 0, kOneQ40, 5}, {1.0, 0, 3, 1, 5}}, "all excluded");
}

void test_refused() {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()};
  for (const Isa* isa : isas()) {
    for (const float value : values) {
      for (const size_t place : {0u, 16u, 36u}) {
        std::vector<float> x(37, 1.0f);
        x[place] = value;
        CHECK(isa->elementwise->argmax_allowed(x.data(), 37) == -1, isa->dot->isa);
        x[place] = kExcluded;
        CHECK(isa->elementwise->argmax_allowed(x.data(), 37) == (place == 0 ? 1 : 0), isa->dot->isa);
        CHECK(isa->elementwise->argmax(x.data(), 37) == -1, isa->dot->isa);
      }
    }
  }
}

}  // namespace

void test_sampling() {
  test_choices();
  test_refused();
}

}  // namespace exactlm::test
