// The tools of these tests themselves: guard pages that stop a stray access, exact rounding, fixed random numbers.
#include "check.h"

namespace exactlm::test {
namespace {

volatile uint8_t sink;

void read_after() {
  const Guarded<uint8_t> array(100);
  sink = array.data()[100];
}

void read_before() {
  const Guarded<uint8_t> array(100, Edge::kBegin);
  sink = *(array.data() - 1);
}

void write_after() {
  const Guarded<float> array(7);
  volatile float* end = array.data() + 7;
  *end = 1.0f;
}

void stay_inside() {
  const Guarded<uint8_t> array(100);
  sink = array.data()[0];
  sink = array.data()[99];
}

}  // namespace

void test_guard() {
  CHECK(dies(read_after), "a read past the end must be stopped");
  CHECK(dies(read_before), "a read before the beginning must be stopped");
  CHECK(dies(write_after), "a write past the end must be stopped");
  CHECK(!dies(stay_inside), "an access inside must not be stopped");

  CHECK(round_to_fp32((int64_t{1} << 24) + 1) == 0x1p24f, "a tie goes to the even neighbour below");
  CHECK(round_to_fp32((int64_t{1} << 24) + 3) == 0x1p24f + 4.0f, "a tie goes to the even neighbour above");
  CHECK(round_to_fp32((int64_t{1} << 40) - 1) == 0x1p40f, "rounding may carry into the exponent");
  CHECK(round_to_fp32((int64_t{1} << 45) + (int64_t{1} << 21) + 1) == 0x1.000002p45f, "just above a tie");
  Random random(1);
  bool equal = true;
  for (int i = 0; i < 20000; ++i) {
    const int64_t n = static_cast<int64_t>(random.next()) >> random.between(0, 62);
    equal = equal && bits_of(round_to_fp32(n)) == bits_of(static_cast<float>(n));
  }
  CHECK(equal, "the compiler's conversion of int64 rounds once");
  CHECK(Random(0).next() == 0xe220a8397b1dcdafu, "splitmix64 of seed 0");
  Digest digest;
  for (const char c : {'a', 'b', 'c'}) digest.add(static_cast<uint64_t>(c), 1);
  CHECK(digest.value() == 0xe71fa2190541574bu, "FNV-1a of abc");
  CHECK(half_to_float(0x3c01) == 1.0009765625f && half_to_float(0x0001) == 0x1p-24f, "binary16");
}

}  // namespace exactlm::test
