// Threads that run one function together, and share out its work.
//
// Owns: the threads, and the sharing of a range. Must not know: what the work is.
//
// The members of a team run the same function, the caller as member 0. Its work comes in shares: ranges of items that
// may be done in any order. Each member begins with a part of its own, contiguous, so that memory is read in order; who
// is done early takes single items from the others. A share is over when its items are done, not when the members have
// arrived: a member whose core was taken away holds up nobody but for an item that it has in hand, and one that comes
// late, or not at all, is not waited for.
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

  // Run work(member) in member 0, and in the others as far as they come in time; return when none is at it any more.
  // `work` must not throw, and makes `shares` shares at most. Throws std::bad_alloc before it starts. The caller may
  // come on any core: each thread has one of its own, and makes room.
  void run(int shares, const std::function<void(int)>& work);

  // Call item(i) once for each i in [0, count), in whichever member, and return when all are done. Members that run to
  // their end make the same shares in the same order, with the same counts. What was written before a share can be
  // read in it, and what was written in it afterwards, by all.
  template <class Item>
  void share(int member, int count, Item item) {
    Counter* counters = &counters_[(size_t)(own_[(size_t)member].shares++) * (size_t)(members_ + 1)];
    std::atomic<int>& done = counters[members_].value;
    int did = 0;
    for (int turn = 0; turn < members_; turn++) {
      const int from = (member + turn) % members_;
      const int start = (int)((int64_t)count * from / members_), end = (int)((int64_t)count * (from + 1) / members_);
      std::atomic<int>& taken = counters[from].value;
      if (taken.load(std::memory_order_relaxed) >= end - start) continue;
      for (int i; (i = start + taken.fetch_add(1, std::memory_order_relaxed)) < end; did++) item(i);
    }
    if (did) done.fetch_add(did, std::memory_order_acq_rel);
    wait(done, count);
  }

 private:
  // Each in a line of the cache of its own, or members would take it from each other all the time.
  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };
  struct alignas(64) Own {
    int shares = 0;
  };

  static void wait(const std::atomic<int>& done, int count);
  void spread();
  void serve(int member);
  void dismiss();

  const int members_;
  std::vector<Own> own_;
  // [shares][members + 1]: items taken of each member's part, and items done
  std::unique_ptr<Counter[]> counters_;
  size_t room_ = 0;
  // The number of the run, whether it can be joined, and how many threads are at it.
  alignas(64) std::atomic<uint64_t> state_{0};
  const std::function<void(int)>* work_ = nullptr;
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable called_;
  std::vector<std::thread> threads_;
  // The core of each member; empty if there are fewer cores than members.
  std::vector<int> cores_;
};

}  // namespace trioserve
