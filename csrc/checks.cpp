// Parts that no search returns as they are, for tests: how near functions are to what they stand for, products, sums.
#include "products.hpp"
#include "transducer_beam_step.hpp"

using namespace ngpulm;

// One of exp, sigmoid, tanh and the tanh of gates.
NGPULM_EXPORT int64_t ngpulm_check_function(int64_t which, int64_t size, const float* numbers, float* out) {
  float (*const functions[])(float) = {exp_of, sigmoid_of, tanh_of, gate_tanh};
  for (int64_t i = 0; i < size; ++i) out[i] = functions[which](numbers[i]);
  return -1;
}

// The place of the highest number; `found` are the highest, the sum of exponentials and its log, see `normaliser_of`.
NGPULM_EXPORT int64_t ngpulm_check_softmax(int64_t size, const float* numbers, float* found) {
  return guarded([&] {
    const Normaliser normaliser = normaliser_of(numbers, size);
    found[0] = highest_of(numbers, size);
    found[1] = sum_of_exp(numbers, size, found[0]);
    found[2] = normaliser.log_sum;
    return normaliser.best;
  });
}

// Rows [rows, inputs] times weights [size, inputs], and biases; `out` is [rows, padded size].
NGPULM_EXPORT int64_t ngpulm_check_product(int64_t rows, int64_t size, int64_t inputs, const float* x, const float* weights,
                                           const float* biases, float* out) {
  return guarded([&]() -> int64_t {
    Floats panels(padded(size) * inputs), padded_biases(padded(size));
    std::copy_n(biases, size, padded_biases.data());
    lay_out(weights, size, inputs, 0, inputs, panels.data());
    multiply({panels.data(), padded_biases.data(), inputs, padded(size)}, x, inputs, rows, out, padded(size));
    return padded(size);
  });
}

// Which numbers the beam search for transducers looks at for the `most` highest sums of two each, the last one left out;
// returns how many.
NGPULM_EXPORT int64_t ngpulm_check_highest(int64_t size, const float* numbers, const float* others, int64_t most,
                                           int64_t* places) {
  return guarded([&] {
    int64_t count = 0;
    Highest highest(size);
    highest.fuse(numbers, others, size, size - 1);
    highest.each(most, [&](int64_t place, float) { places[count++] = place; });
    return count;
  });
}
