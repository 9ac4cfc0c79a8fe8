#include "products.hpp"

#include "vectors.hpp"

#ifndef __has_builtin
#define __has_builtin(name) 0
#endif

namespace ngpulm {

namespace {

// The tile of sums that fits into the registers: the number of rows, and of vectors per row.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int ROWS = 8, VECTORS = 3;
#else
constexpr int ROWS = 4, VECTORS = WIDTH == 4 ? 2 : 3;
#endif
constexpr int64_t PANEL = VECTORS * WIDTH;

Wide multiply_add(Wide a, Wide b, Wide c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#else
  for (int lane = 0; lane < WIDTH; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);  // one instruction
  return c;
#endif
}

template <class Run, int... I>
__attribute__((always_inline)) inline void each(Run&& run, std::integer_sequence<int, I...>) {
  (run(std::integral_constant<int, I>{}), ...);
}

// Call run(0), run(1) ... with constants. Arrays indexed by constants stay in registers.
template <int COUNT, class Run>
__attribute__((always_inline)) inline void repeat(Run&& run) {
  each(run, std::make_integer_sequence<int, COUNT>{});
}

// Compute one tile: R rows times P panels of C vectors, all inputs one after the other.
template <int R, int C, int P = 1>
void tile(const Layer& layer, int64_t begin, const float* x, int64_t x_stride, float* out, int64_t out_stride) {
  const float *panels = layer.panels + begin * layer.inputs, *biases = layer.biases + begin;
  const int64_t next_panel = C * WIDTH * layer.inputs;
  Wide sums[R][P * C];
  repeat<R>([&](auto r) { repeat<P * C>([&](auto c) { sums[r][c] = load(biases + c * WIDTH); }); });
  for (int64_t k = 0; k < layer.inputs; ++k) {
    Wide weights[P * C];
    repeat<P>(
        [&](auto p) { repeat<C>([&](auto c) { weights[p * C + c] = load(panels + p * next_panel + (k * C + c) * WIDTH); }); });
    repeat<R>([&](auto r) {
      const Wide value = x[r * x_stride + k] - Wide{};
      repeat<P * C>([&](auto c) { sums[r][c] = multiply_add(value, weights[c], sums[r][c]); });
    });
  }
  repeat<R>([&](auto r) {
    repeat<P * C>([&](auto c) { std::memcpy(out + begin + r * out_stride + c * WIDTH, &sums[r][c], sizeof(Wide)); });
  });
}

using Tile = void (*)(const Layer&, int64_t, const float*, int64_t, float*, int64_t);

// The functions for tiles of 1 .. ROWS rows.
template <int C, int... R>
Tile tile_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Tile tiles[] = {tile<R + 1, C>...};
  return tiles[rows - 1];
}

Tile tile_of(int64_t rows, int64_t vectors) {
  constexpr auto all = std::make_integer_sequence<int, ROWS>{};
  return vectors == 1 ? tile_of<1>(rows, all) : vectors == 2 ? tile_of<2>(rows, all) : tile_of<VECTORS>(rows, all);
}

typedef float Four __attribute__((vector_size(16)));

// Transpose four columns of four rows.
void transpose(const float* rows, int64_t stride, float* out, int64_t out_stride) {
  Four a[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&a[i], rows + i * stride, sizeof(Four));
  const Four left = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5), right = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
  const Four lower_left = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5),
             lower_right = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
  const Four columns[] = {
      __builtin_shufflevector(left, lower_left, 0, 1, 4, 5), __builtin_shufflevector(left, lower_left, 2, 3, 6, 7),
      __builtin_shufflevector(right, lower_right, 0, 1, 4, 5), __builtin_shufflevector(right, lower_right, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * out_stride, &columns[i], sizeof(Four));
}

}  // namespace

void lay_out(const float* weights, int64_t size, int64_t inputs, int64_t first, int64_t depth, float* panels) {
  for (int64_t begin = 0; begin < padded(size); begin += PANEL) {
    const int64_t wide = std::min(PANEL, padded(size) - begin), count = std::min(wide, size - begin);
    const float* rows = weights + begin * inputs;
    float* panel = panels + begin * depth + first * wide;
    int64_t row = 0, k = 0;
    for (; row + 4 <= count; row += 4) {
      for (k = 0; k + 4 <= inputs; k += 4) transpose(rows + row * inputs + k, inputs, panel + k * wide + row, wide);
      for (; k < inputs; ++k)
        for (int64_t i = row; i < row + 4; ++i) panel[k * wide + i] = rows[i * inputs + k];
    }
    for (k = 0; k < inputs; ++k)
      for (int64_t i = row; i < wide; ++i) panel[k * wide + i] = i < count ? rows[i * inputs + k] : 0.f;
  }
}

void multiply(const Layer& layer, const float* x, int64_t x_stride, int64_t rows, float* out, int64_t out_stride) {
  for (int64_t begin = 0; begin < layer.outputs; begin += PANEL) {
    if (rows <= 2 && begin + 2 * PANEL <= layer.outputs) {  // too few sums to keep the processor busy: two panels at once
      if (rows) (rows == 1 ? tile<1, VECTORS, 2> : tile<2, VECTORS, 2>)(layer, begin, x, x_stride, out, out_stride);
      begin += PANEL;
      continue;
    }
    const int64_t vectors = std::min(PANEL, layer.outputs - begin) / WIDTH;
    const Tile whole = tile_of(ROWS, vectors);
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
      whole(layer, begin, x + row * x_stride, x_stride, out + row * out_stride, out_stride);
    if (row < rows)
      tile_of(rows - row, vectors)(layer, begin, x + row * x_stride, x_stride, out + row * out_stride, out_stride);
  }
}

}  // namespace ngpulm
