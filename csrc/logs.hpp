// Sums of probabilities in logs.
#pragma once
#include "vectors.hpp"

namespace ngpulm {

// `add_logs` of pairs of numbers, without branches: compilers make vector instructions of it.
inline void add_all_logs(const double* a, const double* b, int64_t size, double* sums) {
  for (int64_t i = 0; i < size; ++i) {
    const double high = a[i] > b[i] ? a[i] : b[i], low = a[i] > b[i] ? b[i] : a[i];
    const auto difference = float(low - high);  // NaN where both are -inf
    const bool counts = difference > -25.f;
    const float e = exp_of(counts ? difference : -25.f), s = e / (e + 2.f), square = s * s;
    float sum = multiply_add(square, 1.f / 15, 1.f / 13);
    sum = multiply_add(sum, square, 1.f / 11);
    sum = multiply_add(sum, square, 1.f / 9);
    sum = multiply_add(sum, square, 1.f / 7);
    sum = multiply_add(sum, square, 1.f / 5);
    sum = multiply_add(sum, square, 1.f / 3);
    sum = multiply_add(sum, square, 1.f);
    sums[i] = counts ? high + double(2.f * s * sum) : high;
  }
}

}  // namespace ngpulm
