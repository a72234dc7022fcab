// Sums of values by softmax weights (mix_v16, mix_v8) of every instruction set: sizes, transfers to 64 bits, extremes.
#include <algorithm>

#include "plain.h"

namespace exactlm::test {
namespace {

const Edge kEdges[] = {Edge::kBegin, Edge::kEnd, Edge::kShifted};
constexpr uint32_t kMaxLimbs = 0xffffff;  // more than P ever is: the bound of spec 8.6 is on limbs
constexpr uint32_t kMaxWeight = 8388608;

int max_value(int num_limbs) { return num_limbs == 2 ? kMaxCode : 127; }

MixCase constant_case(int num_limbs, int dp, int num_pages, uint32_t p, int value) {
  MixCase problem{num_limbs, dp, num_pages, {}, {}};
  problem.p.assign(static_cast<size_t>(num_pages) * kPageTokens, p);
  problem.values.emplace_back(static_cast<size_t>(kPageTokens * dp), static_cast<int16_t>(value));
  return problem;
}

MixCase random_case(int num_limbs, int dp, int num_pages, Random& random) {
  MixCase problem{num_limbs, dp, num_pages, {}, {}};
  for (int j = 0; j < num_pages * kPageTokens; ++j) {
    const int kind = random.between(0, 3);
    const uint32_t p = static_cast<uint32_t>(random.between(0, static_cast<int>(kMaxWeight)));
    problem.p.push_back(kind == 0 ? 0 : kind == 1 ? kMaxWeight : p);
  }
  const int limit = max_value(num_limbs);
  for (int page = 0; page < std::min(num_pages, 3); ++page) {
    std::vector<int16_t>& codes = problem.values.emplace_back();
    for (int i = 0; i < kPageTokens * dp; ++i) codes.push_back(static_cast<int16_t>(random.between(-limit, limit)));
  }
  return problem;
}

void check_case(const MixCase& problem, const char* what, Edge edge = Edge::kEnd) {
  for (const Isa* isa : isas()) {
    const int mismatches = count_mix_mismatches(*isa->dot, problem, edge);
    CHECK(mismatches == 0, std::string(isa->dot->isa) + " " + what + " " + problem.name() + ": " +
                               std::to_string(mismatches) + " sums differ");
  }
}

}  // namespace

void test_mix() {
  Random random(4);
  for (const int num_limbs : {1, 2}) {
    for (const int dp : {16, 32, 48, 64, 80, 96, 112, 128, 144, 256})
      for (const int num_pages : {1, 2, 3, 7, 8, 9, 16, 17, 33})
        check_case(random_case(num_limbs, dp, num_pages, random), "random", kEdges[num_pages % 3]);
    const int limit = max_value(num_limbs);
    // 1100 pages are 35,200 keys, beyond the 32,767 of spec 8.6; 4096 pages are the whole context.
    for (const int num_pages : {1022, 1023, 1024, 1025, 1100, is_short() ? 1500 : 4096}) {
      for (const int value : {limit, -limit, 128, -128, 127}) {
        if (value > limit || value < -limit) continue;
        check_case(constant_case(num_limbs, 16, num_pages, kMaxLimbs, value), "largest limbs");
        if (num_pages == 4096) check_case(constant_case(num_limbs, 80, num_pages, kMaxWeight, value), "largest P");
      }
      check_case(random_case(num_limbs, 16, num_pages, random), "long random");
    }
  }
}

}  // namespace exactlm::test
