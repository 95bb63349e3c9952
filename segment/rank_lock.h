// That of a rank there is one live segment, however many processes take themselves for it.
#ifndef FORESHOCK_SEGMENT_RANK_LOCK_H_
#define FORESHOCK_SEGMENT_RANK_LOCK_H_

namespace foreshock::segment {

// An fcntl write lock on all of a file, if it can be had at once.
bool lock_whole(int fd);

// Held while a process looks for a live segment of its rank and makes its own: the lock of an empty file that
// is gone again afterwards. Never waits.
class RankLock {
 public:
  RankLock() = default;
  RankLock(const RankLock&) = delete;
  RankLock& operator=(const RankLock&) = delete;
  ~RankLock();

  // 0; EBUSY when another process has a live segment of the rank, or is about to; else an errno. Asked by who
  // has no segment: to open its own and close it again would free its lock.
  int take(const char* directory, int rank);

 private:
  int lock();

  char path_[512];
  int fd_ = -1;
};

}  // namespace foreshock::segment

#endif  // FORESHOCK_SEGMENT_RANK_LOCK_H_
