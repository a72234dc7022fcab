// The floating-point control word: whatever another library left in it, results are the same and it is given back.
#include <atomic>

#include "check.h"
#include "fp_environment.h"
#include "pool.h"

namespace exactlm::test {
namespace {

#if defined(__x86_64__)
using Control = unsigned;
const Control kHostile = 0x1f80 | 0x8000 | 0x0040 | 0x4000;  // flush to zero, denormals are zero, round up
Control read_control() { return _mm_getcsr() & ~0x3fu; }     // without the sticky flags
void write_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
using Control = uint64_t;
const Control kHostile = uint64_t{1} << 24 | uint64_t{1} << 22;  // flush to zero, round up
Control read_control() {
  Control value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
using Control = int;
const Control kHostile = FE_UPWARD;
Control read_control() { return std::fegetround(); }
void write_control(Control value) { std::fesetround(value); }
#endif

constexpr int kCount = 48;

// Sums that round differently upwards, and differently when subnormals are flushed.
void add_rows(const ElementwiseTable& table, float* x) {
  float y[kCount];
  for (int i = 0; i < kCount; ++i) {
    x[i] = i % 2 == 0 ? 1.0f : float_of(static_cast<uint32_t>(i));
    y[i] = i % 2 == 0 ? 0x1p-30f * static_cast<float>(i + 1) : float_of(static_cast<uint32_t>(3 * i));
  }
  table.add(x, y, kCount);
}

}  // namespace

void test_environment() {
  for (const Isa* isa : isas()) {
    const std::string name = isa->dot->isa;
    float expected[kCount], hostile[kCount], guarded[kCount];
    add_rows(*isa->elementwise, expected);
    const Control before = read_control();
    write_control(kHostile);
    add_rows(*isa->elementwise, hostile);
    {
      const FpEnvironment environment;
      add_rows(*isa->elementwise, guarded);
    }
    const bool is_given_back = read_control() == kHostile;
    bool is_same_in_pool = true, is_given_back_by_pool = false;
    {
      Pool pool(3);  // its threads inherit the control word
      constexpr int kTasks = 24;
      std::vector<float> rows(kTasks * kCount);
      pool.run(kTasks, [&](int64_t task, int) { add_rows(*isa->elementwise, rows.data() + task * kCount); });
      for (int task = 0; task < kTasks; ++task)
        is_same_in_pool = is_same_in_pool && same_bits(rows.data() + task * kCount, expected, kCount);
      is_given_back_by_pool = read_control() == kHostile;
    }
    write_control(before);
    CHECK(!same_bits(hostile, expected, kCount), name + ": the control word must matter to these sums");
    CHECK(same_bits(guarded, expected, kCount), name + ": sums inside the environment");
    CHECK(is_given_back, name + ": control word after the environment");
    CHECK(is_same_in_pool, name + ": sums in a pool");
    CHECK(is_given_back_by_pool, name + ": control word after a pool's job");
  }
}

}  // namespace exactlm::test
