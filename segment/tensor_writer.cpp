#include "segment/tensor_writer.h"

#include <atomic>
#include <cstring>

namespace foreshock::segment {
namespace {

// Other threads and processes load these words.
void store(uint64_t& word, uint64_t value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<uint64_t>(word).store(value, order);
}

}  // namespace

void TensorWriter::attach(TensorRing* ring, uint64_t bytes, const Control* control) {
  const bool is_usable = ring != nullptr && bytes > kTensorHeadOnly;
  ring_ = ring;
  data_ = reinterpret_cast<char*>(ring) + sizeof(TensorRing);
  room_ = is_usable ? (bytes - sizeof(TensorRing)) / kTensorAlign * kTensorAlign : 0;
  control_ = control;
  filler_ = 0;
}

uint64_t TensorWriter::consumed() const {
  auto& control = const_cast<Control&>(*control_);  // atomic_ref needs it; the mapping is only loaded from
  return std::atomic_ref<uint64_t>(control.tensor_cursor).load(std::memory_order_acquire);
}

TensorRecord* TensorWriter::begin(uint64_t least, uint64_t* bytes) {
  const uint64_t written = ring_->written, used = written - consumed();
  if (used > room_) return nullptr;  // an agent that claims to have read what was never written
  const uint64_t free = room_ - used, to_end = room_ - written % room_;
  filler_ = 0;
  *bytes = free < to_end ? free : to_end;
  if ((*bytes < room_ / 4 || *bytes < least) && free > 2 * to_end) {  // the piece at the front is longer
    filler_ = to_end;
    *bytes = free - to_end;
  }
  return *bytes < least ? nullptr : reinterpret_cast<TensorRecord*>(at(written + filler_));
}

void TensorWriter::publish(const TensorRecord* record) {
  const uint64_t written = ring_->written;
  if (filler_ > 0) {
    auto* filler = reinterpret_cast<TensorRecord*>(at(written));  // only its first 16 bytes are sure to fit
    filler->bytes = filler_;
    filler->kind = TensorKind::kFiller;
    filler->header_size = sizeof(TensorRecord);
  }
  store(ring_->taken, ring_->taken + 1);
  store(ring_->written, written + filler_ + record->bytes, std::memory_order_release);
}

void TensorWriter::count_due(uint64_t turns) { store(ring_->due, ring_->due + turns); }

void TensorWriter::count_skipped(TensorSkip reason, uint64_t turns) {
  const uint64_t& count = ring_->skips(reason);
  store(const_cast<uint64_t&>(count), count + turns);
}

void TensorWriter::count_heads_skipped(TensorHeadSkip reason) {
  const uint64_t& count = ring_->head_skips(reason);
  store(const_cast<uint64_t&>(count), count + 1);
}

void TensorWriter::tell_awaited(uint64_t turns) { store(ring_->awaited, turns); }

}  // namespace foreshock::segment
