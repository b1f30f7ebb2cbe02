#include "pool.h"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trioserve {

namespace {

// Polls before the core is offered to others: some 20 microseconds, longer than members differ when none is disturbed.
constexpr int POLLS = 1000;
// Polls for the next call before a thread sleeps: some 100 microseconds, longer than the next step is in coming.
constexpr int CALL_POLLS = 4000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int members) : members_(members) {
  for (int i = 0; i < members; i++) state_.push_back(std::make_unique<Member>());
  try {
    for (int i = 1; i < members; i++) threads_.emplace_back([this, i] { serve(i); });
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
    call_.fetch_add(1, std::memory_order_release);
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  if (members_ > 1) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      call_.fetch_add(1, std::memory_order_release);
    }
    called_.notify_all();
  }
  work(0);
  wait(0);
}

void Team::wait(int) {
  if (members_ == 1) return;
  const uint32_t round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == members_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int polls = 0; round_.load(std::memory_order_acquire) == round; polls++) {
    if (polls < POLLS)
      pause();
    else
      sched_yield();
  }
}

void Team::serve(int member) {
  for (uint32_t seen = 0;;) {
    for (int polls = 0; polls < CALL_POLLS && call_.load(std::memory_order_acquire) == seen; polls++) pause();
    if (call_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      called_.wait(lock, [&] { return call_.load(std::memory_order_acquire) != seen; });
    }
    seen++;
    if (stopping_) return;
    (*work_)(member);
    wait(member);
  }
}

}  // namespace trioserve
