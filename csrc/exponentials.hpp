// Sums of exponentials: normalisers of frames, and log(exp(a) + exp(b)), several numbers at once.
//
// Numbers come out the same with each instruction set: vectors are as long whatever the registers are, and nothing is fused.
#pragma once
#include "core.hpp"

namespace ngpulm {

// Compiler vectors; those of the second kind lie anywhere in memory.
typedef float Floats __attribute__((vector_size(64)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef float FewFloats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
constexpr int64_t LANES = 16, DOUBLE_LANES = 8;

// exp of numbers up to 88: below -87.3 it stays what it is there, 1e-38; NaN stays (Cephes, relative error 2e-7).
template <class Vector>
inline Vector exp_of(Vector x) {
  using Integers = decltype(x < x);
  const Vector least = Vector{} - 87.3f;
  x = x < least ? least : x;
  const Vector shifted = x * 1.4426950408889634f + 12582912.f;  // adding 1.5 * 2^23 rounds to whole numbers
  const Vector rounded = shifted - 12582912.f;
  const Vector rest = (x - rounded * 0.693359375f) + rounded * 2.12194440e-4f;  // less ln 2 times it, in two parts
  Vector value = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * rest * rest + (rest + 1.f);
  // The power of 2 lies in the lowest bits of `shifted`; those above them leave at the top.
  const Integers scale = ((Integers)shifted << 23) + (127 << 23);
  return value * (Vector)scale;
}

// log(exp(a) + exp(b)). A summand less likely than the other by more than e^-25 is lost in single precision.
inline Doubles add_logs(Doubles a, Doubles b) {
  const Doubles high = a > b ? a : b, low = a > b ? b : a, difference = low - high;  // NaN where both are -inf
  const auto counts = difference > -25.0;
  const FewFloats x = __builtin_convertvector(counts ? difference : Doubles{} - 25.0, FewFloats);
  // log(1 + e) = 2 artanh(e / (2 + e)), e at most 1.
  const FewFloats e = exp_of(x), s = e / (e + 2.f), t = s * s;
  FewFloats sum = t * (1.f / 15) + 1.f / 13;
  sum = sum * t + 1.f / 11;
  sum = sum * t + 1.f / 9;
  sum = sum * t + 1.f / 7;
  sum = sum * t + 1.f / 5;
  sum = sum * t + 1.f / 3;
  sum = sum * t + 1.f;
  return counts ? high + __builtin_convertvector(2.f * s * sum, Doubles) : high;
}

inline double add_logs(double a, double b) { return add_logs(Doubles{a}, Doubles{b})[0]; }

// The highest of some numbers, -inf for none; what isn't a number doesn't count.
inline float highest_of(const float* x, int64_t size) {
  Floats highest = Floats{} + NEG_INF;
  int64_t at = 0;
  for (; at + LANES <= size; at += LANES) {
    const Floats part = *reinterpret_cast<const LooseFloats*>(x + at);
    highest = part > highest ? part : highest;
  }
  float found = NEG_INF;
  for (int lane = 0; lane < LANES; ++lane) found = highest[lane] > found ? highest[lane] : found;
  for (; at < size; ++at) found = x[at] > found ? x[at] : found;
  return found;
}

// log of the sum of the exponentials of some numbers, of which `highest` is the highest: not finite where one isn't a number or
// is infinite, or where all are impossible.
inline float log_sum_exp(const float* x, int64_t size, float highest) {
  if (!(highest > NEG_INF && highest < -NEG_INF)) return highest;
  Floats sums = {};
  int64_t at = 0;
  for (; at + LANES <= size; at += LANES) sums += exp_of(Floats(*reinterpret_cast<const LooseFloats*>(x + at)) - highest);
  if (at < size) {
    Floats rest = Floats{} + NEG_INF;
    for (int lane = 0; at + lane < size; ++lane) rest[lane] = x[at + lane];
    sums += exp_of(rest - highest);
  }
  double sum = 0.0;
  for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
  return float(highest + std::log(sum));
}

}  // namespace ngpulm
