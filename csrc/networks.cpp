#include "networks.hpp"

namespace ngpulm {

namespace {

enum Activation : int64_t { RELU, TANH, SIGMOID, SILU };  // as hf_ngpulm/search/networks/networks.py counts them

const float* address(const NgpulmNetworks& networks, int64_t layer, int64_t part) {
  return reinterpret_cast<const float*>(networks.layers[4 * layer + part]);
}

}  // namespace

LaidOut::LaidOut(const NgpulmNetworks& networks) {
  const auto layer = [&](int64_t inputs, int64_t outputs) {
    Layer made{nullptr, nullptr, inputs, padded(outputs)};
    if (networks.laid_out) made.panels = networks.laid_out + floats, made.biases = made.panels + made.inputs * made.outputs;
    floats += (made.inputs + 1) * made.outputs;
    return made;
  };
  const int64_t gates = 4 * networks.size;
  if (networks.num_layers) inputs = layer(networks.embedded, gates), recurrent = layer(networks.size, gates);
  for (int64_t i = 1; i < networks.num_layers; ++i) above.push_back(layer(2 * networks.size, gates));
  projection = layer(networks.size, networks.width);
  head = layer(networks.width, networks.outputs);
}

void LaidOut::fill(const NgpulmNetworks& networks) const {
  const auto panels = [](const Layer& layer) { return const_cast<float*>(layer.panels); };
  const auto biases = [](const Layer& layer, int64_t size, const float* bias, const float* other = nullptr) {
    float* out = std::fill_n(const_cast<float*>(layer.biases), layer.outputs, 0.f) - layer.outputs;
    for (int64_t i = 0; bias && i < size; ++i) out[i] = other ? bias[i] + other[i] : bias[i];
  };
  const int64_t size = networks.size, gates = 4 * size;
  for (int64_t i = 0; i < networks.num_layers; ++i) {
    const float *weight_ih = address(networks, i, 0), *weight_hh = address(networks, i, 1);
    if (i == 0) {
      lay_out(weight_ih, gates, networks.embedded, 0, networks.embedded, panels(inputs));
      lay_out(weight_hh, gates, size, 0, size, panels(recurrent));
      biases(recurrent, gates, nullptr);
    } else {
      lay_out(weight_ih, gates, size, 0, 2 * size, panels(above[i - 1]));
      lay_out(weight_hh, gates, size, size, 2 * size, panels(above[i - 1]));
    }
    biases(i ? above[i - 1] : inputs, gates, address(networks, i, 2), address(networks, i, 3));
  }
  lay_out(networks.projection, networks.width, size, 0, size, panels(projection));
  biases(projection, networks.width, networks.projection_bias);
  lay_out(networks.head, networks.outputs, networks.width, 0, networks.width, panels(head));
  biases(head, networks.outputs, networks.head_bias);
}

Networks::Networks(const NgpulmNetworks& networks, const NgpulmSlots& slots, int64_t most, int64_t most_joined)
    : networks_(networks),
      slots_(slots),
      layers_(networks),
      joined_(std::max(most, most_joined) * networks.width),
      logits_(most_joined * layers_.head.outputs),
      below_(most * networks.size),
      projected_(most * layers_.projection.outputs) {
  if (!networks.num_layers) return;
  embedded_.resize(most * networks.embedded);
  before_.resize(most * (networks.num_layers > 1 ? 2 : 1) * networks.size);
  gates_.resize(most * layers_.recurrent.outputs);
  recurrent_.reset(new float[slots.slots * layers_.recurrent.outputs]);
  has_recurrent_.assign(slots.slots, false);
  in_table_.assign(networks.tokens, -1);
}

void Networks::hear(int64_t line, const float* frame, int64_t slot) {
  float* __restrict out = joined_.data() + line * networks_.width;
  const float* said = prediction(slot);
  for (int64_t d = 0; d < networks_.width; ++d) out[d] = frame[d] + said[d];
  activate(out);
}

void Networks::activate(float* out) const {
  const auto each = [out, width = networks_.width](auto&& function) {
    for (int64_t d = 0; d < width; ++d) out[d] = function(out[d]);
  };
  switch (networks_.activation) {
    case RELU:
      return each([](float x) { return at_least(x, 0.f); });
    case TANH:
      return each([](float x) { return tanh_of(x); });
    case SIGMOID:
      return each([](float x) { return sigmoid_of(x); });
    default:
      return each([](float x) { return x * sigmoid_of(x); });
  }
}

void Networks::join(int64_t lines, int64_t blank) {
  multiply(layers_.head, joined_.data(), networks_.width, lines, logits_.data(), layers_.head.outputs);
  // A HAT (Variani et al. 2020, equations 4 to 6) gives the blank the probability b = sigmoid(x_blank), and divides 1 - b
  // among the labels by a softmax. A softmax over all classes gives the same if x_blank is raised by the labels' logsumexp.
  if (networks_.separate_blank)
    for (int64_t line = 0; line < lines; ++line) logits(line)[blank] += float(normaliser_of(logits(line), blank).log_sum);
}

void Networks::ask_internal_lm(int64_t count, const int64_t* slots, int64_t blank, int64_t classes) {
  const Layer& head = layers_.head;
  for (int64_t i = 0; i < count; ++i)
    activate(std::copy_n(prediction(slots[i]), networks_.width, joined_.data() + i * networks_.width) - networks_.width);
  if (internal_.size() < size_t(count * head.outputs)) internal_.resize(count * head.outputs);
  const auto least = float(-std::log(double(std::max<int64_t>(classes - 1, 1))));  // see TransducerModel.internal_lm
  multiply(head, joined_.data(), networks_.width, count, internal_.data(), head.outputs);
  for (int64_t i = 0; i < count; ++i) {
    float* scores = internal_.data() + i * head.outputs;
    scores[blank] = NEG_INF;
    const auto log_sum = float(normaliser_of(scores, classes).log_sum);
    for (int64_t c = 0; c < classes; ++c) {
      scores[c] -= log_sum;
      if (scores[c] < least && c != blank) scores[c] = least;
    }
  }
}

void Networks::predict(int64_t count, const int64_t* sources, const int64_t* tokens, const int64_t* targets) {
  if (networks_.num_layers)
    lstm(count, sources, tokens, targets);
  else
    for (int64_t i = 0; i < count; ++i) convolve(i, sources[i], tokens[i], targets[i]);
  const Layer& projection = layers_.projection;
  multiply(projection, below_.data(), networks_.size, count, projected_.data(), projection.outputs);
  for (int64_t i = 0; i < count; ++i)
    std::copy_n(projected_.data() + i * projection.outputs, networks_.width, prediction(targets[i]));
}

void Networks::lstm(int64_t count, const int64_t* sources, const int64_t* tokens, const int64_t* targets) {
  const int64_t size = networks_.size, num_layers = networks_.num_layers, gates_of_row = layers_.recurrent.outputs;
  look_up(count, tokens);
  recur(count, sources);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (layer) {
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(state(layer, sources[i]), size, std::copy_n(below_.data() + i * size, size, before_.data() + 2 * i * size));
      multiply(layers_.above[layer - 1], before_.data(), 2 * size, count, gates_.data(), gates_of_row);
    }
    for (int64_t i = 0; i < count; ++i) {
      float *gates = gates_.data() + i * gates_of_row, *cell = state(num_layers + layer, targets[i]);
      if (layer == 0) {
        const float* of_token = table_.data() + in_table_[tokens[i]] * gates_of_row;
        const float* of_state = recurrent_.get() + sources[i] * gates_of_row;
        for (int64_t j = 0; j < gates_of_row; ++j) gates[j] = of_state[j] + of_token[j];
      }
      if (sources[i] != targets[i]) std::copy_n(state(num_layers + layer, sources[i]), size, cell);
      open_gates(gates, cell, state(layer, targets[i]), below_.data() + i * size);
    }
  }
  for (int64_t i = 0; i < count; ++i) has_recurrent_[targets[i]] = false;
}

