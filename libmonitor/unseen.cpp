#include "libmonitor/unseen.h"

#include <cstring>

#include "foreshock/hook.h"

namespace foreshock {

void Unseen::attach(segment::UnseenName* records) {
  busy_.clear();  // a forked child may have been born while another thread held it
  records_ = records;
  for (uint32_t n = 0; n < known_; ++n) store(n);
}

void Unseen::store(uint32_t index) {
  segment::UnseenName& record = records_[index];
  std::memcpy(record.name, names_[index].name, sizeof record.name);
  std::atomic_ref<uint32_t>(record.evidence).store(names_[index].evidence, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(record.ready).store(1, std::memory_order_release);
}

void Unseen::note(const char* name, uint32_t evidence, bool has_segment) {
  if (name == nullptr || *name == '\0' || evidence < FORESHOCK_UNSEEN_USED ||
      evidence > FORESHOCK_UNSEEN_REGISTERED)
    return;
  if (busy_.test_and_set(std::memory_order_acquire)) return;
  char cut[sizeof(segment::UnseenName::name)] = {};
  std::strncpy(cut, name, sizeof cut - 1);
  uint32_t index = 0;
  while (index < known_ && std::strcmp(names_[index].name, cut) != 0) ++index;
  if (index < segment::kMaxUnseen && (index == known_ || evidence < names_[index].evidence)) {
    std::memcpy(names_[index].name, cut, sizeof cut);
    names_[index].evidence = evidence;
    if (index == known_) ++known_;
    if (has_segment && records_ != nullptr) store(index);
  }
  busy_.clear(std::memory_order_release);
}

}  // namespace foreshock
