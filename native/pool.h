// A pool of threads that spins briefly and then sleeps. Tasks are taken one at a time from a shared counter, so the
// split depends on timing; results may not, which is why every task writes its own outputs and sums are integers.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace exactlm {

class Pool {
 public:
  explicit Pool(int num_threads);  // the caller of run() counts as one; throws std::system_error if one cannot start
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, thread) for every i in [0, num_tasks); returns when all are done. One caller at a time. What a task
  // throws ends the run and is thrown again here; of several, one.
  void run(int64_t num_tasks, const std::function<void(int64_t, int)>& task);

 private:
  void end();
  void work(int thread);
  void drain(const std::function<void(int64_t, int)>& task, int64_t num_tasks, int thread) noexcept;

  const std::chrono::microseconds spin_;

  // generation << 32 | open << 31 | number of workers that joined. A worker that wakes late finds the job closed and
  // joins nothing, so a caller never waits for a thread that the system has not scheduled.
  std::atomic<uint64_t> state_{0};
  std::atomic<uint32_t> wake_{0};
  std::atomic<uint32_t> finished_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> failed_{0};
  std::exception_ptr error_;  // written by the thread that set failed_, read when all are done
  const std::function<void(int64_t, int)>* task_ = nullptr;
  int64_t num_tasks_ = 0;
  std::vector<std::thread> workers_;
  const int process_;
};

}  // namespace exactlm
