// Functions and sums over many numbers, as plain loops that compilers turn into vector instructions of any width.
//
// Sums are computed as `LANES` partial sums for every width, so that all instruction sets give the same numbers. NaN stays
// NaN.
#pragma once
#include "core.hpp"

namespace ngpulm {

constexpr int LANES = 16;

// An array of numbers that is aligned to a cache line.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t ALIGNMENT{64};
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), ALIGNMENT)); }
  void deallocate(T* room, size_t) { ::operator delete(room, ALIGNMENT); }
  bool operator==(const AlignedAllocator&) const { return true; }
  bool operator!=(const AlignedAllocator&) const { return false; }
};
using Floats = std::vector<float, AlignedAllocator<float>>;

// Return the same bits as another type.
template <class To, class From>
inline To bits_as(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float at_least(float number, float least) { return number < least ? least : number; }
inline float at_most(float number, float most) { return number > most ? most : number; }

// exp for arguments from -87.3 to 88.3, within 2e-7 of the value (Cephes' polynomial).
inline float exp_within(float x) {
  const float shifted = multiply_add(x, 1.4426950408889634f, 12582912.f);  // rounds to a whole number, in the lowest bits
  const float power = shifted - 12582912.f;
  const float rest = multiply_add(power, 2.12194440e-4f, multiply_add(power, -0.693359375f, x));
  float value = multiply_add(1.9875691500e-4f, rest, 1.3981999507e-3f);
  value = multiply_add(value, rest, 8.3334519073e-3f);
  value = multiply_add(value, rest, 4.1665795894e-2f);
  value = multiply_add(value, rest, 1.6666665459e-1f);
  value = multiply_add(value, rest, 5.0000001201e-1f);
  value = multiply_add(value * rest, rest, rest + 1.f);
  // Shifting leaves only the bits of the power of 2.
  return value * bits_as<float>(int32_t((bits_as<uint32_t>(shifted) << 23) + (uint32_t(127) << 23)));
}

// exp of any number. Numbers outside the range are replaced by the nearest bound.
inline float exp_of(float number) { return exp_within(at_most(at_least(number, -87.3f), 88.3f)); }

inline float sigmoid_of(float x) { return 1.f / (1.f + exp_of(-x)); }

inline float tanh_of(float x) {
  const float square = x * x;
  float value = multiply_add(-5.70498872745e-3f, square, 2.06390887954e-2f);
  value = multiply_add(value, square, -5.37397155531e-2f);
  value = multiply_add(value, square, 1.33314422036e-1f);
  value = multiply_add(value, square, -3.33332819422e-1f);
  const float near_zero = multiply_add(x * square, value, x);
  const float falling = exp_of(-2.f * std::fabs(x));
  const float far = (1.f - falling) / (1.f + falling);
  return square < 0.390625f ? near_zero : x > 0.f ? far : -far;
}

// tanh within 4e-7: a quotient of polynomials, fitted over -8..8 for the smallest maximum error. It takes one division and no
// exp, so it is three times as fast as `tanh_of`.
inline float gate_tanh(float number) {
  const float x = at_most(at_least(number, -8.f), 8.f), square = x * x;
  float above = multiply_add(2.3491618e-11f, square, -1.46976897e-8f);
  above = multiply_add(above, square, 9.876423e-6f);
  above = multiply_add(above, square, 2.9856104e-3f);
  above = multiply_add(above, square, 0.12978986f);
  above = multiply_add(above, square, 1.f);
  float below = multiply_add(2.371689e-4f, square, 0.024026884f);
  below = multiply_add(below, square, 0.463123f);
  below = multiply_add(below, square, 1.f);
  return x * above / below;
}

// sigmoid(x) = (1 + tanh(x / 2)) / 2.
inline float gate_sigmoid(float x) { return multiply_add(0.5f, gate_tanh(0.5f * x), 0.5f); }

// The sum of `term(number)`. `nothing` is a number whose term is (nearly) 0. Terms are added in pairs in single precision.
// Each pair's sum is split at 2^-12: thousands of upper parts add up without rounding, and the rounding errors of the lower
// parts are negligible.
template <class Term>
inline double sum_of(const float* numbers, int64_t size, float nothing, Term&& term) {
  float above[LANES] = {}, below[LANES] = {};
  const auto add = [&](const float* pairs) {
    for (int lane = 0; lane < LANES; ++lane) {
      const float both = term(pairs[lane]) + term(pairs[LANES + lane]), upper = (both + 3072.f) - 3072.f;
      above[lane] += upper;
      below[lane] += both - upper;
    }
  };
  int64_t at = 0;
  for (; at + 2 * LANES <= size; at += 2 * LANES) add(numbers + at);
  if (at < size) {
    float rest[2 * LANES];
    for (int lane = 0; lane < 2 * LANES; ++lane) rest[lane] = at + lane < size ? numbers[at + lane] : nothing;
    add(rest);
  }
  double sums[LANES];
  for (int lane = 0; lane < LANES; ++lane) sums[lane] = double(above[lane]) + double(below[lane]);
  for (int half = LANES / 2; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

// exp of a number from -87.3 to 0, as a term of a sum that includes exp(0) = 1: within 1e-7 of the sum. It takes less work
// than `exp_within`: a product rounded once, and a polynomial for powers of 2 with the smallest maximum error. Operations
// aren't fused, because processors without fused operations would give other bits.
inline float exp_as_part(float x) {
  const float power = x * 1.4426950408889634f;
  const float shifted = power + (12582912.f + 127.f);  // rounds to a whole number, in the lowest bits, as exponents are written
  const float rest = power - (shifted - (12582912.f + 127.f));
  float value = 0.001326470053754747f * rest + 0.009671534411609173f;
  value = value * rest + 0.05550733953714371f;
  value = value * rest + 0.24022242426872253f;
  value = value * rest + 0.6931470036506653f;
  value = value * rest + 1.f;
  return value * bits_as<float>(bits_as<uint32_t>(shifted) << 23);
}

// The sum of exp(number - highest).
inline double sum_of_exp(const float* numbers, int64_t size, float highest) {
  return sum_of(numbers, size, NEG_INF, [=](float x) { return exp_as_part(at_least(x - highest, -87.3f)); });
}

// The log of the sum of exponentials, rounded to 2^-30. So sums of it and of numbers in single precision are exact in double
// precision, and alignments have equal scores if they have the same terms in another order.
inline double log_sum_of_exp(double sum, float highest) { return (double(highest) + std::log(sum) + 6291456.0) - 6291456.0; }

// log(1 + exp(x)) for x from -25 to 0, within 1e-8, as 2 artanh(e / (2 + e)). Both functions are polynomials with the
// smallest maximum error.
inline double log_of_one_and(double x) {
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;  // rounds to a whole number, in the lowest bits
  const double rest = x - (shifted - 6755399441055744.0) * 0.6931471805599453;
  double value = 1.3843606801874314e-3 * rest + 8.374195708991488e-3;
  value = value * rest + 4.1668004728882935e-2;
  value = value * rest + 1.6666430799321585e-1;
  value = value * rest + 4.9999994191619107e-1;
  value = value * rest + 1.000000032258839;
  value = value * rest + 1.0;
  const double e = value * bits_as<double>((bits_as<uint64_t>(shifted) << 52) + (uint64_t(1023) << 52));
  const double s = e / (e + 2.0), square = s * s;
  double sum = 1.421498930163433e-1 * square + 1.3953192374911427e-1;
  sum = sum * square + 2.0014152559713874e-1;
  sum = sum * square + 3.3333135567771244e-1;
  sum = sum * square + 1.0;
  return 2.0 * s * sum;
}

// log(exp(a) + exp(b)). If one term is below the other by a factor of more than e^25, it is lost in single precision.
inline double add_logs(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a, difference = low - high;
  return difference > -25.0 ? high + log_of_one_and(difference) : high;  // `high`, too, if both are -inf
}

// The same for pairs of numbers, without branches, so that compilers use vector instructions.
inline void add_all_logs(const double* a, const double* b, int64_t size, double* sums) {
  for (int64_t i = 0; i < size; ++i) {
    const double high = a[i] > b[i] ? a[i] : b[i], low = a[i] > b[i] ? b[i] : a[i];
    const double difference = low - high;  // NaN if both are -inf
    const bool counts = difference > -25.0;
    const double more = log_of_one_and(counts ? difference : -25.0);
    sums[i] = counts ? high + more : high;
  }
}

// Vectors for loops in which compilers find no vector instructions. They are as wide as the registers; several hold `LANES`
// numbers.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
typedef float Wide __attribute__((vector_size(4 * WIDTH)));

inline Wide load(const float* numbers) {
  Wide loaded;
  std::memcpy(&loaded, numbers, sizeof loaded);
  return loaded;
}

// The highest number at each of the `LANES` positions; NaN is skipped.
struct Tops {
  Wide tops[LANES / WIDTH];

  Tops() {
    for (Wide& top : tops) top = Wide{} + NEG_INF;
  }
  void take(const float* numbers) {
    for (int i = 0; i < LANES / WIDTH; ++i) {
      const Wide x = load(numbers + i * WIDTH);
      tops[i] = x > tops[i] ? x : tops[i];
    }
  }
  float highest() const {
    float numbers[LANES], highest = NEG_INF;
    std::memcpy(numbers, tops, sizeof numbers);
    for (float number : numbers) highest = number > highest ? number : highest;
    return highest;
  }
  // The highest of these numbers that at least `most` of them reach; -inf if there are fewer than `most` numbers.
  float reached_by(int64_t most) const {
    float numbers[LANES], least = NEG_INF;
    std::memcpy(numbers, tops, sizeof numbers);
    for (const Wide& some : tops) {
      auto reached = some > some;  // 0; each hit subtracts 1
      for (float number : numbers) reached += number >= some;
      for (int lane = 0; lane < WIDTH; ++lane) least = -reached[lane] >= most && some[lane] > least ? some[lane] : least;
    }
    return least;
  }
};

// The highest number; NaN is skipped. -inf if there is none.
inline float highest_of(const float* numbers, int64_t size) {
  constexpr int STRANDS = 4;  // independent chains of operations, which don't wait for each other
  Tops tops[STRANDS];
  int64_t at = 0;
  for (; at + STRANDS * LANES <= size; at += STRANDS * LANES)
    for (int strand = 0; strand < STRANDS; ++strand) tops[strand].take(numbers + at + strand * LANES);
  for (; at + LANES <= size; at += LANES) tops[0].take(numbers + at);
  float highest = NEG_INF;
  if (at)
    for (const Tops& some : tops) highest = std::max(highest, some.highest());
  for (; at < size; ++at) highest = numbers[at] > highest ? numbers[at] : highest;
  return highest;
}

// The index of the first number that is at least as high. There must be one.
inline int64_t first_at_least(const float* numbers, int64_t size, float least) {
  constexpr int64_t BLOCK = 4 * LANES;
  int64_t at = 0;
  for (; at + BLOCK <= size; at += BLOCK) {
    int32_t hits = 0;
    for (int64_t i = 0; i < BLOCK; ++i) hits += numbers[at + i] >= least;
    if (hits) break;
  }
  while (at < size - 1 && !(numbers[at] >= least)) ++at;
  return at;
}

// The index of the first highest number, and the log of the sum of exponentials. The log is NaN if a number is NaN or
// infinity, or if no number is above -inf.
struct Normaliser {
  int64_t best;
  double log_sum;
};

inline Normaliser normaliser_of(const float* numbers, int64_t size) {
  const float highest = highest_of(numbers, size);
  if (!(std::fabs(highest) < std::numeric_limits<float>::infinity())) return {0, std::numeric_limits<double>::quiet_NaN()};
  return {first_at_least(numbers, size, highest), log_sum_of_exp(sum_of_exp(numbers, size, highest), highest)};
}

}  // namespace ngpulm
