// Common parts of all files of the core: exported functions, results, and small numerical helpers.
//
// Each exported function is `extern "C"` and takes plain numbers, pointers, and pointers to the structs of this folder. If it
// has rows, it processes the rows `first .. last - 1`. It returns an int64: its documented result (0 or more, or -1), or
// FAILED_*. It keeps no state between calls, and may run in many threads at once.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#ifdef _WIN32
#define NGPULM_EXPORT extern "C" __declspec(dllexport)
#else
#define NGPULM_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace ngpulm {

constexpr int64_t FAILED_MEMORY = -100, FAILED_INTERNALLY = -101, FAILED_CHECK = -102;  // as in hf_ngpulm/engines/native.py

struct Broken {};  // thrown if data from a file are invalid
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();
constexpr double NEG_INF_DOUBLE = -std::numeric_limits<double>::infinity();

// a * b + c, rounded once if the processor supports it. So products of matrices run at full speed.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The hash of some tokens with one more token, as in the reference searches.
constexpr int64_t FIRST_HASH = 0x2545F491;
inline int64_t extended_hash(int64_t hash, int64_t token) {
  const auto mixed = int64_t((uint64_t(hash) + uint64_t(token) + 1) * 6364136223846793005u + 1442695040888963407u);
  return mixed ^ (mixed >> 29);
}

// Return the index of the first number that is at least `value`, among ascending numbers from `low` on. The index is near
// `low`.
template <class Value>
int64_t gallop(const Value* values, int64_t low, int64_t end, Value value) {
  if (low >= end || values[low] >= value) return low;
  int64_t step = 1;
  for (; step < end - low && values[low + step] < value; step *= 2) low += step;
  for (step /= 2; step > 0; step /= 2)
    if (step < end - low && values[low + step] < value) low += step;
  return low + 1;
}

// Return the result of `run()`. Exceptions become return values, because none may cross the boundary.
template <class Run>
int64_t guarded(Run&& run) noexcept {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return FAILED_MEMORY;
  } catch (const Broken&) {
    return FAILED_CHECK;
  } catch (...) {
    return FAILED_INTERNALLY;
  }
}

}  // namespace ngpulm
