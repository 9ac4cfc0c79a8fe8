// Products of a few rows with a layer's weights.
//
// Weights are laid out again when utterances begin, because they may have changed. A row's result doesn't depend on the other
// rows, so the result of a search doesn't depend on its batch.
#pragma once
#include "core.hpp"

namespace ngpulm {

constexpr int64_t PADDING = 16;  // the number of a layer's outputs is padded to a multiple of this

inline int64_t padded(int64_t size) { return (size + PADDING - 1) / PADDING * PADDING; }

// A view of a linear layer. Its outputs are padded with zeros.
struct Layer {
  const float* panels = nullptr;  // [outputs * inputs], see `lay_out`
  const float* biases = nullptr;  // [outputs]
  int64_t inputs = 0, outputs = 0;
};

// Write weights [size, inputs], with rows `stride` apart, into panels. A panel is a block of outputs, and holds the weights
// of one input after the other. The weights become those of the inputs `first .. first + inputs - 1` of a layer with `depth`
// inputs.
void lay_out(const float* weights, int64_t size, int64_t inputs, int64_t first, int64_t depth, float* panels);

// out = biases + x @ weights.T, with rows `x_stride` and `out_stride` apart.
void multiply(const Layer& layer, const float* x, int64_t x_stride, int64_t rows, float* out, int64_t out_stride);

}  // namespace ngpulm
