#include "isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace exactlm {

extern const DotTable dot_scalar;
extern const ElementwiseTable elementwise_scalar;
#if defined(__x86_64__)
extern const DotTable dot_avx2, dot_avx512vnni;
extern const ElementwiseTable elementwise_avx2, elementwise_avx512vnni;
#elif defined(__aarch64__)
extern const DotTable dot_neon, dot_neondotprod;
extern const ElementwiseTable elementwise_neon, elementwise_neondotprod;
#endif

namespace {

struct Entry {
  Isa isa;
  bool (*is_supported)();
};

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
bool has_dotprod() { return (getauxval(AT_HWCAP) & (1UL << 20)) != 0; }  // HWCAP_ASIMDDP
#endif

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{&dot_scalar, &elementwise_scalar}, always},
#if defined(__x86_64__)
      {{&dot_avx2, &elementwise_avx2}, has_avx2},
      {{&dot_avx512vnni, &elementwise_avx512vnni}, has_avx512vnni},
#elif defined(__aarch64__)
      {{&dot_neon, &elementwise_neon}, always},
      {{&dot_neondotprod, &elementwise_neondotprod}, has_dotprod},
#endif
  };
  return all;
}

}  // namespace

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const Entry& e : entries()) names.emplace_back(e.isa.dot->isa);
  return names;
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Entry& e : entries()) {
    if (e.is_supported()) names.emplace_back(e.isa.dot->isa);
  }
  return names;
}

const Isa* find_isa(const std::string& name) {
  for (const Entry& e : entries()) {
    if (name == e.isa.dot->isa && e.is_supported()) return &e.isa;
  }
  return nullptr;
}

}  // namespace exactlm
