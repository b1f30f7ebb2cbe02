#include "pool.h"

#include <pthread.h>
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trioserve {

namespace {

// Polls before the core is offered to others: some 20 microseconds, longer than members differ when none is disturbed.
constexpr int POLLS = 1000;
// Polls for the next run before a thread sleeps. Few: there is other work for the core between two steps, and a member
// that wakes late is not waited for.
constexpr int CALL_POLLS = 2000;

// The parts of Team::state_.
constexpr uint64_t OPEN = uint64_t{1} << 31, THREADS = OPEN - 1;
constexpr int RUN_SHIFT = 32;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// As many cores as there are members, of those that this process may use; none if there are too few, or nobody knows.
std::vector<int> free_cores(int members) {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int core = 0; core < CPU_SETSIZE && (int)cores.size() < members; core++)
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
#endif
  if ((int)cores.size() < members) cores.clear();
  return cores;
}

void pin(std::thread& thread, int core) {
#if defined(__linux__)
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  pthread_setaffinity_np(thread.native_handle(), sizeof only, &only);
#endif
}

template <class Condition>
void poll(Condition condition) {
  for (int polls = 0; !condition(); polls++) {
    if (polls < POLLS)
      pause();
    else
      sched_yield();
  }
}

}  // namespace

Team::Team(int members) : members_(members), own_((size_t)members), cores_(free_cores(members)) {
  try {
    for (int i = 1; i < members; i++) {
      threads_.emplace_back([this, i] { serve(i); });
      if (!cores_.empty()) pin(threads_.back(), cores_[(size_t)i]);
    }
  } catch (...) {
    dismiss();
    throw;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// A thread that wakes is often put on the core of the one that woke it, and waits there while another core is idle: the
// system notices after milliseconds, when the step is over. So each has a core, and it is not the caller's.
void Team::spread() {
#if defined(__linux__)
  if (cores_.empty()) return;
  const int here = sched_getcpu();
  if (here == cores_[0]) return;
  for (size_t i = 1; i < cores_.size(); i++)
    if (cores_[i] == here) {
      pin(threads_[i - 1], cores_[0]);
      cores_[i] = cores_[0];
    }
  cores_[0] = here;
#endif
}

void Team::run(int shares, const std::function<void(int)>& work) {
  // nobody is at the last run any more, so all of this is the caller's
  const size_t needed = (size_t)shares * (size_t)(members_ + 1);
  if (needed > room_) {
    counters_ = std::make_unique<Counter[]>(needed);
    room_ = needed;
  }
  for (size_t i = 0; i < needed; i++) counters_[i].value.store(0, std::memory_order_relaxed);
  own_[0].shares = 0;
  work_ = &work;
  if (members_ > 1) {
    spread();
    {
      const std::lock_guard lock(mutex_);
      const uint64_t number = (state_.load(std::memory_order_relaxed) >> RUN_SHIFT) + 1;
      state_.store(number << RUN_SHIFT | OPEN, std::memory_order_release);
    }
    called_.notify_all();
  }
  work(0);
  state_.fetch_and(~OPEN, std::memory_order_acq_rel);
  poll([&] { return (state_.load(std::memory_order_acquire) & THREADS) == 0; });
}

void Team::wait(const std::atomic<int>& done, int count) {
  poll([&] { return done.load(std::memory_order_acquire) == count; });
}

void Team::serve(int member) {
  uint64_t seen = 0;
  const auto called = [&] { return state_.load(std::memory_order_acquire) >> RUN_SHIFT != seen; };
  for (;;) {
    for (int polls = 0; polls < CALL_POLLS && !called(); polls++) pause();
    if (!called()) {
      std::unique_lock lock(mutex_);
      called_.wait(lock, [&] { return stopping_ || called(); });
      if (stopping_) return;
    }
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = state >> RUN_SHIFT;
    // joined only while it is open, since the caller leaves when nobody is at it
    while (state & OPEN && state >> RUN_SHIFT == seen) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      own_[(size_t)member].shares = 0;
      (*work_)(member);
      state_.fetch_sub(1, std::memory_order_acq_rel);
      break;
    }
  }
}

}  // namespace trioserve
