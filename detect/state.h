// Saves and restores the state of detectors as bytes, so that a restarted agent continues where the earlier
// one stopped. A class has a `template <class State> void fields(State& state)`, which calls state(x) for
// each of its saved members x: a StateWriter (kReads false) writes x, a StateReader (kReads true) sets x.
#ifndef FORESHOCK_DETECT_STATE_H_
#define FORESHOCK_DETECT_STATE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace foreshock {

// Writes fields in native byte order, since the bytes stay on the machine.
class StateWriter {
 public:
  static constexpr bool kReads = false;

  void operator()(const double& value) { put(&value, sizeof value); }
  void operator()(const int64_t& value) { put(&value, sizeof value); }
  void operator()(const uint64_t& value) { put(&value, sizeof value); }
  void operator()(const int& value) { (*this)(static_cast<int64_t>(value)); }
  void operator()(const bool& value) { (*this)(static_cast<uint64_t>(value)); }
  void operator()(const std::string& text) {
    (*this)(static_cast<uint64_t>(text.size()));
    put(text.data(), text.size());
  }
  void require(bool) {}  // StateReader::require() checks values that were read; written ones need no check

  const std::string& bytes() const { return bytes_; }

 private:
  void put(const void* from, size_t size) { bytes_.append(static_cast<const char*>(from), size); }
  std::string bytes_;
};

// Reads fields. The bytes may be invalid: after the first invalid field, good() stays false, and every value
// is read as zero, false or "". If good() is false, the object whose fields were read must not be used.
class StateReader {
 public:
  static constexpr bool kReads = true;
  static constexpr uint64_t kLongestText = 1024;

  explicit StateReader(std::string_view bytes) : rest_(bytes) {}

  void operator()(double& value) { take(&value, sizeof value); }
  void operator()(int64_t& value) { take(&value, sizeof value); }
  void operator()(uint64_t& value) { take(&value, sizeof value); }
  void operator()(int& value) {
    int64_t wide = 0;
    (*this)(wide);
    require(wide == static_cast<int>(wide));
    value = good_ ? static_cast<int>(wide) : 0;
  }
  void operator()(bool& value) {
    uint64_t wide = 0;
    (*this)(wide);
    require(wide <= 1);
    value = wide == 1;
  }
  void operator()(std::string& text) {
    uint64_t size = 0;
    (*this)(size);
    require(size <= kLongestText && size <= rest_.size());
    text.assign(rest_.substr(0, good_ ? size : 0));
    rest_.remove_prefix(good_ ? size : 0);
  }
  // Reads the number of items that follow, each of at least eight bytes. A number above `most` is invalid.
  uint64_t count(uint64_t most) {
    uint64_t number = 0;
    (*this)(number);
    require(number <= most && number <= rest_.size() / sizeof(uint64_t));
    return good_ ? number : 0;
  }
  // Marks the bytes as invalid if `condition` is false.
  void require(bool condition) { good_ = good_ && condition; }
  bool good() const { return good_; }
  bool at_end() const { return rest_.empty(); }

 private:
  void take(void* to, size_t size) {
    require(rest_.size() >= size);
    if (!good_) return static_cast<void>(std::memset(to, 0, size));
    std::memcpy(to, rest_.data(), size);
    rest_.remove_prefix(size);
  }
  std::string_view rest_;
  bool good_ = true;
};

// Saves or restores a map of objects that have fields(). Refuses maps with more than `most` elements.
template <class State, class Map>
void map_fields(State& state, Map& map, uint64_t most) {
  if constexpr (State::kReads) {
    map.clear();
    const uint64_t count = state.count(most);
    for (uint64_t n = 0; n < count && state.good(); ++n) {
      typename Map::key_type key{};
      state(key);
      map[key].fields(state);
    }
  } else {
    state(static_cast<uint64_t>(map.size()));
    for (auto& [key, value] : map) {
      state(key);
      value.fields(state);
    }
  }
}

}  // namespace foreshock

#endif  // FORESHOCK_DETECT_STATE_H_