// Compute the first layer's products with the hidden states in slots. They are kept, because several tokens may follow a state.
void Networks::recur(int64_t count, const int64_t* slots) {
  const int64_t size = networks_.size, outputs = layers_.recurrent.outputs;
  missing_.clear();
  for (int64_t i = 0; i < count; ++i)
    if (!has_recurrent_[slots[i]]) {
      std::copy_n(state(0, slots[i]), size, before_.data() + int64_t(missing_.size()) * size);
      has_recurrent_[slots[i]] = true;
      missing_.push_back(slots[i]);
    }
  multiply(layers_.recurrent, before_.data(), size, int64_t(missing_.size()), gates_.data(), outputs);
  for (size_t i = 0; i < missing_.size(); ++i)
    std::copy_n(gates_.data() + int64_t(i) * outputs, outputs, recurrent_.get() + missing_[i] * outputs);
}

// Compute the new cell and the output.
void Networks::open_gates(const float* __restrict gates, float* __restrict cell, float* __restrict hidden,
                          float* __restrict below) const {
  const int64_t size = networks_.size;
  for (int64_t j = 0; j < size; ++j) {
    const float enter = gate_sigmoid(gates[j]), forget = gate_sigmoid(gates[size + j]);
    const float candidate = gate_tanh(gates[2 * size + j]), leave = gate_sigmoid(gates[3 * size + j]);
    cell[j] = multiply_add(forget, cell[j], enter * candidate);
    hidden[j] = below[j] = leave * gate_tanh(cell[j]);
  }
}

