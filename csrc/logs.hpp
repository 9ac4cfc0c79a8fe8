// Sums of probabilities in logs.
#pragma once
#include "vectors.hpp"

namespace ngpulm {

// log(exp(a) + exp(b)), as a plain expression: loops over it become vector instructions. A summand less likely than the other by
// more than e^-25 is lost in single precision.
inline double add_logs(double a, double b) {
  constexpr float NEGLIGIBLE = -25.f;
  const double high = a > b ? a : b, low = a > b ? b : a;
  const float difference = float(low - high);  // NaN where both are -inf
  const bool counts = difference > NEGLIGIBLE;
  // log(1 + e) = 2 artanh(e / (2 + e)), e at most 1.
  const float e = exp_of(counts ? difference : NEGLIGIBLE), s = e / (e + 2.f), square = s * s;
  float sum = multiply_add(square, 1.f / 15, 1.f / 13);
  sum = multiply_add(sum, square, 1.f / 11);
  sum = multiply_add(sum, square, 1.f / 9);
  sum = multiply_add(sum, square, 1.f / 7);
  sum = multiply_add(sum, square, 1.f / 5);
  sum = multiply_add(sum, square, 1.f / 3);
  sum = multiply_add(sum, square, 1.f);
  return counts ? high + double(2.f * s * sum) : high;
}

}  // namespace ngpulm
