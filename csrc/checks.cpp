// Functions for tests, which return intermediate values that no search returns: approximations, products and sums.
#include "products.hpp"
#include "transducer_beam_step.hpp"

using namespace ngpulm;

// Compute exp, sigmoid, tanh, or the tanh of gates.
NGPULM_EXPORT int64_t ngpulm_check_function(int64_t which, int64_t size, const float* numbers, float* out) {
  float (*const functions[])(float) = {exp_of, sigmoid_of, tanh_of, gate_tanh};
  for (int64_t i = 0; i < size; ++i) out[i] = functions[which](numbers[i]);
  return -1;
}

// Return the index of the highest number. `found` gets the highest number, the sum of exponentials and its log; see
// `normaliser_of`.
NGPULM_EXPORT int64_t ngpulm_check_softmax(int64_t size, const float* numbers, float* found) {
  return guarded([&] {
    const Normaliser normaliser = normaliser_of(numbers, size);
    found[0] = highest_of(numbers, size);
    found[1] = sum_of_exp(numbers, size, found[0]);
    found[2] = normaliser.log_sum;
    return normaliser.best;
  });
}

// Multiply rows [rows, inputs] by weights [size, inputs] and add biases; `out` is [rows, padded size].
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

// Return how many numbers the beam search for transducers examines to find the `most` highest sums of two numbers each; the
// last number is left out. Also write the indices of these numbers.
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
