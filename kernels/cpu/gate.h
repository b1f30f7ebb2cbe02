// Where the threads of a step wait for what another thread prepares meanwhile.
//
// Owns: the wait. Must not know: what is prepared.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace trioserve {

class Gate {
 public:
  // Something was prepared, or could not be. Tickets are told in ascending order.
  void tell(int64_t ticket, bool ok) {
    {
      const std::lock_guard lock(mutex_);
      told_ = ticket;
      ok_ = ok;
    }
    changed_.notify_all();
  }

  // Nobody waits any more, now or later.
  void shut() {
    {
      const std::lock_guard lock(mutex_);
      shut_ = true;
    }
    changed_.notify_all();
  }

  // Sleeps until a ticket was told. Whether what it stands for is there: what its thread wrote before can be read.
  bool wait(int64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return told_ >= ticket || shut_; });
    return told_ == ticket && ok_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t told_ = 0;
  bool ok_ = false, shut_ = false;
};

}  // namespace trioserve
