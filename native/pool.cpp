#include "pool.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "fp_environment.h"

namespace exactlm {
namespace {

constexpr uint64_t kOpen = 1ULL << 31;
constexpr uint64_t kJoinedMask = kOpen - 1;
// Longer than the pause between two steps, so that a busy pool never sleeps; short where threads outnumber processors,
// since there a spinning thread keeps a working one from running.
constexpr auto kLongSpin = std::chrono::microseconds(500);
constexpr auto kShortSpin = std::chrono::microseconds(5);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or the time is over; says which.
template <typename Ready>
bool spin(std::chrono::microseconds time, Ready ready) {
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

Pool::Pool(int num_threads)
    : spin_(num_threads <= static_cast<int>(std::thread::hardware_concurrency()) ? kLongSpin : kShortSpin),
      process_(static_cast<int>(getpid())) {
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    end();
    throw;
  }
}

Pool::~Pool() {
  if (process_ == static_cast<int>(getpid())) {
    end();
  } else {  // a forked child has the objects but not the threads: they can be neither joined nor destroyed
    new std::vector<std::thread>(std::move(workers_));
  }
}

void Pool::end() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
  workers_.clear();
}

void Pool::drain(const std::function<void(int64_t, int)>& task, int64_t num_tasks, int thread) noexcept {
  const FpEnvironment environment;
  try {
    for (int64_t i = next_.fetch_add(1); i < num_tasks; i = next_.fetch_add(1)) task(i, thread);
  } catch (...) {  // the other threads still use the caller's task: it must not leave before they are done
    if (failed_.exchange(1) == 0) error_ = std::current_exception();
    next_.store(num_tasks);
  }
}

void Pool::run(int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  if (workers_.empty() || num_tasks <= 1) {
    const FpEnvironment environment;
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  num_tasks_ = num_tasks;
  next_.store(0);
  finished_.store(0);
  failed_.store(0);
  const uint64_t generation = (state_.load() >> 32) + 1;
  state_.store(generation << 32 | kOpen);
  wake_.fetch_add(1);
  wake_.notify_all();
  drain(task, num_tasks, 0);
  const uint32_t joined = static_cast<uint32_t>(state_.fetch_and(~kOpen) & kJoinedMask);
  if (!spin(spin_, [&] { return finished_.load() == joined; })) {
    for (uint32_t done = finished_.load(); done != joined; done = finished_.load()) finished_.wait(done);
  }
  if (failed_.load() != 0) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work(int thread) {
  uint32_t seen = 0;  // its value at construction: a thread that starts late still sees what happened before
  uint64_t last = 0;  // generation of the last job joined
  for (;;) {
    if (!spin(spin_, [&] { return wake_.load() != seen; })) wake_.wait(seen);
    seen = wake_.load();
    if (stop_.load()) return;
    uint64_t state = state_.load();
    bool joined = false;
    while ((state & kOpen) != 0 && state >> 32 != last && !joined) {
      joined = state_.compare_exchange_weak(state, state + 1);
    }
    if (!joined) continue;
    last = state >> 32;
    drain(*task_, num_tasks_, thread);
    finished_.fetch_add(1);
    finished_.notify_one();
  }
}

}  // namespace exactlm
