// What every native test shares: the tally of checks, the tables to test, random numbers, a digest, and memory that
// ends at an inaccessible page. Compiles for every target; knows no Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "isa.h"

namespace exactlm::test {

// Counts one check; a failed one prints `what`, the place and `detail`.
void check(bool ok, const char* what, const char* file, int line, const std::string& detail);

#define CHECK(condition, detail) ::exactlm::test::check((condition), #condition, __FILE__, __LINE__, (detail))

bool is_short();  // a smaller sweep, for emulators

const std::vector<const Isa*>& isas();  // compiled in and supported here, slowest (scalar) first

// splitmix64: the same numbers on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int between(int low, int high);          // inclusive
  float finite(int min_exp, int max_exp);  // random sign and significand, 2^min_exp <= |.| < 2^(max_exp + 1)

 private:
  uint64_t state_;
};

// 64-bit FNV-1a over little-endian bytes of the values, on every platform.
class Digest {
 public:
  void add(uint64_t value, int num_bytes);
  void add(float value);
  void add(const float* values, size_t count);
  void add(const int16_t* values, size_t count);
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

uint32_t bits_of(float x);
float float_of(uint32_t bits);
float half_to_float(uint16_t half);  // IEEE binary16

// fp32(n) by integer arithmetic alone: round to nearest, ties to even.
float round_to_fp32(int64_t n);

bool same_bits(const float* a, const float* b, size_t count);

// Which end of the array touches the inaccessible page; kShifted: neither, it starts one element after an aligned
// place.
enum class Edge { kBegin, kEnd, kShifted };

class GuardedPages {
 public:
  GuardedPages(size_t bytes, Edge edge, size_t element_bytes);
  ~GuardedPages();
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  uint8_t* data() const { return data_; }

 private:
  void* mapping_;
  size_t mapping_bytes_;
  uint8_t* data_;
};

template <class T>
class Guarded {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Guarded(size_t count, Edge edge = Edge::kEnd) : count_(count), pages_(count * sizeof(T), edge, sizeof(T)) {}
  explicit Guarded(const std::vector<T>& values, Edge edge = Edge::kEnd) : Guarded(values.size(), edge) {
    if (count_ > 0) std::memcpy(data(), values.data(), count_ * sizeof(T));
  }
  T* data() const { return reinterpret_cast<T*>(pages_.data()); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data()[i]; }

 private:
  size_t count_;
  GuardedPages pages_;
};

// True if `action` is stopped by the system (or a sanitizer) in a process of its own.
bool dies(void (*action)());

void test_guard();
void test_linear();
void test_mix();
void test_elementwise();
void test_softmax();
void test_sampling();
void test_digest();
void test_control();
void test_threads();
void test_environment();
void test_vectors(const std::string& directory);

}  // namespace exactlm::test
