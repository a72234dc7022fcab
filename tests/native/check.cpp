#include "check.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace exactlm::test {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int Random::between(int low, int high) {
  const uint64_t span = static_cast<uint64_t>(static_cast<int64_t>(high) - low + 1);
  return low + static_cast<int>((next() >> 32) * span >> 32);
}

float Random::finite(int min_exp, int max_exp) {
  const uint32_t exponent = static_cast<uint32_t>(between(min_exp, max_exp) + 127);
  const uint32_t rest = static_cast<uint32_t>(next() >> 32);
  return float_of((rest & 0x80000000u) | exponent << 23 | (rest & 0x007fffffu));
}

void Digest::add(uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) hash_ = (hash_ ^ (value >> (8 * i) & 255)) * 0x100000001b3u;
}

void Digest::add(float value) { add(bits_of(value), 4); }

void Digest::add(const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) add(values[i]);
}

void Digest::add(const int16_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) add(static_cast<uint16_t>(values[i]), 2);
}

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023u;
  if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return float_of(sign | bits_of(magnitude));
}

float round_to_fp32(int64_t n) {
  if (n == 0) return 0.0f;
  const uint64_t magnitude = n < 0 ? uint64_t{0} - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
  int top = 63;
  while ((magnitude >> top & 1) == 0) --top;
  uint64_t significand = magnitude;
  if (top > 23) {
    const int shift = top - 23;
    const uint64_t rest = magnitude & ((uint64_t{1} << shift) - 1), tie = uint64_t{1} << (shift - 1);
    significand = magnitude >> shift;
    if (rest > tie || (rest == tie && (significand & 1) == 1)) ++significand;
  } else {
    significand <<= 23 - top;
  }
  // A carry out of the significand lands in the exponent, where it belongs.
  const uint64_t bits = (static_cast<uint64_t>(top + 126) << 23) + significand;
  return float_of(static_cast<uint32_t>(bits) | (n < 0 ? 0x80000000u : 0u));
}

bool same_bits(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

GuardedPages::GuardedPages(size_t bytes, Edge edge, size_t element_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inner = (bytes + element_bytes + page - 1) / page * page;
  mapping_bytes_ = inner + 2 * page;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t* begin = static_cast<uint8_t*>(mapping_) + page;
  if (mapping_ == MAP_FAILED || (inner > 0 && mprotect(begin, inner, PROT_READ | PROT_WRITE) != 0)) {
    std::perror("guarded pages");
    std::exit(1);
  }
  data_ = begin + (edge == Edge::kEnd ? inner - bytes : edge == Edge::kShifted ? element_bytes : 0);
}

GuardedPages::~GuardedPages() { munmap(mapping_, mapping_bytes_); }

bool dies(void (*action)()) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    action();
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror("fork");
    std::exit(1);
  }
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace exactlm::test
