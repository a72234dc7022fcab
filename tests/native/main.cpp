// native_test [--short] [--vectors DIR]: every instruction set this CPU runs against the definition, bit for bit.
// Prints one line a group and ends with "N passed, M failed"; exit status 1 if any check failed, 2 on wrong usage.
#include <cstdio>
#include <functional>

#include "check.h"

namespace exactlm::test {
namespace {

constexpr int kMaxPrinted = 20;
int passed = 0, failed = 0;
bool short_sweep = false;

void run_group(const char* name, const std::function<void()>& group) {
  const int passed_before = passed, failed_before = failed;
  group();
  std::printf("%-12s %6d passed, %d failed\n", name, passed - passed_before, failed - failed_before);
  std::fflush(stdout);
}

}  // namespace

void check(bool ok, const char* what, const char* file, int line, const std::string& detail) {
  ++(ok ? passed : failed);
  if (!ok && failed <= kMaxPrinted) std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, detail.c_str());
}

bool is_short() { return short_sweep; }

const std::vector<const Isa*>& isas() {
  static const std::vector<const Isa*> all = [] {
    std::vector<const Isa*> list;
    for (const std::string& name : supported_isas()) list.push_back(find_isa(name));
    return list;
  }();
  return all;
}

}  // namespace exactlm::test

int main(int argc, char** argv) {
  using namespace exactlm::test;
  std::string vectors = "spec/vectors";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--short") {
      short_sweep = true;
    } else if (argument == "--vectors" && i + 1 < argc) {
      vectors = argv[++i];
    } else {
      std::fprintf(stderr, "usage: native_test [--short] [--vectors DIR]\n");
      return 2;
    }
  }
  std::printf("compiled:");
  for (const std::string& name : exactlm::compiled_isas()) std::printf(" %s", name.c_str());
  std::printf("\ntested:  ");
  for (const exactlm::Isa* isa : isas()) std::printf(" %s", isa->dot->isa);
  std::printf("\n");
  run_group("guard", test_guard);
  run_group("linear", test_linear);
  run_group("mix", test_mix);
  run_group("elementwise", test_elementwise);
  run_group("softmax", test_softmax);
  run_group("sampling", test_sampling);
  run_group("digest", test_digest);
  run_group("control", test_control);
  run_group("environment", test_environment);
  run_group("threads", test_threads);
  run_group("vectors", [&] { test_vectors(vectors); });
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
