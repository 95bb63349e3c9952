// How many of its variations a test tries. Some tests repeat one check with thousands of inputs. A sanitizer
// slows them down by a factor of 10 or more, and looks for errors that do not depend on the exact input. So
// under a sanitizer they take every ninth variation; the release build takes all.
#ifndef FORESHOCK_TESTS_SUPPORT_VARIATIONS_H_
#define FORESHOCK_TESTS_SUPPORT_VARIATIONS_H_

namespace foreshock::test {

#ifdef __has_feature  // clang, with which the presets asan and tsan compile
inline constexpr bool kIsSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kIsSanitized = false;
#endif
inline constexpr int kVariationStep = kIsSanitized ? 9 : 1;  // tests also vary by n % 4, 5, 7 and 8

}  // namespace foreshock::test

// Ends a test of figures under a sanitizer: it repeats for long what smaller tests run once.
#define FORESHOCK_SKIP_IF_SANITIZED() \
  if (::foreshock::test::kIsSanitized) GTEST_SKIP() << "figures are tested in the release build"

#endif  // FORESHOCK_TESTS_SUPPORT_VARIATIONS_H_
