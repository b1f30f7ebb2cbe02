// Threads that run one function together, and share out its work.
//
// Owns: the threads, their barrier, and the sharing of a range. Must not know: what the work is.
//
// All members of a team run the same function from its beginning to its end, the caller as member 0. Between two
// barriers they share ranges of work: each begins with a part of its own, contiguous, so that memory is read in order;
// who is done early takes single items from the others. So a member whose core was taken away for a while holds up
// nobody but for its own item.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace trioserve {

class Team {
 public:
  // Start `members` - 1 threads. Throws std::system_error if the system gives no more.
  explicit Team(int members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int members() const { return members_; }

  // Run work(member) in every member, and return when all are done. `work` must not throw.
  void run(const std::function<void(int)>& work);

  // Wait until all members are here.
  void wait(int member);

  // Call item(i) once for each i in [0, count), shared among the members; all call this in the same order, with the
  // same count. Returns when nothing is left to take: all must wait() before they use what others made, and before they
  // share again.
  template <class Item>
  void share(int member, int count, Item item) {
    Member& own = *state_[member];
    const int set = own.shares++ & 1;
    // The other set was last used in the share before: this member passed a barrier since, as have all.
    own.taken[set ^ 1].store(0, std::memory_order_relaxed);
    for (int turn = 0; turn < members_; turn++) {
      const int from = (member + turn) % members_;
      const int64_t start = (int64_t)count * from / members_, end = (int64_t)count * (from + 1) / members_;
      std::atomic<int>& taken = state_[from]->taken[set];
      if (turn && taken.load(std::memory_order_relaxed) >= end - start) continue;
      for (int64_t i; (i = start + taken.fetch_add(1, std::memory_order_relaxed)) < end;) item((int)i);
    }
  }

 private:
  struct alignas(128) Member {
    std::atomic<int> taken[2] = {0, 0};
    unsigned shares = 0;
  };

  void serve(int member);
  void dismiss();

  const int members_;
  std::vector<std::unique_ptr<Member>> state_;
  alignas(128) std::atomic<int> arrived_{0};
  alignas(128) std::atomic<uint32_t> round_{0};
  alignas(128) std::atomic<uint32_t> call_{0};
  const std::function<void(int)>* work_ = nullptr;
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable called_;
  std::vector<std::thread> threads_;
};

}  // namespace trioserve
