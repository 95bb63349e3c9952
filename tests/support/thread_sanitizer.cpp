// What ThreadSanitizer must not report. The trainer copies counters from its image of the segment into the
// file by pwrite() while other threads add to them atomically; a counter that changes meanwhile is copied
// again later. The sanitizer takes the copy for plain reads. It also does not see that a thread reuses a slot
// only after the agent has read it from the file (segment/writer.cpp).
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:foreshock::segment::SegmentWriter::put\n";
}
