// Products of a few rows with a layer's weights.
//
// Weights are laid out anew when utterances begin, since they may have changed since the last ones. A row's result doesn't
// depend on the rows beside it, so that what a search finds doesn't depend on its batch.
#pragma once
#include "core.hpp"

namespace ngpulm {

constexpr int64_t PADDING = 16;  // outputs of a layer fill whole vectors of so many

inline int64_t padded(int64_t size) { return (size + PADDING - 1) / PADDING * PADDING; }

// A linear layer, a view. Its outputs are padded with zeros.
struct Layer {
  const float* panels = nullptr;  // [outputs * inputs], see `lay_out`
  const float* biases = nullptr;  // [outputs]
  int64_t inputs = 0, outputs = 0;
};

// Put weights [size, inputs], of rows `stride` apart, into panels: blocks of outputs, in each the weights of one input after
// the other. They become those of the inputs `first .. first + inputs - 1` of a layer that has `depth` inputs.
void lay_out(const float* weights, int64_t size, int64_t inputs, int64_t first, int64_t depth, float* panels);

// out = biases + x @ weights.T for rows `x_stride` and `out_stride` apart.
void multiply(const Layer& layer, const float* x, int64_t x_stride, int64_t rows, float* out, int64_t out_stride);

}  // namespace ngpulm