// Store the first layer's products with tokens in the table.
void Networks::look_up(int64_t count, const int64_t* tokens) {
  int64_t fresh = 0;
  for (int64_t i = 0; i < count; ++i)
    if (in_table_[tokens[i]] < 0) {
      in_table_[tokens[i]] = int32_t(used_ + fresh);
      std::copy_n(networks_.embedding + tokens[i] * networks_.embedded, networks_.embedded,
                  embedded_.data() + fresh++ * networks_.embedded);
    }
  if (!fresh) return;
  const Layer& inputs = layers_.inputs;
  table_.resize((used_ + fresh) * inputs.outputs);
  multiply(inputs, embedded_.data(), inputs.inputs, fresh, table_.data() + used_ * inputs.outputs, inputs.outputs);
  used_ += fresh;
}

// A prediction network that reads only the last tokens, with a ReLU.
void Networks::convolve(int64_t line, int64_t source, int64_t token, int64_t target) {
  const int64_t before = networks_.places - 1, size = networks_.size;
  const float *last = networks_.embedding + token * size, *weights = networks_.convolution;
  float* out = below_.data() + line * size;
  for (int64_t j = 0; j < size; ++j) {
    float x = multiply_add(weights[j * networks_.places + before], last[j], networks_.convolution_bias[j]);
    for (int64_t k = 0; k < before; ++k) x = multiply_add(weights[j * networks_.places + k], state(k, source)[j], x);
    out[j] = at_least(x, 0.f);
  }
  for (int64_t k = 0; k + 1 < before; ++k) std::copy_n(state(k + 1, source), size, state(k, target));
  if (before) std::copy_n(last, size, state(before - 1, target));
}

void Networks::begin(int64_t slot, int64_t blank) {
  for (int64_t part = 0; part < slots_.parts; ++part)  // zeros or blanks stand before the first token
    if (networks_.num_layers)
      std::fill_n(state(part, slot), networks_.size, 0.f);
    else
      std::copy_n(networks_.embedding + blank * networks_.embedded, networks_.size, state(part, slot));
  predict(1, &slot, &blank, &slot);
}

void Networks::copy(int64_t source, int64_t target) {
  for (int64_t part = 0; part < slots_.parts; ++part) std::copy_n(state(part, source), networks_.size, state(part, target));
  std::copy_n(prediction(source), networks_.width, prediction(target));
  if (networks_.num_layers) has_recurrent_[target] = false;
}

}  // namespace ngpulm

using namespace ngpulm;

// Return how many numbers `laid_out` must hold.
NGPULM_EXPORT int64_t ngpulm_laid_out_size(const NgpulmNetworks* networks) {
  return guarded([&] { return LaidOut(*networks).floats; });
}

// Lay out the weights for products. This reads the weights again.
NGPULM_EXPORT int64_t ngpulm_lay_out(const NgpulmNetworks* networks) {
  return guarded([&]() -> int64_t {
    LaidOut(*networks).fill(*networks);
    return -1;
  });
}
